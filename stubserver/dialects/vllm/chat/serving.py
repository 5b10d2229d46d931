"""POST /v1/chat/completions, and its batch form.

Messages become a prompt by the chat template; the rest is as for completions: steps become parts, a stream sends them,
a full reply is their fold.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

from pydantic import Field, TypeAdapter
from pydantic import ValidationError as PydanticError
from starlette.requests import Request
from starlette.responses import Response

from stubserver.dialects.vllm.chat.message import Delta, MessageParser, delta_json, message_json
from stubserver.dialects.vllm.chat.protocol import (
    ChatCompletionBatchRequest,
    ChatCompletionReply,
    ChatCompletionRequest,
    ChatFields,
    ContentPart,
    Message,
    NamedToolChoice,
)
from stubserver.dialects.vllm.prompts import Renderer, Truncation, check_given, check_lengths
from stubserver.dialects.vllm.protocol import requested_constraint
from stubserver.dialects.vllm.sampling import beam_params, choose_max_tokens, sampling_params, steps_of
from stubserver.dialects.vllm.wire.codec import WIRE
from stubserver.dialects.vllm.wire.logprobs import chat_logprobs, check_numbers, make_display, prompt_logprobs
from stubserver.dialects.vllm.wire.usage import CHAT_DETAILS, usage, usage_in_stream
from stubserver.engine.generate import Generation, in_turn
from stubserver.engine.model import Model
from stubserver.engine.terms import EngineRequest
from stubserver.errors import GenerationError, RequestError, ValidationError
from stubserver.memory import remembering
from stubserver.sampling.params import SamplingParams
from stubserver.serving.asked import Asked, Prompt
from stubserver.serving.body import read_json
from stubserver.serving.dialect import Route
from stubserver.serving.plans import MAX_PLANS, NOT_READ, Plans
from stubserver.serving.sending import event_stream, json_reply
from stubserver.serving.start import request_id, start_generations
from stubserver.serving.state import ServerState, server_state
from stubserver.tokenizer.chat_template import render_chat

C = TypeVar("C", bound=ChatFields)

RESPONSE_ROLE = "assistant"

Conversation = Sequence[Message]

_ADAPTER = TypeAdapter(ChatCompletionRequest)
_BATCH_ADAPTER = TypeAdapter(ChatCompletionBatchRequest)
_CONVERSATION = TypeAdapter(list[Message])
_CONVERSATIONS = TypeAdapter(Annotated[list[Annotated[list[Message], Field(min_length=1)]], Field(min_length=1)])


async def create_chat_completion(request: Request) -> Response:
    """Answer a chat request."""
    state, body = server_state(request), await read_json(request)
    chat = _start(request, body, understand(state, body))
    if chat.request.stream:
        state.follow(chat.generations[0], chat.id)
        return event_stream(_events(chat), WIRE)
    return json_reply(_full_reply(chat))


async def create_batch_chat_completion(request: Request) -> Response:
    """Answer several conversations in one full reply, their choices one after the other."""
    state, body = server_state(request), await read_json(request)
    return json_reply(_full_reply(_start(request, body, understand_batch(state, body))))


class Plan:
    """What a request asks for, whatever its messages. Raises RequestError for what can't be done."""

    def __init__(self, state: ServerState, request: ChatFields) -> None:
        self.request = request
        self.model = state.find_model(request.model)
        _check_tools(self.model, request)
        check_media(request)
        self.display = make_display(self.model, request, request.top_logprobs)
        self.engine_request = remembering(self._make_engine_request, MAX_PLANS)

    def _make_engine_request(self, prompt_len: int) -> EngineRequest:
        """For a prompt of this length. Raises ValidationError."""
        constraint = requested_constraint(self.request.structured_outputs, self.request.response_format)
        params = _params(self.model, self.request, prompt_len)
        return EngineRequest(self.model, params, constraint, prompt_len=prompt_len)


