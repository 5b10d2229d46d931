"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from stubserver.dialects.vllm.chat.messages import ChatMessage
from stubserver.dialects.vllm.protocol import (
    INT64_MAX,
    INT64_MIN,
    AnyResponseFormat,
    PromptLogprob,
    ReplyModel,
    RequestId,
    RequestModel,
    StopParam,
    StreamOptions,
    StructuredOutputsParams,
    Usage,
    VllmFields,
    check_cache_salt,
    check_response_format,
    check_stream_options,
    check_tag_of_response_format,
    check_tag_of_structured_outputs,
)
from stubserver.errors import GenerationError, RequestError, ValidationError

TopLogprobs = Annotated[int, BeforeValidator(lambda v: 0 if v is None else v, json_schema_input_type=int | None)]
"""null means the same as left out: no top tokens."""


class FunctionDefinition(RequestModel):
    """What a tool is called and takes."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class ChatCompletionToolsParam(RequestModel):
    """A tool that the model may call. Its name is in vLLM's errors."""

    type: Literal["function"] = "function"
    function: FunctionDefinition
    defer_loading: bool | None = None

    def shown(self) -> dict[str, Any]:
        """As a template gets it: `strict` and `defer_loading` only where they are set, the rest always."""
        deferred = self.function.defer_loading if self.function.defer_loading is not None else self.defer_loading
        function = self.function.model_dump(exclude={"strict", "defer_loading"})
        optional = {"strict": self.function.strict, "defer_loading": deferred}
        function |= {key: value for key, value in optional.items() if value is not None}
        own = {} if self.defer_loading is None else {"defer_loading": self.defer_loading}
        return {"type": self.type, "function": function, **own}


class NamedFunction(RequestModel):
    """The function that has to be called."""

    name: str


class NamedToolChoice(RequestModel):
    """The tool that has to be called."""

    function: NamedFunction
    type: Literal["function"] = "function"


ToolChoice: TypeAlias = Literal["none", "auto", "required"] | NamedToolChoice | None


class ChatFields(VllmFields):
    """The fields of vLLM's request, but for the messages."""

    model: str | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = False
    top_logprobs: TopLogprobs = 0
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    presence_penalty: float | None = None
    response_format: AnyResponseFormat | None = None
    seed: int | None = Field(None, ge=INT64_MIN, le=INT64_MAX)
    stop: StopParam = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[ChatCompletionToolsParam] | None = None
    tool_choice: ToolChoice = "none"
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool = True
    parallel_tool_calls: bool | None = True

    use_beam_search: bool = False
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    length_penalty: float = 1.0
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT64_MAX)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = Field(default_factory=list)

    echo: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    documents: list[dict[str, str]] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    request_id: RequestId = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    return_prompt_text: bool | None = None


class ChatCompletionRequest(ChatFields):
    """One conversation. Further keys are kept: in its messages and their parts, too, which take over the setting."""

    model_config = ConfigDict(extra="allow")

    messages: list[ChatMessage]

    @model_validator(mode="before")
    @classmethod
    def _check(cls, data: Any) -> Any:
        """What vLLM refuses before it looks at the types."""
        if not isinstance(data, dict):
            return data
        _check_iterable(data.get("messages", []))
        if data.get("tools") and "tool_choice" not in data:
            data = {**data, "tool_choice": "auto"}
        _check_generation_prompt(data)
        _check_tools(data)
        _check_structured_outputs(data)
        _check_logprobs(data)
        check_stream_options(data)
        check_response_format(data)
        messages = with_lists_of_calls(data.get("messages"))
        check_cache_salt(data)
        return data if messages is data.get("messages") else {**data, "messages": messages}

    @model_validator(mode="after")
    def _read(self) -> ChatCompletionRequest:
        """Calls are checked once the rest has passed."""
        read_calls(self.messages)
        return self


