"""POST /inference/v1/generate and POST /inference/v1/abort_requests.

Shapes read in vLLM 0.32.0, `entrypoints/scale_out/token_in_token_out/protocol.py` and `sampling_params.py`.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, InstanceOf, StrictInt, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticKnownError

from stubserver.dialects.vllm.checks import check_values
from stubserver.dialects.vllm.protocol import (
    CacheSalt,
    Priority,
    RepetitionDetectionParams,
    ReplyModel,
    RequestId,
    RequestModel,
    SaltedRequest,
    StreamOptions,
    StructuredOutputsParams,
    Usage,
    read_budget,
)
from stubserver.dialects.vllm.sampling import effective_temperature
from stubserver.sampling.params import SamplingParams as EngineParams


class RequestOutputKind(Enum):
    """What vLLM's engine hands out of an output on its way: its server says that itself."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams(RequestModel):
    """vLLM's own SamplingParams: unlike the OpenAI routes' fields they have vLLM's defaults, not the server's.

    In vLLM's order, in which several errors are listed.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    watermarking: bool | None = None
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
    prompt_logprob_token_ids: list[list[StrictInt]] | None = None
    prompt_logprob_start: int | None = None
    logprob_token_ids: list[int] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stream_interval: int | None = None
    skip_clone: bool = False
    output_text_buffer_length: int = 0
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    extra_args: dict[str, Any] | None = None
    bad_words: list[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetectionParams | None = None
    routed_experts_prompt_start: int = 0
    trace_decode_token_ids: list[int] | None = None

    @model_validator(mode="after")
    def _check(self) -> SamplingParams:
        """Refuse what vLLM refuses as it makes the object. Raises ValidationError."""
        self.thinking_token_budget = read_budget(self.thinking_token_budget)
        check_values(self.params())
        return self

    def params(self) -> EngineParams:
        """The same for the engine, with `max_tokens` null to be resolved."""
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
            prompt_logprob_token_ids=self.prompt_logprob_token_ids,
            prompt_logprob_start=self.prompt_logprob_start,
            logprob_token_ids=self.logprob_token_ids,
            detokenize=self.detokenize,
            skip_special_tokens=self.skip_special_tokens,
            include_stop_str_in_output=self.include_stop_str_in_output,
            stream_interval=self.stream_interval,
            # Not clamped to [-100, 100], as the OpenAI routes' are.
            logit_bias=self.logit_bias,
            allowed_token_ids=self.allowed_token_ids,
            extra_args=self.extra_args,
            bad_words=list(dict.fromkeys(self.bad_words or ())),
            thinking_token_budget=self.thinking_token_budget,
            repetition=self.repetition_detection.params() if self.repetition_detection else None,
            routed_experts_prompt_start=self.routed_experts_prompt_start,
            trace_decode_token_ids=self.trace_decode_token_ids,
        )


def _check_object(value: Any) -> Any:
    if not isinstance(value, dict):
        raise PydanticKnownError("dict_type")
    return value


class PlaceholderRange(RequestModel):
    """Where an image or a sound stands in the prompt."""

    offset: int = Field(ge=0)
    length: int = Field(gt=0)


PerKind = dict[str, list[str | None]]
"""image, audio or video → something of each of these."""


class MultiModalFeatures(RequestModel):
    """What /render says of images and sounds; a model here has none."""

    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[PlaceholderRange]]
    kwargs_data: PerKind | None = None
    mm_metadata: PerKind | None = None

    @model_validator(mode="after")
    def _check_kinds(self) -> MultiModalFeatures:
        kinds = self.mm_hashes.keys()
        if self.mm_placeholders.keys() != kinds:
            raise ValueError("mm_hashes and mm_placeholders must use the same modalities")
        for name in ("kwargs_data", "mm_metadata"):
            given: PerKind | None = getattr(self, name)
            if given is not None and given.keys() != kinds:
                raise ValueError(f"{name} must use the same modalities as mm_hashes")
        for kind, hashes in self.mm_hashes.items():
            if len(hashes) != len(self.mm_placeholders[kind]):
                raise ValueError(f"{kind} mm_hashes and mm_placeholders must have the same length")
        return self


class ReasoningParserKwargs(RequestModel):
    """How the prompt was rendered, for the reasoning parser."""

    model_config = ConfigDict(extra="forbid")

    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)


class GenerateRequest(SaltedRequest):
    """The fields of vLLM's request, in its order, in which several errors are listed."""

    request_id: RequestId = None
    token_ids: list[int] = Field(min_length=1)
    token_offsets: list[tuple[int, int]] | None = None
    features: MultiModalFeatures | None = None
    content_parts: list[dict[str, Any]] | None = None
    # vLLM takes an instance or an object, and its errors tell of both.
    sampling_params: (
        SkipJsonSchema[InstanceOf[SamplingParams]] | Annotated[SamplingParams, BeforeValidator(_check_object)]
    )
    model: str | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: ReasoningParserKwargs | None = None
    return_token_ids: bool | None = None
    output_mode: Literal["tokens", "text"] = "tokens"
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    cache_salt: CacheSalt = None
    priority: Priority = 0
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None

    @field_validator("token_ids")
    @classmethod
    def _check_token_ids(cls, token_ids: list[int]) -> list[int]:
        if min(token_ids) < 0:
            raise ValueError("token_ids must not contain negative values")
        return token_ids

    @model_validator(mode="after")
    def _check_media(self) -> GenerateRequest:
        if self.content_parts and self.features:
            raise ValueError("content_parts and features are mutually exclusive")
        return self

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
