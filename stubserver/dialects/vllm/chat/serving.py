"""POST /v1/chat/completions, and its batch form.

Messages become a prompt by the chat template; the rest is as for completions: steps become parts, a stream sends them,
a full reply is their fold.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, NamedTuple, Protocol

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic import ValidationError as PydanticError
from starlette.requests import Request
from starlette.responses import Response

from stubserver.dialects.vllm.chat.conversation import TemplateMessage
from stubserver.dialects.vllm.chat.message import Delta, delta_json, message_json
from stubserver.dialects.vllm.chat.messages import ChatMessage, Conversation
from stubserver.dialects.vllm.chat.parsing import Parsing, ReplyParser
from stubserver.dialects.vllm.chat.protocol import (
    ChatCompletionBatchRequest,
    ChatCompletionReply,
    ChatCompletionRequest,
    ChatFields,
    NamedToolChoice,
    in_field_order,
    read_calls,
    with_lists_of_calls,
)
from stubserver.dialects.vllm.chat.reasoning import PARSERS
from stubserver.dialects.vllm.chat.template import (
    TemplateOptions,
    check_template_trusted,
    read_messages,
    render_messages,
)
from stubserver.dialects.vllm.chat.tools import check_tools, forces_a_call, parses_tools, tool_constraint
from stubserver.dialects.vllm.prompts import Renderer, Truncation, check_lengths
from stubserver.dialects.vllm.protocol import requested_constraint
from stubserver.dialects.vllm.sampling import generation_params, steps_of
from stubserver.dialects.vllm.wire.codec import WIRE
from stubserver.dialects.vllm.wire.logprobs import chat_logprobs, make_display, prompt_logprobs
from stubserver.dialects.vllm.wire.usage import CHAT_DETAILS, usage, usage_in_stream
from stubserver.engine.generate import Generation, Step, check_finite, in_turn
from stubserver.engine.model import Model
from stubserver.engine.terms import EngineRequest
from stubserver.errors import GenerationError, RequestError, SchemaError, ValidationError
from stubserver.memory import remembering
from stubserver.sampling.params import SamplingParams
from stubserver.serving.asked import Asked, Prompt
from stubserver.serving.body import read_json
from stubserver.serving.dialect import Route
from stubserver.serving.plans import MAX_PLANS, NOT_READ, Plans
from stubserver.serving.sending import event_stream, json_reply
from stubserver.serving.start import request_id, start_generations
from stubserver.serving.state import ServerState, server_state

RESPONSE_ROLE = "assistant"

_ADAPTER = TypeAdapter(ChatCompletionRequest)
_BATCH_ADAPTER = TypeAdapter(ChatCompletionBatchRequest)
_AS_IN_REQUESTS = ConfigDict(extra="allow")
_CONVERSATION = TypeAdapter(list[ChatMessage], config=_AS_IN_REQUESTS)
_CONVERSATIONS = TypeAdapter(
    Annotated[list[Annotated[list[ChatMessage], Field(min_length=1)]], Field(min_length=1)], config=_AS_IN_REQUESTS
)


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
    """What a request asks for, whatever its messages. Raises RequestError for what can't be done.

    batch: the fields that each conversation of a batch is checked with, as a request of its own.
    """

    def __init__(self, state: ServerState, request: ChatFields, batch: Mapping[str, Any] | None = None) -> None:
        self.request = request
        self.batch = batch
        self.model = state.find_model(request.model)
        check_tools(self.model, request)
        self.options = _template_options(request)
        check_template_trusted(self.model, self.options)
        check_media(request)
        self.display = make_display(self.model, request, request.top_logprobs)
        self.parsing = _parsing(self.model, request, self.options, batch=batch is not None)
        self.engine_request = remembering(self._make_engine_request, MAX_PLANS)

    def _make_engine_request(self, prompt_len: int) -> EngineRequest:
        """For a prompt of this length. Raises ValidationError."""
        model, request = self.model, self.request
        constraint = tool_constraint(model.settings, request)
        if constraint is None:
            constraint = requested_constraint(request.structured_outputs, request.response_format)
        params = _params(model, request, prompt_len)
        if self._shows_special_tokens():
            params = replace(params, skip_special_tokens=False)
        reasoning = self.parsing.reasoning if request.include_reasoning else None
        waiting = reasoning.waiting(model.tokenizer) if reasoning and constraint else None
        return EngineRequest(model, params, constraint, prompt_len=prompt_len, waiting=waiting)

    def _shows_special_tokens(self) -> bool:
        """Whether a parser needs them: the tags that it looks for may be some."""
        settings, request = self.model.settings, self.request
        reasoning = PARSERS.get(settings.reasoning_parser)
        calls = parses_tools(settings) and request.tools and request.tool_choice != "none"
        return bool(calls) or (reasoning is not None and reasoning.shows_special)


@dataclass(slots=True)
class ChatAsked(Asked):
    """A chat request, understood. conversations: a prompt each, as the template gets them. roles: of the replies."""

    plan: Plan
    conversations: Sequence[Sequence[TemplateMessage]]
    roles: Sequence[str]
    batch: bool = False


def understand(state: ServerState, body: Any) -> ChatAsked:
    """What the body of a chat request asks for. Raises RequestError for what can't be done."""
    plan, messages = _planned(state.once(_make_plans), body)
    return _asked(plan, [messages])


