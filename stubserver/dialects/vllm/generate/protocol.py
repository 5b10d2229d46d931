"""POST /inference/v1/generate and POST /inference/v1/abort_requests.

Shapes read in vLLM 0.32.0, `entrypoints/scale_out/token_in_token_out/protocol.py` and `sampling_params.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, InstanceOf, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticKnownError

from stubserver.dialects.vllm.checks import check_values
from stubserver.dialects.vllm.protocol import (
    ReplyModel,
    RequestModel,
    StreamOptions,
    StructuredOutputsParams,
    Usage,
)
from stubserver.dialects.vllm.sampling import effective_temperature
from stubserver.errors import ValidationError
from stubserver.sampling.params import SamplingParams as EngineParams


class SamplingParams(RequestModel):
    """vLLM's own SamplingParams: unlike the OpenAI routes' fields they have vLLM's defaults, not the server's."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    trace_decode_token_ids: list[int] | None = None

    # Refused: see serving.py.
    prompt_logprob_token_ids: list[list[int]] | None = None

    # Without effect, but of vLLM's types.
    extra_args: dict[str, Any] | None = None
    flat_logprobs: bool = False
    output_kind: Literal[0, 1, 2] = 0
    prompt_logprob_start: int | None = None
    repetition_detection: dict[str, Any] | None = None
    routed_experts_prompt_start: int = 0
    skip_clone: bool = False
    skip_reading_prefix_cache: bool | None = None
    spaces_between_special_tokens: bool = True
    stream_interval: int | None = None
    thinking_token_budget: int | None = None
    watermarking: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> SamplingParams:
        """Refuse what vLLM refuses as it makes the object. Raises ValidationError."""
        check_values(self.params())
        if self.stop and not self.detokenize:
            raise ValidationError(
                "stop strings are only supported when detokenize is True. Set detokenize=True to use stop."
            )
        return self

    def params(self) -> EngineParams:
        """The same for the engine; `bad_words` have to be tokenized yet, and `max_tokens` null to be resolved."""
        return EngineParams(
            n=self.n,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            temperature=effective_temperature(self.temperature),
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=None if self.seed == -1 else self.seed,
            stop=[self.stop] if isinstance(self.stop, str) else self.stop or (),
            stop_token_ids=list(dict.fromkeys(self.stop_token_ids or ())),
            ignore_eos=self.ignore_eos,
            # Null means as many as fit, which is for the model to say.
            max_tokens=max(1, self.min_tokens) if self.max_tokens is None else self.max_tokens,
            min_tokens=self.min_tokens,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            logprob_token_ids=self.logprob_token_ids,
            skip_special_tokens=self.skip_special_tokens,
            include_stop_str_in_output=self.include_stop_str_in_output,
            # Not clamped to [-100, 100], as the OpenAI routes' are.
            logit_bias=self.logit_bias,
            allowed_token_ids=self.allowed_token_ids,
            bad_words=list(dict.fromkeys(self.bad_words or ())),
            trace_decode_token_ids=self.trace_decode_token_ids,
        )


def _check_object(value: Any) -> Any:
    if not isinstance(value, dict):
        raise PydanticKnownError("dict_type")
    return value