@dataclass(slots=True)
class ChatAsked(Asked):
    """A chat request, understood. conversations: a prompt each."""

    plan: Plan
    conversations: Sequence[Conversation]


def understand(state: ServerState, body: Any) -> ChatAsked:
    """What the body of a chat request asks for. Raises RequestError for what can't be done."""
    plan, messages = state.once(_make_plans).plan(body)
    return _asked(plan, [messages])


def understand_batch(state: ServerState, body: Any) -> ChatAsked:
    """What the body of a batch asks for. Raises RequestError for what can't be done."""
    return _asked(*state.once(_make_batch_plans).plan(body))


def _asked(plan: Plan, conversations: Sequence[Conversation]) -> ChatAsked:
    prompts = [_render_prompt(plan.model, plan.request, messages) for messages in conversations]
    engine_requests = [plan.engine_request(len(prompt.token_ids)) for prompt in prompts]
    return ChatAsked(plan.model, prompts, engine_requests, plan, conversations)


def _make_plans(state: ServerState) -> Plans[ChatCompletionRequest, Plan]:
    return Plans(_ADAPTER, "messages", partial(_read, _CONVERSATION), partial(Plan, state))


def _make_batch_plans(state: ServerState) -> Plans[ChatCompletionBatchRequest, Plan]:
    return Plans(_BATCH_ADAPTER, "messages", partial(_read, _CONVERSATIONS), partial(Plan, state))


def _read(adapter: TypeAdapter[Any], messages: Any) -> Any:
    """The messages, checked; what is wrong with them is said with the rest of the request."""
    try:
        return adapter.validate_python(messages, from_attributes=True)
    except (PydanticError, RecursionError):
        return NOT_READ


class _Chat(NamedTuple):
    """A request with everything in place to run it; a generation a conversation."""

    id: str
    created: int
    asked: ChatAsked
    generations: Sequence[Generation]
    role: str
    echoed: Sequence[str]

    @property
    def model(self) -> Model:
        """Whose answer it is."""
        return self.asked.model

    @property
    def request(self) -> ChatFields:
        """All fields but the messages, which are those of the conversations."""
        return self.asked.plan.request


class _Part(NamedTuple):
    """A piece of one choice."""

    number: int
    delta: Delta
    logprobs: dict[str, Any] | None
    token_ids: Sequence[int]
    finish_reason: str | None
    stop_reason: int | str | None


def _start(request: Request, body: Mapping[str, Any], asked: ChatAsked) -> _Chat:
    fields, conversations = asked.plan.request, asked.conversations
    role = RESPONSE_ROLE if fields.add_generation_prompt else conversations[0][-1].role
    generations = start_generations(request.scope, body, asked)
    own_id = f"chatcmpl-{request_id(request, fields.request_id)}"
    echoed = [_echoed(fields, messages, role) for messages in conversations]
    return _Chat(own_id, int(time.time()), asked, generations, role, echoed)


def _check_tools(model: Model, parsed: ChatFields) -> None:
    """Without a parser for the model's tool calls."""
    settings, choice = model.settings, parsed.tool_choice
    if choice == "auto" and not (settings.enable_auto_tool_choice and settings.tool_call_parser):
        message = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        raise ValidationError(message)
    required = isinstance(choice, NamedToolChoice) or choice == "required"
    if required and not settings.tool_call_parser:
        shown = f'function "{choice.function.name}"' if isinstance(choice, NamedToolChoice) else '"required"'
        raise ValidationError(f"tool_choice={shown} requires --tool-call-parser to be set")


class MediaFields(Protocol):
    """What of a request says how images are read."""

    media_io_kwargs: dict[str, dict[str, Any]] | None
    mm_processor_kwargs: dict[str, Any] | None


