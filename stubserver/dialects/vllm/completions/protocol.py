"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from stubserver.dialects.vllm.protocol import (
    INT64_MAX,
    INT64_MIN,
    AnyResponseFormat,
    CacheSalt,
    ExtraArgs,
    Priority,
    PromptLogprob,
    RepetitionDetectionParams,
    ReplyModel,
    RequestId,
    RequestModel,
    StopParam,
    StreamInterval,
    StreamOptions,
    StructuredOutputsParams,
    ThinkingTokenBudget,
    Usage,
    check_cache_salt,
    check_response_format,
    check_stream_options,
    check_structured_outputs,
)
from stubserver.errors import ValidationError

MAX_PROMPTS = 1024
DEFAULT_MAX_TOKENS = 16

TokenId = Annotated[int, Field(ge=0)]


class CompletionRequest(RequestModel):
    """The fields of vLLM's request, in its order, in which several errors are listed."""

    model: str | None = None
    prompt: list[TokenId] | list[list[TokenId]] | str | list[str] | None = None
    echo: bool | None = False
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: int | None = None
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    n: int = 1
    presence_penalty: float | None = None
    seed: int | None = Field(None, ge=INT64_MIN, le=INT64_MAX)
    stop: StopParam = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    suffix: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    user: str | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    watermarking: bool | None = None
    length_penalty: float = 1.0
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT64_MAX)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    allowed_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    bad_words: list[str] = Field(default_factory=list)
    prompt_embeds: bytes | list[bytes] | None = None
    add_special_tokens: bool = True
    response_format: AnyResponseFormat | None = None
    structured_outputs: StructuredOutputsParams | None = None
    priority: Priority = 0
    request_id: RequestId = None
    session_id: str | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    routed_experts_prompt_start: int = Field(0, ge=0)
    return_token_offsets: bool | None = False
    mm_payload: Literal["tensors", "none"] = "tensors"
    return_mm_kwargs: bool | None = None
    cache_salt: CacheSalt = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    vllm_xargs: ExtraArgs | None = None
    repetition_detection: RepetitionDetectionParams | None = None
    thinking_token_budget: ThinkingTokenBudget = None
    stream_interval: StreamInterval = None

    @model_validator(mode="before")
    @classmethod
    def _check(cls, data: Any) -> Any:
        """What vLLM refuses before it looks at the types."""
        if not isinstance(data, dict):
            return data
        for check in _CHECKS:
            check(data)
        if data.get("max_tokens") is None:
            data = {**data, "max_tokens": DEFAULT_MAX_TOKENS}
        return data


def _check_prompt(data: dict[str, Any]) -> None:
    prompt, embeds = data.get("prompt"), data.get("prompt_embeds")
    if isinstance(prompt, list) and len(prompt) > MAX_PROMPTS and not all(isinstance(part, int) for part in prompt):
        message = (
            f"prompt list length {len(prompt)} exceeds the maximum allowed count of {MAX_PROMPTS}. To increase this "
            "limit, set the VLLM_MAX_COMPLETION_PROMPTS environment variable."
        )
        raise ValidationError(message, parameter="prompt")
    if isinstance(embeds, list) and len(embeds) > MAX_PROMPTS:
        message = (
            f"prompt_embeds list length {len(embeds)} exceeds the maximum allowed count of {MAX_PROMPTS}. To increase "
            "this limit, set the VLLM_MAX_COMPLETION_PROMPTS environment variable."
        )
        raise ValidationError(message, parameter="prompt_embeds")
    if prompt in (None, "") and embeds in (None, []):
        raise ValidationError("Either prompt or prompt_embeds must be provided and non-empty.", parameter="prompt")


def _check_logprob_token_ids(data: dict[str, Any]) -> None:
    name = "logprob_token_ids"
    beams, echo, logprobs = data.get("use_beam_search"), data.get("echo"), data.get("logprobs")
    wanted = data.get(name)
    if wanted and beams:
        raise ValidationError("`logprob_token_ids` is not supported with beam search.", parameter=name)
    if beams and echo and logprobs is not None:
        message = (
            "`echo` with `logprobs` is not supported with beam search because beam search does not compute "
            "prompt logprobs."
        )
        raise ValidationError(message, parameter="echo")
    if wanted and echo and data.get("max_tokens") == 0:
        message = (
            "`logprob_token_ids` is not supported when `echo=True` and `max_tokens=0` because no output tokens "
            "are generated."
        )
        raise ValidationError(message, parameter=name)
    if wanted and logprobs is None:
        raise ValidationError("when using `logprob_token_ids`, `logprobs` must be set.", parameter=name)


def _check_logprobs(data: dict[str, Any]) -> None:
    for name in ("prompt_logprobs", "logprobs"):
        value = data.get(name)
        if value is not None and not isinstance(value, int | float):
            raise ValidationError(f"`{name}` must be an integer.", parameter=name, value=value)
    prompt_logprobs = data.get("prompt_logprobs")
    if prompt_logprobs is not None and data.get("stream") and (prompt_logprobs > 0 or prompt_logprobs == -1):
        message = "`prompt_logprobs` are not available when `stream=True`."
        raise ValidationError(message, parameter="prompt_logprobs")
    for name in ("prompt_logprobs", "logprobs"):
        value = data.get(name)
        if value is not None and value < 0 and value != -1:
            raise ValidationError(f"`{name}` must be a positive value or -1.", parameter=name, value=value)


# In the order in which vLLM's checks answer, where a request breaks several.
_CHECKS: tuple[Callable[[dict[str, Any]], None], ...] = (
    _check_prompt,
    check_stream_options,
    _check_logprob_token_ids,
    _check_logprobs,
    check_structured_outputs,
    check_response_format,
    check_cache_salt,
)


class CompletionLogprobs(ReplyModel):
    """Four lists, an entry a token."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(ReplyModel):
    """One choice of a full reply."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None
    prompt_logprobs: list[dict[int, PromptLogprob] | None] | None
    prompt_token_ids: list[int] | None
    routed_experts: None


class CompletionReply(ReplyModel):
    """A full reply."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    service_tier: None
    system_fingerprint: str
    usage: Usage
    kv_transfer_params: None
    ec_transfer_params: None
    metrics: None


class CompletionStreamChoice(ReplyModel):
    """One choice of an event."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    prompt_token_ids: list[int] | None
    token_ids: list[int] | None


class CompletionStreamEvent(ReplyModel):
    """One event of a stream; the last one may have no choices and the usage."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionStreamChoice]
    usage: Usage | None = None
    system_fingerprint: str | None = None