class GenerateRequest(RequestModel):
    """The fields that stubserver heeds; vLLM's others are accepted and ignored."""

    request_id: str = ""
    token_ids: list[int] = Field(min_length=1)
    # vLLM takes an instance or an object, and its errors tell of both.
    sampling_params: (
        SkipJsonSchema[InstanceOf[SamplingParams]] | Annotated[SamplingParams, BeforeValidator(_check_object)]
    )
    model: str | None = None
    return_token_ids: bool | None = None
    output_mode: Literal["tokens", "text"] = "tokens"
    stream: bool | None = False
    stream_options: StreamOptions | None = None

    # Refused: the model has no images.
    features: dict[str, Any] | None = None
    content_parts: list[dict[str, Any]] | None = None

    # Without effect, but of vLLM's types.
    cache_salt: str | None = None
    ec_transfer_params: dict[str, Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    priority: int = 0
    reasoning_ended: bool | None = None
    token_offsets: list[tuple[int, int]] | None = None

    @field_validator("token_ids")
    @classmethod
    def _check_token_ids(cls, token_ids: list[int]) -> list[int]:
        if min(token_ids) < 0:
            raise ValueError("token_ids must not contain negative values")
        return token_ids

    @model_validator(mode="before")
    @classmethod
    def _check_cache_salt(cls, data: Any) -> Any:
        salt = data.get("cache_salt") if isinstance(data, dict) else None
        if salt is not None and (not isinstance(salt, str) or not salt):
            message = "Parameter 'cache_salt' must be a non-empty string if provided."
            raise ValidationError(message, parameter="cache_salt")
        return data

    @model_validator(mode="after")
    def _check_output_mode(self) -> GenerateRequest:
        if self.output_mode != "tokens" and not self.sampling_params.detokenize:
            raise ValueError(f"output_mode={self.output_mode!r} requires sampling_params.detokenize to be true")
        return self


class GenerateLogprob(ReplyModel):
    """One token's value."""

    token_id: int
    logprob: float
    rank: int | None


class GenerateLogprobsContent(GenerateLogprob):
    """The generated token and the top ones; it is the first of them itself."""

    top_logprobs: list[GenerateLogprob]


class GenerateLogprobs(ReplyModel):
    """An entry a token."""

    content: list[GenerateLogprobsContent]


class TextLogprob(ReplyModel):
    """One token's value, with its text."""

    token: str
    logprob: float
    bytes: list[int] | None


class TextLogprobsContent(TextLogprob):
    """The generated token and the top ones; it is the first of them itself."""

    top_logprobs: list[TextLogprob]


class TextLogprobs(ReplyModel):
    """An entry a token."""

    content: list[TextLogprobsContent]


class WeightVersionSpan(ReplyModel):
    """Which weights sampled the tokens from `start` up to `end`."""

    version: str
    start: int
    end: int


class GenerateTokensChoice(ReplyModel):
    """One choice, of a full reply or of an event.

    sampling_mask: per token, the ids that it was drawn from, ascending; null unless the server returns masks.
    """

    index: int
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int]
    routed_experts: None
    sampling_mask: list[list[int]] | None
    weight_versions: list[WeightVersionSpan] | None
    logprobs: GenerateLogprobs | None


class GenerateTextChoice(ReplyModel):
    """The same with text."""

    index: int
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int]
    routed_experts: None
    sampling_mask: list[list[int]] | None
    weight_versions: list[WeightVersionSpan] | None
    text: str
    logprobs: TextLogprobs | None


class GeneratePromptLogprob(ReplyModel):
    """One entry of a prompt token's logprobs; without text if `detokenize` is false."""

    logprob: float
    rank: int
    decoded_token: str | None


class GenerateReply(ReplyModel):
    """A full reply."""

    request_id: str
    model: str
    created: int
    usage: Usage
    prompt_logprobs: list[dict[int, GeneratePromptLogprob] | None] | None
    prompt_token_id_logprobs: None
    prompt_token_ids: list[int] | None
    mm_placeholders: None
    metrics: None
    kv_transfer_params: None
    ec_transfer_params: None
    output_mode: Literal["tokens", "text"]
    choices: list[GenerateTokensChoice] | list[GenerateTextChoice]


class GenerateStreamEvent(ReplyModel):
    """One event of a stream; the last one may have no choices and the usage."""

    request_id: str
    usage: Usage | None
    prompt_token_ids: list[int] | None = None
    output_mode: Literal["tokens", "text"]
    choices: list[GenerateTokensChoice] | list[GenerateTextChoice]


class AbortRequest(RequestModel):
    """The ids of requests that are to end."""

    request_ids: list[str] | str
