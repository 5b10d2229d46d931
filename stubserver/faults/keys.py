"""Faults as a script writes them: one pydantic model a kind, published in the JSON Schema of scripts.

What each of them does to a reply is in stubserver.faults.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema, model_validator

from stubserver.keys.base import Keys, list_of_names, problem, suggest
from stubserver.keys.when import When

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _label(value: Any) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise problem(f"a token is a text or an id, got {value!r}: if it is text, quote it")
    return value


Label = Annotated[int | str, PlainValidator(_label), WithJsonSchema({"type": ["string", "integer"]})]
"""A token as the reply shows it, or its id."""


def _header_value(value: Any) -> str:
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not re.fullmatch(r"[\t -~\xa1-\xff]*", text):
        raise problem(f"has to be a text that a header can have, got {value!r}")
    return text


HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]
HeaderValue = Annotated[str, PlainValidator(_header_value), WithJsonSchema({"type": ["string", "number"]})]


class FaultKeys(Keys):
    """What every fault has: which requests it befalls, and how many of them."""

    times: int | None = Field(None, ge=1, description="How many requests it befalls; left out, every one.")
    after: Count = Field(0, description="How many requests it lets pass first.")
    when: When | None = Field(None, description="Which requests it befalls, as for rules; left out, all.")
    paths: Annotated[list[str], BeforeValidator(list_of_names, json_schema_input_type=str | list[str])] | None = Field(
        None,
        description="Paths that it befalls, `*` for any characters; left out, the generating routes; "
        "for readiness and in the header X-Stub-Faults, every path.",
    )


# Instead of the reply -------------------------------------------------------------------------------------------------


class StatusKeys(FaultKeys):
    """Another status, with an error body."""

    kind: Literal["status"]
    status: int = Field(500, ge=200, le=599, description="The HTTP status.")
    headers: dict[HeaderName, HeaderValue] = Field({}, description="Headers to send, such as Retry-After.")
    body: Any = Field(None, description="A text, or anything else as JSON; left out, an error in vLLM's shape.")
    message: str | None = Field(None, description="The message of that error.")


class ReadinessKeys(FaultKeys):
    """A server that isn't ready yet: 503 everywhere, /health included."""

    kind: Literal["readiness"]
    seconds: Seconds = Field(description="How long, from the moment on which the fault was set or reset.")


class DeadEngineKeys(FaultKeys):
    """The engine dies by a request: this one and every later one, whatever its path, get a 500; /health a 503."""

    kind: Literal["dead_engine"]


# While it is sent -----------------------------------------------------------------------------------------------------


class LatencyKeys(FaultKeys):
    """A slow server. A full reply takes as long as its tokens would."""

    kind: Literal["latency"]
    first: Seconds = Field(0, description="Seconds before the first event.")
    between: Seconds = Field(0, description="Seconds before each later event.")
    jitter: Seconds = Field(0, description="Each pause is longer by up to this, pseudo-randomly.")
    seed: int = Field(0, description="Seeds the jitter: the n-th request has the same pauses in every run.")

    @model_validator(mode="after")
    def _some_pause(self) -> Self:
        if not (self.first or self.between or self.jitter):
            raise problem("needs at least one of first, between, jitter")
        return self


class HangKeys(FaultKeys):
    """The server says nothing (more) until the client leaves."""

    kind: Literal["hang"]
    after_events: Count | None = Field(
        None, description="After so many events; of a full reply, after the headers. Left out, before anything."
    )


class CloseKeys(FaultKeys):
    """The server closes the connection: before the reply, unless something else is given."""

    kind: Literal["close"]
    at: Literal["before_reply", "mid_headers"] | None = Field(None, description="Before the reply's body.")
    after_events: Count | None = Field(
        None, description="After so many events, before [DONE] at the latest; of a full reply, after the headers."
    )
    mid_event: Count | None = Field(
        None, description="In the middle of the event with this index; of a full reply, in the middle of the body."
    )

    @model_validator(mode="after")
    def _one_moment(self) -> Self:
        given = [name for name in ("at", "after_events", "mid_event") if getattr(self, name) is not None]
        if len(given) > 1:
            raise problem(f"needs at most one of at, after_events, mid_event; got {' and '.join(given)}")
        return self


class FramingKeys(FaultKeys):
    """Server-sent events, written and packed in another way."""

    kind: Literal["framing"]
    coalesce: int | None = Field(None, ge=2, description="So many events at once.")
    split: int | None = Field(None, ge=1, description="Pieces of so many bytes, UTF-8 characters cut too.")
    no_space: bool = Field(False, description="No space after `data:`.")
    crlf: bool = Field(False, description="Lines end with CR LF.")
    comments: bool = Field(False, description="A comment, which clients have to skip, before each event.")

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not (self.coalesce or self.split or self.no_space or self.crlf or self.comments):
            raise problem("needs at least one of coalesce, split, no_space, crlf, comments")
        return self


# What the reply says --------------------------------------------------------------------------------------------------


class ContentTypeKeys(FaultKeys):
    """A wrong Content-Type."""

    kind: Literal["content_type"]
    value: HeaderValue = Field("text/plain", description="The content type.")