def understand_batch(state: ServerState, body: Any) -> ChatAsked:
    """What the body of a batch asks for. Raises RequestError for what can't be done."""
    plan, conversations = _planned(state.once(_make_batch_plans), body)
    return _asked(plan, [_single(plan.batch or {}, messages).messages for messages in conversations], batch=True)


def _planned(plans: Plans[Any, Plan], body: Any) -> tuple[Plan, Any]:
    try:
        return plans.plan(body)
    except SchemaError as error:
        error.problems = in_field_order(error.problems)
        raise


def _asked(plan: Plan, conversations: Sequence[Conversation], *, batch: bool = False) -> ChatAsked:
    request, model = plan.request, plan.model
    roles = [RESPONSE_ROLE if request.add_generation_prompt else _last_role(messages) for messages in conversations]
    read = [read_messages(model, messages, plan.options) for messages in conversations]
    prompts = [_render_prompt(plan, messages) for messages in read]
    engine_requests = [plan.engine_request(len(prompt.token_ids)) for prompt in prompts]
    return ChatAsked(model, prompts, engine_requests, plan, read, roles, batch)


def _last_role(messages: Conversation) -> str:
    return str(messages[-1]["role"]) if messages and isinstance(messages[-1], dict) else RESPONSE_ROLE


def _make_plans(state: ServerState) -> Plans[ChatCompletionRequest, Plan]:
    return Plans(_ADAPTER, "messages", _read_conversation, partial(Plan, state))


def _make_batch_plans(state: ServerState) -> Plans[ChatCompletionBatchRequest, Plan]:
    return Plans(_BATCH_ADAPTER, "messages", _read_conversations, partial(_batch_plan, state))


def _batch_plan(state: ServerState, request: ChatCompletionBatchRequest) -> Plan:
    """Each conversation is a request of its own, but checked where only pydantic's text comes of it."""
    state.find_model(request.model)
    fields = request.fields()
    return Plan(state, _single(fields, _ANY_CONVERSATION), fields)


def _single(fields: Mapping[str, Any], messages: Any) -> ChatCompletionRequest:
    """One conversation of a batch, checked. Raises RequestError with pydantic's text."""
    try:
        return ChatCompletionRequest.model_validate({**fields, "messages": messages})
    except PydanticError as error:
        raise RequestError(_UNION_MEMBER.sub(r"\1.function-wrap[__log_extra_fields__()]", str(error))) from None


_UNION_MEMBER = re.compile(r"^(response_format)\.\w*ResponseFormat$", re.MULTILINE)
"""Where pydantic says that a member of the union isn't it; vLLM's members are wrapped."""

_ANY_CONVERSATION = [{"role": "user", "content": ""}]


def _read_conversation(messages: Any) -> Any:
    """The messages, checked; what is wrong with them is said with the rest of the request."""
    try:
        read = _CONVERSATION.validate_python(with_lists_of_calls(messages), from_attributes=True)
        read_calls(read)
    except (PydanticError, RequestError, RecursionError):
        return NOT_READ
    return read


def _read_conversations(conversations: Any) -> Any:
    """The same of a batch."""
    try:
        return _CONVERSATIONS.validate_python(conversations, from_attributes=True)
    except (PydanticError, RecursionError):
        return NOT_READ


class _Chat(NamedTuple):
    """A request with everything in place to run it; a generation a conversation."""

    id: str
    created: int
    asked: ChatAsked
    generations: Sequence[Generation]
    echoed: Sequence[Any]
    parsers: dict[int, ReplyParser]

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
    delta: Delta | None
    logprobs: dict[str, Any] | None
    token_ids: Sequence[int]
    finish_reason: str | None
    stop_reason: int | str | None


