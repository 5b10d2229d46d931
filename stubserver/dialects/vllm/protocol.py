"""What several routes share."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticKnownError

from stubserver.engine.behaviour import RequestedConstraint
from stubserver.errors import GenerationError, ValidationError
from stubserver.sampling.params import Repetition

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAX_STOP_STRINGS = 4
MAX_SALT_CHARS = 128

StopParam: TypeAlias = str | Annotated[list[str], Field(max_length=MAX_STOP_STRINGS)] | None


class RequestModel(BaseModel):
    """A request body. Fields that vLLM doesn't know are accepted and ignored."""

    model_config = ConfigDict(extra="ignore", defer_build=True)


class ReplyModel(BaseModel):
    """A reply body; it documents (openapi.json) and tests the replies, which are built as plain dicts."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


@dataclass
class RepetitionDetectionParams:
    """`repetition_detection`: which repeated patterns end an output. Its name is in vLLM's errors."""

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    def __post_init__(self) -> None:
        """Raise ValidationError for sizes and counts that vLLM refuses."""
        if not 0 <= self.min_pattern_size <= self.max_pattern_size:
            raise ValidationError(
                "max_pattern_size, min_pattern_size must be >=0, with min_pattern_size <= max_pattern_size. "
                "Set both to 0 to disable repetitive pattern detection."
            )
        if self.max_pattern_size and self.min_count < 2:
            raise ValidationError(
                "min_count must be >= 2 to detect repetitive patterns in engine output. If you do not wish to detect "
                "repetitive patterns, set max_pattern_size to 0."
            )

    def params(self) -> Repetition:
        """The same for the engine."""
        return Repetition(self.max_pattern_size, self.min_pattern_size, self.min_count)


def read_budget(value: Any) -> int | None:
    """`thinking_token_budget`, where -1 is none at all. Raises ValidationError for what vLLM refuses."""
    if value is None or (type(value) is int and value >= -1):
        return None if value == -1 else value
    message = "`thinking_token_budget` must be a non-negative integer or -1 for unlimited."
    raise ValidationError(message, parameter="thinking_token_budget", value=value)


def _read_id(value: Any) -> Any:
    if value is None:
        raise PydanticKnownError("string_type")
    return value


RequestId = Annotated[str | None, BeforeValidator(_read_id, json_schema_input_type=str)]
"""None where the request has none, which isn't null; the reply's is a random one then."""


Priority = Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX)]

CacheSalt = Annotated[str, Field(min_length=1, max_length=1024)] | None

StreamInterval = Annotated[int, Field(ge=1)] | None

ThinkingTokenBudget = Annotated[int | None, BeforeValidator(read_budget, json_schema_input_type=int | None)]

ExtraArgs = dict[str, str | int | float | list[str | int | float]]