def check_media(parsed: MediaFields) -> None:
    """Refuse what only trusted clients may say. Raises ValidationError."""
    for name, stage in (("mm_processor_kwargs", "preprocessing"), ("media_io_kwargs", "media loading")):
        if getattr(parsed, name):
            message = (
                f"Per-request {name} are disabled by default because they can change multimodal {stage} resource "
                "usage. Start the server with --trust-request-mm-kwargs only when clients are trusted."
            )
            raise ValidationError(message, parameter=name)


def _render_prompt(model: Model, parsed: ChatFields, messages: Sequence[Message]) -> Prompt:
    """The prompt that a conversation makes. Raises RequestError for what can't be rendered."""
    max_tokens, name = _max_tokens(parsed)
    truncation = Truncation(parsed.truncate_prompt_tokens, parsed.truncation_side)
    template_kwargs = dict(parsed.chat_template_kwargs or {})
    template = parsed.chat_template or template_kwargs.pop("chat_template", None)
    if template is not None and not model.settings.trust_request_chat_template:
        raise RequestError(
            "Chat template is passed with request, but --trust-request-chat-template is not set. "
            "Refused request with untrusted chat template."
        )
    text = render_chat(
        model.tokenizer,
        [template_message(model, message) for message in messages],
        template=template,
        add_generation_prompt=parsed.add_generation_prompt,
        continue_final_message=parsed.continue_final_message,
        tools=[tool.model_dump(exclude_unset=True) for tool in parsed.tools] if parsed.tools else None,
        documents=parsed.documents,
        template_kwargs=_with_reasoning_effort(parsed, template_kwargs),
    )
    check_lengths(model, max_tokens or 0, truncation, name)
    check_given(text)
    special = parsed.add_special_tokens
    return Renderer(model, max_tokens=max_tokens or 0, truncation=truncation, add_special_tokens=special).prompt(text)


def template_message(model: Model, message: Message) -> dict[str, Any]:
    """A message as the template gets it, the texts of its parts joined by newlines.

    Raises ValidationError for a part that is no text.
    """
    shown = message.model_dump(exclude_unset=True)
    if isinstance(message.content, list):
        shown["content"] = "\n".join(_part_text(model, part) for part in message.content)
    return shown


def _part_text(model: Model, part: ContentPart | str) -> str:
    if isinstance(part, str):
        return part
    if part.text is None:
        raise RequestError(f"{model.name} is not a multimodal model")
    return part.text