def _start(request: Request, body: Mapping[str, Any], asked: ChatAsked) -> _Chat:
    fields = asked.plan.request
    generations = start_generations(request.scope, body, asked)
    own_id = f"chatcmpl-{request_id(request, fields.request_id)}"
    echoed = [_echoed(fields, messages, role) for messages, role in zip(asked.conversations, asked.roles, strict=True)]
    return _Chat(own_id, int(time.time()), asked, generations, echoed, {})


class MediaFields(Protocol):
    """What of a request says how media are loaded."""

    media_io_kwargs: dict[str, dict[str, Any]] | None
    mm_processor_kwargs: dict[str, Any] | None


def check_media(parsed: MediaFields) -> None:
    """Refuse them unless the server trusts its clients with them. Raises ValidationError."""
    for name, stage in (("mm_processor_kwargs", "preprocessing"), ("media_io_kwargs", "media loading")):
        if getattr(parsed, name):
            message = (
                f"Per-request {name} are disabled by default because they can change multimodal {stage} resource "
                "usage. Start the server with --trust-request-mm-kwargs only when clients are trusted."
            )
            raise ValidationError(message, parameter=name)


def _template_options(parsed: ChatFields) -> TemplateOptions:
    given = parsed.chat_template_kwargs or {}
    fields: dict[str, Any] = {
        "add_generation_prompt": parsed.add_generation_prompt,
        "continue_final_message": parsed.continue_final_message,
        "documents": parsed.documents,
        "reasoning_effort": parsed.reasoning_effort,
    }
    if parsed.reasoning_effort is not None and "enable_thinking" not in given:
        fields["enable_thinking"] = parsed.reasoning_effort != "none"
    tools = [tool.shown() for tool in parsed.tools] if parsed.tools is not None else None
    return TemplateOptions(parsed.chat_template, given, fields, tools)


def _parsing(model: Model, parsed: ChatFields, options: TemplateOptions, *, batch: bool) -> Parsing:
    settings, calls_parsed = model.settings, parses_tools(model.settings)
    known_reasoning = not settings.reasoning_parser or settings.reasoning_parser in PARSERS
    imitated = known_reasoning and (not calls_parsed or settings.tool_call_parser == "hermes")
    reasoning = PARSERS.get(settings.reasoning_parser) if imitated else None
    looks_for_calls = calls_parsed and parsed.tool_choice != "none"
    return Parsing(
        on=bool(settings.reasoning_parser) or calls_parsed,
        reasoning=reasoning if reasoning and reasoning.is_on(options.arguments) else None,
        has_tools=calls_parsed,
        hermes=imitated and looks_for_calls,
        scripted=not imitated,
        reasons=bool(settings.reasoning_parser),
        calls=looks_for_calls and bool(parsed.tools),
        forced=forces_a_call(parsed),
        include_reasoning=parsed.include_reasoning,
        last_only=batch and bool(parsed.stream),
    )


def _render_prompt(plan: Plan, messages: Sequence[TemplateMessage]) -> Prompt:
    """The prompt that a conversation makes. Raises RequestError for what can't be rendered."""
    parsed, model = plan.request, plan.model
    max_tokens, name = _max_tokens(parsed)
    truncation = Truncation(parsed.truncate_prompt_tokens, parsed.truncation_side)
    check_lengths(model, max_tokens or 0, truncation, name)
    text = render_messages(model, messages, plan.options)
    special = parsed.add_special_tokens
    return Renderer(model, max_tokens=max_tokens or 0, truncation=truncation, add_special_tokens=special).prompt(text)


def _max_tokens(parsed: ChatFields) -> tuple[int | None, str]:
    if parsed.max_completion_tokens is not None:
        return parsed.max_completion_tokens, "max_completion_tokens"
    return parsed.max_tokens, "max_tokens"


def _params(model: Model, parsed: ChatFields, prompt_len: int) -> SamplingParams:
    """The parameters of a chat request, their values checked. Raises ValidationError."""
    return generation_params(
        parsed,
        model,
        prompt_len,
        max_tokens=_max_tokens(parsed)[0],
        logprobs=parsed.top_logprobs if parsed.logprobs else None,
        echoed=parsed.top_logprobs,
    )


def _echoed(parsed: ChatFields, messages: Sequence[TemplateMessage], role: str) -> Any:
    """The last message's content, which echo puts in front if the reply continues its role."""
    if not parsed.echo or messages[-1]["role"] != role:
        return ""
    return messages[-1]["content"]


def _parts(chat: _Chat) -> Iterator[_Part]:
    """The parts of all choices as they are generated. Raises RequestError at once for what isn't taken."""
    for generation in chat.generations:
        generation.check()
    return _generated_parts(chat)