class ChatCompletionBatchRequest(RequestModel):
    """Several conversations, answered alike in one full reply.

    Whatever it doesn't declare is checked with its first conversation, as a field of ChatCompletionRequest.
    """

    model_config = ConfigDict(extra="allow")

    messages: list[Annotated[list[ChatMessage], Field(min_length=1)]] = Field(min_length=1)
    model: str | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = False
    top_logprobs: TopLogprobs = 0
    logprob_token_ids: list[int] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    presence_penalty: float | None = None
    response_format: Any | None = None
    seed: int | None = Field(None, ge=INT64_MIN, le=INT64_MAX)
    stop: StopParam = Field(default_factory=list)
    temperature: float | None = None
    top_p: float | None = None
    user: str | None = None
    tool_choice: Literal["none"] | None = "none"
    include_reasoning: bool = True
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    watermarking: bool | None = None
    length_penalty: float | None = 1.0
    early_stopping: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    request_id: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    priority: int = Field(0, ge=INT64_MIN, le=INT64_MAX)
    cache_salt: str | None = None
    include_stop_str_in_output: bool = False
    guided_decoding_backend: str | None = None
    echo: bool = False
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool = False

    @model_validator(mode="before")
    @classmethod
    def _check(cls, data: Any) -> Any:
        """What vLLM refuses before it looks at the types."""
        if not isinstance(data, dict):
            return data
        if data.get("use_beam_search"):
            message = "Batch chat completions do not support beam search. Please set `use_beam_search` to False."
            raise ValidationError(message, parameter="use_beam_search")
        if data.get("logprob_token_ids") and not data.get("logprobs"):
            message = "when using `logprob_token_ids`, `logprobs` must be set to true."
            raise ValidationError(message, parameter="logprob_token_ids")
        check_tag_of_response_format(data.get("response_format"))
        check_tag_of_structured_outputs(data.get("structured_outputs"))
        if data.get("n") not in (None, 1):
            message = "Batch chat completions do not support `n > 1`. Please set `n` to 1."
            raise ValidationError(message, parameter="n", value=data["n"])
        return data

    def fields(self) -> dict[str, Any]:
        """All but the messages, as they are then checked as a request of one conversation."""
        shown = self.model_dump(exclude={"messages", "structured_outputs"}, exclude_none=True)
        if self.structured_outputs is not None:
            shown["structured_outputs"] = self.structured_outputs
        return shown


