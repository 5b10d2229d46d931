"""One request and its reply, as they went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter, time
from typing import Any, Final, NamedTuple

from starlette.types import Message, Scope

from stubserver.engine.generate import Generation, Recorder
from stubserver.engine.label_values import LabelValue
from stubserver.engine.model import Model
from stubserver.headers import decoded, without_secrets
from stubserver.journal.generation_record import GenerationRecord, StepRecord
from stubserver.journal.json_values import json_or_text
from stubserver.sampling.params import SamplingParams
from stubserver.script.context import Answer, ScriptRequest
from stubserver.serving.fault_effects import SCOPE_KEY as FAULT_EFFECTS
from stubserver.serving.fault_effects import FaultEffect
from stubserver.serving.framing import EventCutter, Framing

MAX_BODY_BYTES: Final = 256 * 2**10
"""How much of a body is kept."""

_EPOCH = time() - perf_counter()


class StreamEvent(NamedTuple):
    """One server-sent event. seconds: since the request came. data: JSON, or the text if it is none ("[DONE]")."""

    seconds: float
    data: Any


class Entry:
    """One request and its reply, as far as it has come.

    status: None before the reply starts. seconds: what the reply took; None while it runs. failure: the exception that
    ended it, if one did. truncated: whether a body was too long to be kept whole. kept_headers: as they came, without
    what may be a secret. faults: which befell it, and what they did to the reply.
    """

    __slots__ = (
        *("_body", "_framing", "_reply", "_reply_headers", "_room", "_started", "__weakref__"),
        *(
            "failure",
            "faults",
            "generations",
            "kept_headers",
            "method",
            "number",
            "path",
            "seconds",
            "status",
            "truncated",
        ),
    )

    def __init__(self, number: int, scope: Scope, framing: Framing) -> None:
        self.number = number
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.status: int | None = None
        self.seconds: float | None = None
        self.failure: str | None = None
        self.truncated = False
        self.generations: list[GenerationRecord] = []
        self.faults: list[FaultEffect] = scope.setdefault(FAULT_EFFECTS, [])
        self.kept_headers = without_secrets(scope["headers"])
        self._framing = framing
        self._started = perf_counter()
        self._body: list[bytes] = []
        self._reply: list[tuple[float, bytes]] = []
        self._reply_headers: Sequence[tuple[bytes, bytes]] = ()
        self._room = MAX_BODY_BYTES

    @property
    def time(self) -> float:
        """When it came, in seconds since 1970."""
        return _EPOCH + self._started

    def __repr__(self) -> str:
        rule = f", rule {self.rule}" if self.rule else ""
        return f"<{self.number}: {self.method} {self.path} → {self.status or 'no reply'}{rule}>"

    def asked(self, model: Model, request: ScriptRequest, params: SamplingParams) -> None:
        """A new record of a generation that this request asks for."""
        # It isn't given the entry itself: entries are many, and a cycle is freed late.
        record = GenerationRecord(self.kept_headers, model, request, params)
        if self.truncated:
            record.shorten(MAX_BODY_BYTES)
        self.generations.append(record)

    def answered(self, request: ScriptRequest, answer: Answer) -> Recorder:
        """The rule, and the steps from now on."""
        record = self.generations[-1]
        record.rule = answer.rule
        return record.add

    def started(self, generation: Generation) -> None:
        """Its steps are recorded already."""

    def received(self, message: Message) -> None:
        """Take a piece of the request's body."""
        data: bytes = message.get("body", b"")
        self._body.append(data if len(data) <= self._room else self._cut(data))
        self._room = MAX_BODY_BYTES if not message.get("more_body", False) else self._room - len(data)

    def sent(self, message: Message) -> None:
        """Take a piece of the reply."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._reply_headers = without_secrets(message.get("headers", ()))
            return
        now = perf_counter() - self._started
        if data := message.get("body", b""):
            self._reply.append((now, data if len(data) <= self._room else self._cut(data)))
            self._room -= len(data)
        if not message.get("more_body", False):
            self.seconds = now

    def _cut(self, data: bytes) -> bytes:
        self.truncated = True
        return data[: max(0, self._room)]

    def fail(self, error: BaseException) -> None:
        """Note what ended the reply."""
        self.failure = f"{type(error).__name__}: {error}"

    @property
    def headers(self) -> dict[str, str]:
        """The request's, names in lower case, without what may be a secret."""
        return decoded(self.kept_headers)

    @property
    def reply_headers(self) -> dict[str, str]:
        """The reply's, likewise."""
        return decoded(self._reply_headers)

    @property
    def body(self) -> Any:
        """The request's body: JSON, or the text if it is none; None without a body."""
        return json_or_text(b"".join(self._body))

    @property
    def streamed(self) -> bool:
        """Whether the reply came as server-sent events."""
        return self._framing.is_stream(self.reply_headers.get("content-type", ""))

    @property
    def reply(self) -> Any:
        """The full reply's body: JSON, or the text if it is none; None for a stream, which has `events`."""
        return None if self.streamed else json_or_text(b"".join(data for _, data in list(self._reply)))

    @property
    def events(self) -> list[StreamEvent]:
        """The events of a stream, as far as they have come."""
        return list(_read_events(list(self._reply), self._framing)) if self.streamed else []

    @property
    def rule(self) -> str | None:
        """The rule that answered the (first) prompt; None if the default did, or none."""
        return self.generations[0].rule if self.generations else None

    @property
    def steps(self) -> list[StepRecord]:
        """The sampled tokens of the (first) prompt."""
        return self.generations[0].steps if self.generations else []

    def label(self, token: str | int, position: int = 0) -> LabelValue:
        """The values of a token that the request named, by its text or id, at a position of the first choice.

        Raises LookupError, which says what there is instead.
        """
        step = next((step for step in self.steps if (step.choice, step.position) == (0, position)), None)
        if step is None:
            raise LookupError(f"{self!r} has no token at position {position}: {len(self.steps)} were sampled")
        if step.labels is None:
            raise LookupError(f"{self!r} is too old: its rows had to make room for those of later requests")
        found = [value for value in step.labels if token in (value.token, value.token_id)]
        if not found:
            named = ", ".join(f"{value.token!r} ({value.token_id})" for value in step.labels) or "none"
            raise LookupError(f"{self!r} doesn't name {token!r}; the tokens that it names are: {named}")
        return found[0]

    def describe(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "number": self.number,
            "time": self.time,
            "method": self.method,
            "path": self.path,
            "headers": self.headers,
            "body": self.body,
            "status": self.status,
            "reply": self.reply,
            "events": [event._asdict() for event in self.events],
            "seconds": self.seconds,
            "failure": self.failure,
            "truncated": self.truncated,
            "faults": [effect.describe() for effect in list(self.faults)],
            "generations": [record.describe() for record in self.generations],
        }


def _read_events(pieces: Sequence[tuple[float, bytes]], framing: Framing) -> Iterator[StreamEvent]:
    """Every whole event, with the time of the piece that completed it; comments have no data and are left out."""
    cutter = EventCutter()
    for seconds, piece in pieces:
        for event in cutter.feed(piece):
            if data := framing.read(event):
                yield StreamEvent(seconds, json_or_text(data))