def _generated_parts(chat: _Chat) -> Iterator[_Part]:
    streamed: set[int] = set()
    for number, (choice, step) in in_turn([steps_of(generation, chat.request) for generation in chat.generations]):
        generation = chat.generations[number]
        index = number * generation.params.n + choice
        parser = chat.parsers.get(index) or chat.parsers.setdefault(index, _parser(chat, generation))
        delta = parser.feed(step.text, step.token_ids, finished=step.finish_reason is not None)
        if delta and delta.tool_calls:
            streamed.add(index)
        logprobs = _logprobs(chat, step)
        called = index in streamed and step.finish_reason == "stop" and not _is_named(chat)
        finish_reason = "tool_calls" if called else step.finish_reason
        yield _Part(index, _first_call(chat, delta), logprobs, step.token_ids, finish_reason, step.stop_reason)


def _logprobs(chat: _Chat, step: Step) -> dict[str, Any] | None:
    """The values of a step, if asked for; a beam search's tokens come without their bytes."""
    if not chat.request.logprobs:
        return None
    shown = chat_logprobs(step, chat.asked.plan.display)
    if not chat.request.use_beam_search:
        return shown
    return {"content": [{**entry, "bytes": None} for entry in shown["content"]]}


def _parser(chat: _Chat, generation: Generation) -> ReplyParser:
    plan, params = chat.asked.plan, generation.params
    waiting = plan.parsing.reasoning.waiting(plan.model.tokenizer) if plan.parsing.reasoning else None
    return ReplyParser(
        plan.parsing,
        generation.answer.segments,
        plan.model.tokenizer,
        is_open=waiting is not None and waiting.is_open(generation.request.prompt_token_ids),
        skip_special_tokens=params.skip_special_tokens,
    )


def _first_call(chat: _Chat, delta: Delta | None) -> Delta | None:
    """Of the calls only the first, if the request wants no more."""
    if delta is None or chat.request.parallel_tool_calls is not False:
        return delta
    return delta._replace(tool_calls=[call for call in delta.tool_calls if call.number == 0])


def _is_named(chat: _Chat) -> bool:
    return isinstance(chat.request.tool_choice, NamedToolChoice)


def _hides(chat: _Chat) -> bool:
    """Whether logprobs and token ids are hidden with the reasoning, of which they would tell."""
    return chat.asked.plan.parsing.on and not chat.request.include_reasoning


def _events(chat: _Chat) -> Iterator[dict[str, Any]]:
    """The events of a stream."""
    request, settings = chat.request, chat.model.settings
    include_usage, continuous = usage_in_stream(request.stream_options, settings)
    (generation,) = chat.generations
    prompt_tokens = len(generation.request.prompt_token_ids)
    generated = [0] * generation.params.n
    parts = _parts(chat)
    # The role goes out with the first token: what isn't taken is refused before. What fails has begun.
    opening = (
        {**event, "usage": _chunk_usage(chat, prompt_tokens, 0, None)} if continuous else event
        for event in _opening_events(chat)
    )
    try:
        first = next(parts)
    except GenerationError:
        yield from opening
        raise
    yield from opening
    for part in _chained(first, parts):
        generated[part.number] += len(part.token_ids)
        choice = _stream_choice(chat, part)
        if choice is None:
            continue
        event = {**_head(chat, "chat.completion.chunk"), "choices": [choice]}
        if part.finish_reason is not None and not include_usage:
            event["system_fingerprint"] = chat.model.system_fingerprint
        if continuous:
            event["usage"] = _chunk_usage(chat, prompt_tokens, generated[part.number], part.number)
        yield event
    if include_usage:
        yield {
            **_head(chat, "chat.completion.chunk"),
            "choices": [],
            "usage": usage(
                prompt_tokens,
                sum(generated),
                details=_prompt_details(chat),
                reasoning_tokens=sum(parser.reasoning_tokens for parser in chat.parsers.values())
                if settings.reasoning_parser
                else None,
            ),
            "system_fingerprint": chat.model.system_fingerprint,
        }


def _chunk_usage(chat: _Chat, prompt_tokens: int, generated: int, number: int | None) -> dict[str, Any]:
    """Counts of one choice so far (number; None: before its first token)."""
    counts = usage(prompt_tokens, generated)
    counts["completion_tokens_details"] = None
    if chat.model.settings.reasoning_parser:
        tokens = 0 if number is None else chat.parsers[number].reasoning_tokens
        counts["completion_tokens_details"] = {"reasoning_tokens": tokens}
    return counts