class VllmFields(RequestModel):
    """Fields of vLLM's own: of the right type, or refused as vLLM does. Most have no effect here (docs/routes.md)."""

    cache_salt: CacheSalt = None
    ec_transfer_params: dict[str, Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    mm_payload: Literal["tensors", "none"] = "tensors"
    priority: Priority = 0
    repetition_detection: RepetitionDetectionParams | None = None
    return_mm_kwargs: bool | None = None
    return_token_offsets: bool | None = False
    routed_experts_prompt_start: int = Field(0, ge=0)
    session_id: str | None = None
    spaces_between_special_tokens: bool = True
    stream_interval: StreamInterval = None
    thinking_token_budget: ThinkingTokenBudget = None
    user: str | None = None
    vllm_xargs: ExtraArgs | None = None
    watermarking: bool | None = None


def check_cache_salt(data: dict[str, Any]) -> None:
    """Refuse a salt that isn't one. Raises ValidationError."""
    salt = data.get("cache_salt")
    if salt is None:
        return
    if not (isinstance(salt, str) and salt):
        message = "Parameter 'cache_salt' must be a non-empty string if provided."
        raise ValidationError(message, parameter="cache_salt")
    if len(salt) > MAX_SALT_CHARS or set(salt) & set("@/\\\0"):
        message = (
            f"Parameter 'cache_salt' must be at most {MAX_SALT_CHARS} characters and must not contain "
            "'@', '/', '\\\\', or NUL."
        )
        raise ValidationError(message, parameter="cache_salt")


class SaltedRequest(RequestModel):
    """A body whose `cache_salt` is checked before its types are."""

    @model_validator(mode="before")
    @classmethod
    def _check_cache_salt(cls, data: Any) -> Any:
        if isinstance(data, dict):
            check_cache_salt(data)
        return data


class StreamOptions(RequestModel):
    """Whether a stream reports usage: in a last event, and in every one."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class JsonSchemaResponseFormat(RequestModel):
    """`response_format.json_schema`."""

    name: str
    description: str | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(RequestModel):
    """`response_format` of OpenAI."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaResponseFormat | None = None


class StructuralTagResponseFormat(RequestModel):
    """`response_format` of type structural_tag."""

    type: Literal["structural_tag"]
    format: Any


class LegacyStructuralTag(RequestModel):
    """One structure of the older form."""

    begin: str
    structural_tag_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    end: str


class LegacyStructuralTagResponseFormat(RequestModel):
    """The older form of structural_tag."""

    type: Literal["structural_tag"]
    structures: list[LegacyStructuralTag]
    triggers: list[str]


AnyResponseFormat: TypeAlias = ResponseFormat | StructuralTagResponseFormat | LegacyStructuralTagResponseFormat


@dataclass
class StructuredOutputsParams:
    """`structured_outputs`: exactly one constraint, and how to write JSON."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None

    def __post_init__(self) -> None:
        """Raise ValidationError unless exactly one constraint is given."""
        given = sum(value is not None for value in self._constraints().values())
        if given == 1:
            return
        shown = self.shown()
        if given > 1:
            message = f"You can only use one kind of structured outputs constraint but multiple are specified: {shown}"
        else:
            message = f"You must use one kind of structured outputs constraint but none are specified: {shown}"
        raise ValidationError(message)

    def shown(self) -> dict[str, Any]:
        """As vLLM shows it: with two private fields."""
        return {**asdict(self), "_backend": None, "_backend_was_auto": False}

    def constraint(self) -> tuple[str, Any]:
        """(kind, value) of the one constraint."""
        return next((kind, value) for kind, value in self._constraints().items() if value is not None)

    def _constraints(self) -> dict[str, Any]:
        kinds = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
        return {kind: getattr(self, kind) for kind in kinds}


def requested_structured_outputs(
    structured_outputs: StructuredOutputsParams | None, response_format: AnyResponseFormat | None
) -> StructuredOutputsParams | None:
    """The request's constraint, in whichever way it was asked for. Raises ValidationError for two of them, or none."""
    return structured_outputs if response_format is None else _with_format(structured_outputs, response_format)


def requested_constraint(
    structured_outputs: StructuredOutputsParams | None, response_format: AnyResponseFormat | None
) -> RequestedConstraint | None:
    """(kind, value) of the same, or None. Raises ValidationError likewise."""
    given = requested_structured_outputs(structured_outputs, response_format)
    return given.constraint() if given else None


def _with_format(
    given: StructuredOutputsParams | None, response_format: AnyResponseFormat
) -> StructuredOutputsParams | None:
    """Both as one. Raises ValidationError if they are two constraints, or none."""
    if not isinstance(response_format, ResponseFormat):
        fields: dict[str, Any] = {"structural_tag": _as_text(response_format)}
    else:
        if response_format.type == "text":
            return given
        schema = response_format.json_schema
        fields = (
            {"json": schema and schema.json_schema} if response_format.type == "json_schema" else {"json_object": True}
        )
    return replace(given, **fields) if given else StructuredOutputsParams(**fields)


def _as_text(tag: StructuralTagResponseFormat | LegacyStructuralTagResponseFormat) -> str:
    return json.dumps(tag.model_dump(by_alias=True))


def check_stream_options(data: dict[str, Any]) -> None:
    """Refuse stream options without a stream. Raises ValidationError."""
    if data.get("stream_options") and not data.get("stream"):
        raise ValidationError("Stream options can only be defined when `stream=True`.", parameter="stream_options")


def check_structured_outputs(data: dict[str, Any]) -> None:
    """Refuse more than one constraint, and what is no structural tag.

    Raises ValidationError; for what is no object GenerationError, as vLLM fails.
    """
    given = data.get("structured_outputs")
    if given is None:
        return
    if not isinstance(given, dict):
        raise GenerationError(f"'{type(given).__name__}' object has no attribute 'get'")
    if sum(given.get(kind) is not None for kind in ("json", "regex", "choice")) > 1:
        message = "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice')."
        raise ValidationError(message, parameter="structured_outputs")
    check_tag_of_structured_outputs(given)


def check_tag_of_structured_outputs(given: Any) -> None:
    """Refuse what is no structural tag. Raises ValidationError."""
    tag = given.get("structural_tag") if isinstance(given, dict) else getattr(given, "structural_tag", None)
    if tag is not None:
        _check_structural_tag(tag, "structured_outputs")


def _check_structural_tag(text: Any, parameter: str) -> None:
    # Grammars are loaded with the first constraint.
    from stubserver.dialects.vllm.structured_outputs import check_structural_tag

    check_structural_tag(text, parameter)


def check_response_format(data: dict[str, Any]) -> None:
    """Refuse a JSON schema that isn't there, and what is no structural tag. Raises ValidationError."""
    given = data.get("response_format")
    check_tag_of_response_format(given)
    if isinstance(given, dict) and given.get("type") == "json_schema" and given.get("json_schema") is None:
        message = "When response_format type is 'json_schema', the 'json_schema' field must be provided."
        raise ValidationError(message, parameter="response_format")


def check_tag_of_response_format(given: Any) -> None:
    """Refuse what is no structural tag. Raises ValidationError."""
    if not (isinstance(given, dict) and given.get("type") == "structural_tag"):
        return
    from stubserver.dialects.vllm.structured_outputs import no_structural_tag

    try:
        _check_structural_tag(_as_text(_TAG_RESPONSE_FORMAT.validate_python(given)), "response_format")
    except ValueError as error:
        raise no_structural_tag("response_format") from error


_TAG_RESPONSE_FORMAT: TypeAdapter[StructuralTagResponseFormat | LegacyStructuralTagResponseFormat] = TypeAdapter(
    StructuralTagResponseFormat | LegacyStructuralTagResponseFormat
)


class PromptTokensDetails(ReplyModel):
    """Where prompt tokens came from."""

    cached_tokens: int | None = None
    created_cache_tokens: int | None = None
    multimodal_tokens: dict[str, int] | None = None


class CompletionTokensDetails(ReplyModel):
    """What output tokens were spent on."""

    reasoning_tokens: int


class Usage(ReplyModel):
    """Token counts."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class ErrorInfo(ReplyModel):
    """What is wrong."""

    message: str
    type: str
    param: str | None
    code: int


class ErrorReply(ReplyModel):
    """vLLM's error body."""

    error: ErrorInfo


class PromptLogprob(ReplyModel):
    """One entry of a prompt token's logprobs."""

    logprob: float
    rank: int
    decoded_token: str