class ErrorEventKeys(FaultKeys):
    """An error object inside a reply whose status was 200; of a full reply, instead of its body."""

    kind: Literal["error_event"]
    after_events: Count = Field(0, description="After so many events, before [DONE] at the latest.")
    message: str = Field("The engine failed: a fault that was set on stubserver", description="The error's message.")


class NoDoneKeys(FaultKeys):
    """A stream that ends without [DONE]."""

    kind: Literal["no_done"]


class DocumentKeys(FaultKeys):
    """A fault in the JSON of a full reply, or of a stream's events."""

    event: Count | None = Field(None, description="Only in the event with this index; left out, in all of them.")


class MalformedJsonKeys(DocumentKeys):
    """JSON that ends in the middle."""

    kind: Literal["malformed_json"]
    event: Count | None = Field(0, description="In the event with this index; null, in all of them.")


class ChoicesKeys(DocumentKeys):
    """`choices` is empty, null, or missing."""

    kind: Literal["choices"]
    value: Literal["empty", "missing"] | None = Field("empty", description="What becomes of it.")


class UsageKeys(DocumentKeys):
    """`usage` is missing (an event that has nothing else with it), or null."""

    kind: Literal["usage"]
    value: Literal["missing"] | None = Field("missing", description="What becomes of it.")


class LogprobsKeys(DocumentKeys):
    """`logprobs` is null or missing, though they were asked for."""

    kind: Literal["logprobs"]
    value: Literal["missing"] | None = Field(None, description="What becomes of it.")


class MissingStepKeys(DocumentKeys):
    """One token has no entry in the logprobs."""

    kind: Literal["missing_step"]
    step: Count = Field(0, description="Which token's, counted from 0 in each choice.")


class TruncateTopKeys(DocumentKeys):
    """`top_logprobs` has fewer entries than were asked for."""

    kind: Literal["truncate_top"]
    keep: Count = Field(description="How many entries stay, those that came first.")


class DropLabelKeys(DocumentKeys):
    """A token is missing from every `top_logprobs`."""

    kind: Literal["drop_label"]
    label: Label = Field(description="The token as the reply shows it, or its id.")


class ValueKeys(DocumentKeys):
    """Values that are no logprobs."""

    token: Label | None = Field(None, description="Only the values of this token: as the reply shows it, or its id.")


class NanKeys(ValueKeys):
    """`NaN`, which isn't JSON, in place of every value, or of a token's."""

    kind: Literal["nan"]


class MinusInfinityKeys(ValueKeys):
    """`-Infinity`, which isn't JSON, in place of the values of masked tokens (-9999.0), or of a token's."""

    kind: Literal["minus_infinity"]


class SentinelKeys(ValueKeys):
    """A number that stands for minus infinity, in place of the values of masked tokens (-9999.0), or of a token's."""

    kind: Literal["sentinel"]
    value: float = Field(-3.4e38, allow_inf_nan=False, description="The number.")


class DuplicateKeysKeys(DocumentKeys):
    """The first text of each `top_logprobs` stands there twice, the second time with a logprob lower by 1."""

    kind: Literal["duplicate_keys"]


class SortTopByValueKeys(DocumentKeys):
    """`top_logprobs` from the largest value to the smallest, the sampled token no longer first."""

    kind: Literal["sort_top_by_value"]


class DropSampledKeys(DocumentKeys):
    """The sampled token is missing from its own `top_logprobs`."""

    kind: Literal["drop_sampled"]


# All of them ----------------------------------------------------------------------------------------------------------

AnyKind = (
    StatusKeys
    | ReadinessKeys
    | DeadEngineKeys
    | LatencyKeys
    | HangKeys
    | CloseKeys
    | FramingKeys
    | ContentTypeKeys
    | ErrorEventKeys
    | NoDoneKeys
    | MalformedJsonKeys
    | ChoicesKeys
    | UsageKeys
    | LogprobsKeys
    | MissingStepKeys
    | TruncateTopKeys
    | DropLabelKeys
    | NanKeys
    | MinusInfinityKeys
    | SentinelKeys
    | DuplicateKeysKeys
    | SortTopByValueKeys
    | DropSampledKeys
)

KINDS: dict[str, type[FaultKeys]] = {
    get_args(model.model_fields["kind"].annotation)[0]: model for model in get_args(AnyKind)
}
"""Kind → its model."""


def _known_kind(value: Any) -> Any:
    if isinstance(value, dict):
        if "kind" not in value:
            raise problem(f"needs a kind: {', '.join(KINDS)}")
        if value["kind"] not in list(KINDS):
            raise problem(f"{value['kind']!r} is no kind of fault; {suggest(value['kind'], KINDS, 'kinds')}", "kind")
    return value


AnyFault = Annotated[AnyKind, Field(discriminator="kind"), BeforeValidator(_known_kind, json_schema_input_type=AnyKind)]
"""A fault of any kind."""


def check_rule_fault(keys: FaultKeys) -> FaultKeys:
    """Refuse what has no meaning on a rule."""
    if isinstance(keys, ReadinessKeys):
        raise problem("concerns the server: it goes into `faults` at the top of the file", "kind")
    if keys.paths is not None:
        raise problem("a rule's faults befall what the rule answers", "paths")
    return keys