def _prompt_details(chat: _Chat) -> Mapping[str, int] | None:
    """What is known of the prompt's tokens; nothing of those of a beam search, or of a batch."""
    told = chat.model.settings.enable_prompt_tokens_details and not chat.request.use_beam_search
    return CHAT_DETAILS if told and not chat.asked.batch else None


def _reasoning_tokens(chat: _Chat) -> int:
    """Of a full reply."""
    return sum(parser.all_reasoning_tokens for parser in chat.parsers.values())


def _chained(first: _Part, rest: Iterator[_Part]) -> Iterator[_Part]:
    yield first
    yield from rest


def _opening_events(chat: _Chat) -> Iterator[dict[str, Any]]:
    """The role of every choice, and the message that echo repeats."""
    request, (prompt,), (generation,) = chat.request, chat.asked.prompts, chat.generations
    for number in range(generation.params.n):
        yield {
            **_head(chat, "chat.completion.chunk"),
            "choices": [_opening_choice(number, {"role": chat.asked.roles[0], "content": ""})],
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
    hidden = _hides(chat)
    logprobs = None if hidden else part.logprobs
    ids_shown = bool(chat.request.return_token_ids) and not hidden
    if part.delta is None and part.finish_reason is None and logprobs is None and not ids_shown:
        return None
    choice = {
        "index": part.number,
        "delta": delta_json(part.delta or Delta()),
        "logprobs": logprobs,
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
    folded: dict[int, list[_Part]] = {}
    for part in _parts(chat):
        kept = folded.setdefault(part.number, [])
        if chat.asked.plan.parsing.last_only:
            kept.clear()
        kept.append(part)
    generated = sum(len(part.token_ids) for parts in folded.values() for part in parts)
    first, prompt = chat.generations[0], chat.asked.prompts[0]
    one = not chat.asked.batch
    scored = one and first.params.prompt_logprobs is not None
    return {
        **_head(chat, "chat.completion"),
        "choices": [_full_choice(chat, folded[number]) for number in sorted(folded)],
        "service_tier": None,
        "system_fingerprint": chat.model.system_fingerprint,
        "usage": usage(
            sum(len(each.token_ids) for each in chat.asked.prompts),
            generated,
            details=_prompt_details(chat),
            reasoning_tokens=_reasoning_tokens(chat) if one and settings.reasoning_parser else None,
            nulls=True,
        ),
        "prompt_logprobs": prompt_logprobs(first.prompt_logprobs) if scored else None,
        "prompt_token_ids": prompt.token_ids if one and chat.request.return_token_ids else None,
        "prompt_text": prompt.text if one and chat.request.return_prompt_text else None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def _full_choice(chat: _Chat, parts: Sequence[_Part]) -> dict[str, Any]:
    last, request = parts[-1], chat.request
    number = last.number // chat.generations[0].params.n
    message = chat.parsers[last.number].message()
    called = bool(message.tool_calls) and request.tool_choice == "auto"
    if request.tool_choice in (None, "none") or request.parallel_tool_calls is False:
        message = message._replace(tool_calls=message.tool_calls[: 0 if request.tool_choice in (None, "none") else 1])
    if request.echo:
        message = message._replace(content=_as_text(chat.echoed[number]) + (message.content or ""))
    hidden = _hides(chat) and not chat.asked.batch
    logprobs = None
    if request.logprobs and not hidden:
        logprobs = {"content": [entry for part in parts if part.logprobs for entry in part.logprobs["content"]]}
        check_finite(entry["logprob"] for entry in logprobs["content"])
    ids_shown = request.return_token_ids and not hidden
    return {
        "index": last.number,
        "message": message_json(chat.asked.roles[number], message),
        "logprobs": logprobs,
        "finish_reason": _full_finish_reason(chat, last, called=called),
        "stop_reason": last.stop_reason,
        "token_ids": [token for part in parts for token in part.token_ids] if ids_shown else None,
        "routed_experts": None,
    }


def _as_text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _full_finish_reason(chat: _Chat, last: _Part, *, called: bool) -> str | None:
    """In a full reply a call that the model chose ends it by "tool_calls" even at its last token."""
    own = "stop" if last.finish_reason == "tool_calls" else last.finish_reason
    if called or (chat.request.tool_choice == "required" and own == "stop"):
        return "tool_calls"
    return own


ROUTE = Route(create_chat_completion, ChatCompletionRequest, ChatCompletionReply, understand)
BATCH = Route(create_batch_chat_completion, ChatCompletionBatchRequest, ChatCompletionReply, understand_batch)