FIELD_ORDER = (
    *("messages", "model", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs", "max_tokens"),
    *("max_completion_tokens", "n", "presence_penalty", "response_format", "seed", "stop", "stream", "stream_options"),
    *("temperature", "top_p", "tools", "tool_choice", "reasoning_effort", "thinking_token_budget", "include_reasoning"),
    *("parallel_tool_calls", "user", "use_beam_search", "top_k", "min_p", "repetition_penalty", "watermarking"),
    *("length_penalty", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens"),
    *("skip_special_tokens", "spaces_between_special_tokens", "truncate_prompt_tokens", "truncation_side"),
    *("prompt_logprobs", "logprob_token_ids", "allowed_token_ids", "bad_words", "echo", "add_generation_prompt"),
    *("continue_final_message", "add_special_tokens", "documents", "chat_template", "chat_template_kwargs"),
    *("media_io_kwargs", "mm_processor_kwargs", "structured_outputs", "priority", "request_id", "session_id"),
    *("return_tokens_as_token_ids", "return_token_ids", "routed_experts_prompt_start", "return_token_offsets"),
    *("return_prompt_text", "mm_payload", "return_mm_kwargs", "cache_salt", "kv_transfer_params"),
    *("ec_transfer_params", "vllm_xargs", "repetition_detection", "stream_interval"),
)
"""vLLM's fields in its order, in which it tells what is wrong with them."""


def in_field_order(problems: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What is wrong with a request, in the order in which vLLM tells it."""
    return sorted(problems, key=lambda problem: _place(problem["loc"]))


def _place(loc: Sequence[int | str]) -> int:
    return FIELD_ORDER.index(loc[0]) if loc and loc[0] in FIELD_ORDER else 0


def with_lists_of_calls(messages: Any) -> Any:
    """The messages with every `tool_calls` a list, and `reasoning_content` by its newer name; what came is left alone.

    Raises RequestError for calls that aren't iterable.
    """
    if not isinstance(messages, list):
        return messages
    return [_with_list_of_calls(message) if isinstance(message, dict) else message for message in messages]


def _with_list_of_calls(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        message = {**message, "tool_calls": _check_iterable(calls)}
    if "reasoning_content" in message:
        older = message["reasoning_content"]
        message = {key: value for key, value in message.items() if key != "reasoning_content"}
        if older is not None and message.get("reasoning") is None:
            message["reasoning"] = older
    return message


def read_calls(messages: Sequence[Any]) -> None:
    """Read the calls of checked messages, in place. Raises pydantic's ValidationError for those that are none."""
    for message in messages:
        if isinstance(message, dict) and message.get("tool_calls") is not None:
            message["tool_calls"] = list(message["tool_calls"])


def _check_iterable(value: Any) -> list[Any]:
    """Its items. Raises RequestError, in Python's words, if it has none."""
    try:
        return list(value)
    except TypeError as error:
        raise RequestError(str(error)) from None


def _check_generation_prompt(data: dict[str, Any]) -> None:
    if data.get("continue_final_message") and data.get("add_generation_prompt"):
        raise ValidationError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")


def _check_tools(data: dict[str, Any]) -> None:
    tools, choice = data.get("tools"), data.get("tool_choice")
    if tools == []:
        message = "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."
        raise ValidationError(message, parameter="tools")
    if choice in (None, "none"):
        return
    if tools is None:
        raise ValidationError("When using `tool_choice`, `tools` must be set.", parameter="tool_choice")
    if isinstance(choice, dict):
        _check_named_tool(choice, tools)
    elif choice not in ("auto", "required"):
        message = (
            f'Invalid value for `tool_choice`: {choice}! Only named tools, "none", "auto" or "required" are supported.'
        )
        raise ValidationError(message, parameter="tool_choice")


def _check_named_tool(choice: dict[str, Any], tools: Any) -> None:
    usage = 'Correct usage: `{"type": "function", "function": {"name": "my_function"}}`'
    function = choice.get("function")
    if not isinstance(function, dict):
        message = f"Invalid value for `function`: `{function}` in `tool_choice`! {usage}"
        raise ValidationError(message, parameter="tool_choice.function")
    if "name" not in function:
        message = f"Expected field `name` in `function` in `tool_choice`! {usage}"
        raise ValidationError(message, parameter="tool_choice.function.name")
    name = function["name"]
    if not isinstance(name, str) or not name:
        message = f"Invalid `name` in `function`: `{name}` in `tool_choice`! {usage}"
        raise ValidationError(message, parameter="tool_choice.function.name")
    if not _is_among(name, tools):
        message = "The tool specified in `tool_choice` does not match any of the specified `tools`"
        raise ValidationError(message, parameter="tool_choice")


def _is_among(name: str, tools: Any) -> bool:
    """Whether a tool is called so. vLLM hasn't looked at their types: Raises RequestError in Python's words."""
    try:
        return any(tool["function"]["name"] == name for tool in tools)
    except TypeError as error:
        raise RequestError(str(error)) from None
    except KeyError as error:
        raise GenerationError(str(error)) from None


def _check_structured_outputs(data: dict[str, Any]) -> None:
    """Refuse more than one constraint, and one beside a named tool. Raises RequestError."""
    given = data.get("structured_outputs")
    if given is None:
        return
    if not isinstance(given, dict | StructuredOutputsParams):
        raise GenerationError(f"'{type(given).__name__}' object has no attribute 'get'")
    value = given.get if isinstance(given, dict) else partial(getattr, given)
    count = sum(value(kind, None) is not None for kind in ("json", "regex", "choice"))
    if count > 1:
        raise ValidationError(
            "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice')."
        )
    if count and data.get("tool_choice", "none") not in ("none", "auto", "required"):
        raise ValidationError("You can only either use constraints for structured outputs or tools, not both.")
    check_tag_of_structured_outputs(given)


def _check_logprob_token_ids(data: dict[str, Any]) -> None:
    wanted, name = data.get("logprob_token_ids"), "logprob_token_ids"
    if wanted and data.get("use_beam_search"):
        raise ValidationError("`logprob_token_ids` is not supported with beam search.", parameter=name)
    if wanted and not data.get("logprobs"):
        raise ValidationError("when using `logprob_token_ids`, `logprobs` must be set to true.", parameter=name)


def _check_logprobs(data: dict[str, Any]) -> None:
    _check_logprob_token_ids(data)
    for field in ("prompt_logprobs", "top_logprobs"):
        value = data.get(field)
        if value is not None and not isinstance(value, int | float):
            raise ValidationError(f"`{field}` must be an integer.", parameter=field, value=value)
    prompt_logprobs, top_logprobs = data.get("prompt_logprobs"), data.get("top_logprobs")
    if prompt_logprobs is not None and data.get("stream") and (prompt_logprobs > 0 or prompt_logprobs == -1):
        message = "`prompt_logprobs` are not available when `stream=True`."
        raise ValidationError(message, parameter="prompt_logprobs")
    for field, value in (("prompt_logprobs", prompt_logprobs), ("top_logprobs", top_logprobs)):
        if value is not None and value < 0 and value != -1:
            raise ValidationError(f"`{field}` must be a positive value or -1.", parameter=field, value=value)
    if top_logprobs and (top_logprobs == -1 or top_logprobs > 0) and not data.get("logprobs"):
        message = "when using `top_logprobs`, `logprobs` must be set to true."
        raise ValidationError(message, parameter="top_logprobs")


class ChatLogprob(ReplyModel):
    """One token."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprobsContent(ChatLogprob):
    """A generated token and the top ones of its position."""

    top_logprobs: list[ChatLogprob]


class ChatLogprobs(ReplyModel):
    """An entry a generated token."""

    content: list[ChatLogprobsContent]


class FunctionCall(ReplyModel):
    """What is called, and the arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(ReplyModel):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class ReplyMessage(ReplyModel):
    """The message of a full reply; `tool_calls` is there only if a tool is called."""

    role: str
    content: str | None
    refusal: None
    annotations: None
    audio: None
    function_call: None
    tool_calls: list[ToolCall] = Field(default_factory=list)
    reasoning: str | None


class ChatChoice(ReplyModel):
    """One choice of a full reply."""

    index: int
    message: ReplyMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None
    routed_experts: None


class ChatCompletionReply(ReplyModel):
    """A full reply."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    service_tier: None
    system_fingerprint: str
    usage: Usage
    prompt_logprobs: list[dict[int, PromptLogprob] | None] | None
    prompt_token_ids: list[int] | None
    prompt_text: str | None
    kv_transfer_params: None
    ec_transfer_params: None
    metrics: None
