"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

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
    check_structured_outputs,
)
from stubserver.errors import ValidationError

TopLogprobs = Annotated[int, BeforeValidator(lambda v: 0 if v is None else v, json_schema_input_type=int | None)]
"""null means the same as left out: no top tokens."""


class ContentPart(RequestModel):
    """A part of a message's content; only those of type text mean something here."""

    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None


class Message(RequestModel):
    """A message of the conversation; further keys reach the chat template as they are."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | list[ContentPart | str] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _rename_reasoning(cls, data: Any) -> Any:
        """`reasoning_content` is the older name."""
        if isinstance(data, dict) and data.get("reasoning_content") is not None and data.get("reasoning") is None:
            data = {**data, "reasoning": data["reasoning_content"]}
        return data


class FunctionDefinition(RequestModel):
    """What a tool is called and takes."""

    model_config = ConfigDict(extra="allow")

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(RequestModel):
    """A tool that the model may call."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


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
    tools: list[Tool] | None = None
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
    """One conversation."""

    messages: list[Message]

    @model_validator(mode="before")
    @classmethod
    def _check(cls, data: Any) -> Any:
        """What vLLM refuses before it looks at the types."""
        if not isinstance(data, dict):
            return data
        if data.get("tools") and "tool_choice" not in data:
            data = {**data, "tool_choice": "auto"}
        _check_generation_prompt(data)
        _check_tools(data)
        check_structured_outputs(data)
        _check_logprobs(data)
        check_stream_options(data)
        check_response_format(data)
        check_cache_salt(data)
        return data


class ChatCompletionBatchRequest(ChatFields):
    """Several conversations, answered alike in one full reply. Streams, tools and several choices there are none."""

    messages: list[Annotated[list[Message], Field(min_length=1)]] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _check(cls, data: Any) -> Any:
        """What vLLM refuses before it looks at the types."""
        if not isinstance(data, dict):
            return data
        if data.get("use_beam_search"):
            message = "Batch chat completions do not support beam search. Please set `use_beam_search` to False."
            raise ValidationError(message, parameter="use_beam_search")
        _check_logprob_token_ids(data)
        if data.get("n") not in (None, 1):
            message = "Batch chat completions do not support `n > 1`. Please set `n` to 1."
            raise ValidationError(message, parameter="n", value=data["n"])
        return {key: value for key, value in data.items() if key not in ("stream", "stream_options", "tools")}


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
    if name not in _tool_names(tools):
        message = "The tool specified in `tool_choice` does not match any of the specified `tools`"
        raise ValidationError(message, parameter="tool_choice")


def _tool_names(tools: Any) -> list[Any]:
    functions = [tool.get("function") for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    return [function.get("name") for function in functions if isinstance(function, dict)]


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


class ChatMessage(ReplyModel):
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
    message: ChatMessage
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