def _with_reasoning_effort(parsed: ChatFields, template_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if parsed.reasoning_effort is None:
        return dict(template_kwargs)
    thinking = {"reasoning_effort": parsed.reasoning_effort, "enable_thinking": parsed.reasoning_effort != "none"}
    return {**thinking, **template_kwargs}


def _max_tokens(parsed: ChatFields) -> tuple[int | None, str]:
    if parsed.max_completion_tokens is not None:
        return parsed.max_completion_tokens, "max_completion_tokens"
    return parsed.max_tokens, "max_tokens"


def _params(model: Model, parsed: ChatFields, prompt_len: int) -> SamplingParams:
    """The parameters of a chat request, their values checked. Raises ValidationError."""
    max_tokens = choose_max_tokens(model, _max_tokens(parsed)[0], prompt_len, parsed.truncate_prompt_tokens)
    if parsed.use_beam_search:
        return beam_params(parsed, model, max_tokens)
    scored = parsed.prompt_logprobs
    if scored is None and parsed.echo:
        scored = parsed.top_logprobs
    return sampling_params(
        parsed,
        model,
        max_tokens=max_tokens,
        logprobs=parsed.top_logprobs if parsed.logprobs else None,
        prompt_logprobs=scored,
    )


def _echoed(parsed: ChatFields, messages: Sequence[Message], role: str) -> str:
    """The last message's text, which echo puts in front if the reply continues its role."""
    if not parsed.echo or messages[-1].role != role:
        return ""
    content = messages[-1].content or ""
    if isinstance(content, str):
        return content
    return "\n".join(part if isinstance(part, str) else part.text or "" for part in content)


def _parts(chat: _Chat) -> Iterator[_Part]:
    """The parts of all choices as they are generated. Raises ValidationError before the first one."""
    for generation in chat.generations:
        generation.check()
    parsers: dict[int, MessageParser] = {}
    called: set[int] = set()
    for number, (choice, step) in in_turn([steps_of(generation, chat.request) for generation in chat.generations]):
        generation = chat.generations[number]
        index = number * generation.params.n + choice
        parser = parsers.get(index) or parsers.setdefault(index, _parser(generation))
        delta = parser.feed(step.text)
        if delta.tool_calls:
            called.add(index)
        logprobs = chat_logprobs(step, chat.asked.plan.display) if chat.request.logprobs else None
        finish_reason = _finish_reason(chat, step.finish_reason, called=index in called)
        yield _Part(index, _visible(chat, delta), logprobs, step.token_ids, finish_reason, step.stop_reason)


def _parser(generation: Generation) -> MessageParser:
    skip = generation.params.skip_special_tokens
    return MessageParser(generation.answer.segments, generation.model.tokenizer, skip_special_tokens=skip)


def _visible(chat: _Chat, delta: Delta) -> Delta:
    """What of a delta the request wants to see: no reasoning, or the first tool call only, if it says so."""
    if not chat.request.include_reasoning:
        delta = delta._replace(reasoning=None)
    if chat.request.parallel_tool_calls is False:
        delta = delta._replace(tool_calls=[call for call in delta.tool_calls if call.number == 0])
    return delta


def _finish_reason(chat: _Chat, finish_reason: str | None, *, called: bool) -> str | None:
    """A message that calls a tool ends by "tool_calls", unless the request itself named the tool."""
    named = isinstance(chat.request.tool_choice, NamedToolChoice)
    return "tool_calls" if called and finish_reason == "stop" and not named else finish_reason


def _events(chat: _Chat) -> Iterator[dict[str, Any]]:
    """The events of a stream."""
    request, settings = chat.request, chat.model.settings
    include_usage, continuous = usage_in_stream(request.stream_options, settings)
    (generation,) = chat.generations
    prompt_tokens = len(generation.request.prompt_token_ids)
    counts = _Counts(generation.params.n)
    parts = _parts(chat)
    # The role goes out with the first token: what is refused is refused before. What fails has begun.
    opening = ({**event, "usage": usage(prompt_tokens, 0)} if continuous else event for event in _opening_events(chat))
    try:
        first = next(parts)
    except GenerationError:
        yield from opening
        raise
    yield from opening
    for part in _chained(first, parts):
        counts.add(part)
        choice = _stream_choice(chat, part)
        if choice is None:
            continue
        event = {**_head(chat, "chat.completion.chunk"), "choices": [choice]}
        if part.finish_reason is not None and not include_usage:
            event["system_fingerprint"] = chat.model.system_fingerprint
        if continuous:
            event["usage"] = usage(prompt_tokens, counts.generated[part.number])
        yield event
    if include_usage:
        yield {
            **_head(chat, "chat.completion.chunk"),
            "choices": [],
            "usage": usage(
                prompt_tokens,
                sum(counts.generated),
                details=CHAT_DETAILS if settings.enable_prompt_tokens_details else None,
                reasoning_tokens=counts.reasoning if settings.reasoning_parser else None,
            ),
            "system_fingerprint": chat.model.system_fingerprint,
        }


def _chained(first: _Part, rest: Iterator[_Part]) -> Iterator[_Part]:
    yield first
    yield from rest


class _Counts:
    """Tokens generated for each choice, and how many of them were reasoning."""

    def __init__(self, choices: int) -> None:
        self.generated = [0] * choices
        self.reasoning = 0

    def add(self, part: _Part) -> None:
        """Count a part."""
        self.generated[part.number] += len(part.token_ids)
        if part.delta.reasoning is not None:
            self.reasoning += len(part.token_ids)


def _opening_events(chat: _Chat) -> Iterator[dict[str, Any]]:
    """The role of every choice, and the message that echo repeats."""
    request, (prompt,), (generation,) = chat.request, chat.asked.prompts, chat.generations
    for number in range(generation.params.n):
        yield {
            **_head(chat, "chat.completion.chunk"),
            "choices": [_opening_choice(number, {"role": chat.role, "content": ""})],
            "prompt_token_ids": prompt.token_ids if request.return_token_ids else None,
            "prompt_text": prompt.text if request.return_prompt_text else None,
        }
    for number in range(generation.params.n if chat.echoed[0] else 0):
        choice = _opening_choice(number, {"content": chat.echoed[0]})
        yield {**_head(chat, "chat.completion.chunk"), "choices": [choice]}


def _opening_choice(number: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": number, "delta": delta, "logprobs": None, "finish_reason": None}


def _stream_choice(chat: _Chat, part: _Part) -> dict[str, Any] | None:
    """The part as an event has it; None if it has nothing to show (markup that was parsed away)."""
    delta = delta_json(part.delta)
    ids_shown = bool(chat.request.return_token_ids)
    if not delta and part.finish_reason is None and part.logprobs is None and not ids_shown:
        return None
    choice = {
        "index": part.number,
        "delta": delta,
        "logprobs": part.logprobs,
        "finish_reason": part.finish_reason,
        "token_ids": part.token_ids if ids_shown else None,
    }
    if part.finish_reason is not None:
        choice["stop_reason"] = part.stop_reason
    return choice


def _head(chat: _Chat, kind: str) -> dict[str, Any]:
    return {"id": chat.id, "object": kind, "created": chat.created, "model": chat.model.name}


def _full_reply(chat: _Chat) -> dict[str, Any]:
    """The fold of the parts."""
    settings = chat.model.settings
    counts = _Counts(sum(generation.params.n for generation in chat.generations))
    folded: dict[int, list[_Part]] = {}
    for part in _parts(chat):
        counts.add(part)
        folded.setdefault(part.number, []).append(part)
    first, prompt = chat.generations[0], chat.asked.prompts[0]
    scored = first.params.prompt_logprobs is not None
    return {
        **_head(chat, "chat.completion"),
        "choices": [_full_choice(chat, folded[number]) for number in sorted(folded)],
        "service_tier": None,
        "system_fingerprint": chat.model.system_fingerprint,
        "usage": usage(
            sum(len(each.token_ids) for each in chat.asked.prompts),
            sum(counts.generated),
            details=CHAT_DETAILS if settings.enable_prompt_tokens_details else None,
            reasoning_tokens=counts.reasoning if settings.reasoning_parser else None,
            nulls=True,
        ),
        "prompt_logprobs": prompt_logprobs(first.prompt_logprobs) if scored else None,
        "prompt_token_ids": prompt.token_ids if chat.request.return_token_ids else None,
        "prompt_text": prompt.text if chat.request.return_prompt_text else None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def _full_choice(chat: _Chat, parts: Sequence[_Part]) -> dict[str, Any]:
    last, request = parts[-1], chat.request
    message = message_json(chat.role, [part.delta for part in parts])
    echoed = chat.echoed[last.number // chat.generations[0].params.n]
    if echoed:
        message["content"] = echoed + (message["content"] or "")
    logprobs = None
    if request.logprobs:
        logprobs = {"content": [entry for part in parts if part.logprobs for entry in part.logprobs["content"]]}
        check_numbers(entry["logprob"] for entry in logprobs["content"])
    return {
        "index": last.number,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": last.finish_reason,
        "stop_reason": last.stop_reason,
        "token_ids": [token for part in parts for token in part.token_ids] if request.return_token_ids else None,
        "routed_experts": None,
    }


ROUTE = Route(create_chat_completion, ChatCompletionRequest, ChatCompletionReply, understand)
BATCH = Route(create_batch_chat_completion, ChatCompletionBatchRequest, ChatCompletionReply, understand_batch)
