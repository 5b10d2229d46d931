"""The journal: what was asked, what was answered, and why.

While a request runs, references are kept and nothing is computed; everything else is worked out when somebody reads.
What may be a secret (Authorization, API keys, cookies) is left out before anything is kept.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from itertools import count
from math import isfinite
from threading import Lock
from time import perf_counter, time
from typing import Any, Final, NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stubserver.asgi import CONTROL_PREFIX
from stubserver.engine.generate import Generation, Recorder
from stubserver.engine.label_values import LabelValue, asks_for_labels, label_values, labels_asked
from stubserver.engine.model import Model
from stubserver.headers import without_secrets
from stubserver.sampling.logits import Logits
from stubserver.sampling.params import SamplingParams
from stubserver.script.context import Answer, ScriptRequest
from stubserver.script.passed_over import explain_passed_over
from stubserver.serving.observers import observe
from stubserver.tokenizer.protocol import Tokenizer

SCOPE_KEY: Final = "stubserver.journal.journal"
"""Where the scope of a request has its entry."""

MAX_BODY_BYTES: Final = 256 * 2**10
"""How much of a body is kept."""

MAX_ROW_BYTES: Final = 64 * 2**20
"""How much the rows may take that label values are read from; beyond it, the oldest requests lose theirs."""

SMALL_ROW: Final = 256
"""Unmasked tokens of a row that isn't counted: what a label read leaves."""

MAX_STEPS: Final = 4096
"""How many sampled tokens of a prompt are kept."""

MAX_LABEL_STEPS: Final = 64
"""How many of them with the values of the labels."""


_EPOCH = time() - perf_counter()


class Event(NamedTuple):
    """One server-sent event. seconds: since the request came. data: JSON, or the text if it is none ("[DONE]")."""

    seconds: float
    data: Any


class StepRecord(NamedTuple):
    """One sampled token; `position` counts from 0 in its choice.

    labels: the values of the tokens that the request named (allowed_token_ids, logprob_token_ids, logit_bias). None if
    the rows that they were read from had to make room.
    """

    choice: int
    position: int
    token_id: int
    token: str
    labels: list[LabelValue] | None


_Step = tuple[int, int, Logits | None, Logits | None]
"""(choice, token id, raw, processed)."""


class GenerationRecord:
    """What the engine did for one prompt of a request. A beam search has no steps.

    rule: the one that answered; None if the default did, or none. has_own_rows: whether it keeps rows that are worth
    counting: such as nobody else keeps, and that aren't small.
    """

    __slots__ = (
        *("_asked", "_headers", "_label_steps", "_model", "_params", "_path", "_script", "_steps"),
        *("has_own_rows", "prompt", "prompt_token_ids", "rule"),
    )

    def __init__(self, entry: Entry, model: Model, request: ScriptRequest, params: SamplingParams) -> None:
        self.rule: str | None = None
        self.prompt = request.prompt
        self.prompt_token_ids = request.prompt_token_ids
        # Not the entry itself: entries are many, and a cycle is freed late.
        self._path, self._headers = entry.path, entry.kept_headers
        self._model = model
        self._script = model.script
        # Not the request itself: it has all headers.
        self._asked: tuple[str, Mapping[str, Any], bool] | None = (request.model, request.body, request.scores_prompt)
        self._params = params
        self._steps: list[_Step] = []
        self._label_steps = MAX_LABEL_STEPS if asks_for_labels(params) else 0
        self.has_own_rows = False

    def add(self, choice: int, token_id: int, raw: Logits, processed: Logits) -> None:
        """Take a step of the engine."""
        count = len(self._steps)
        if count < self._label_steps:
            self._steps.append((choice, token_id, raw, processed))
            if raw.memo is None or len(processed.values) > SMALL_ROW:
                self.has_own_rows = True
        elif count < MAX_STEPS:
            self._steps.append((choice, token_id, None, None))

    def row_bytes(self) -> int:
        """What the kept rows take. A shared raw row is the script's own, and takes nothing."""
        return sum(_row_bytes(raw, processed) for _, _, raw, processed in self._steps if raw and processed)

    def drop_rows(self) -> None:
        """Give up the rows, and with them the labels' values."""
        self._steps = [(choice, token_id, None, None) for choice, token_id, _, _ in self._steps]

    def shorten(self) -> None:
        """Keep no more of a request that was too long than of its body."""
        self.prompt, self._asked = self.prompt[:MAX_BODY_BYTES], None

    @property
    def model(self) -> str:
        """The name of the model that answered."""
        return self._model.name

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's."""
        return self._model.tokenizer

    @property
    def logprobs_mode(self) -> str:
        """What the model's logprobs report."""
        return self._model.settings.logprobs_mode

    @property
    def wants_logprobs(self) -> bool:
        """Whether the request asked for logprobs of the output."""
        return self._params.wants_logprobs

    @property
    def steps(self) -> list[StepRecord]:
        """The sampled tokens, in the order in which they were sampled."""
        positions: dict[int, Iterator[int]] = {}
        return [self._read(step, next(positions.setdefault(step[0], count()))) for step in list(self._steps)]

    @property
    def outputs(self) -> list[list[int]]:
        """The sampled token ids of each choice."""
        choices: dict[int, list[int]] = {}
        for choice, token_id, _, _ in list(self._steps):
            choices.setdefault(choice, []).append(token_id)
        return [choices[choice] for choice in sorted(choices)]

    @property
    def passed_over(self) -> dict[str, str]:
        """The rules that were tried and didn't match → what differed. Those after the one that matched weren't tried.

        A header that may carry a secret isn't kept, so that its conditions count as failed. Of a request that was too
        long to be kept nothing can be said.
        """
        if self._asked is None:
            return {}
        model, body, scores_prompt = self._asked
        headers = _decoded(self._headers)
        request = ScriptRequest(self._path, model, self.prompt, self.prompt_token_ids, body, headers, scores_prompt)
        return explain_passed_over(self._script, request, self.rule)

    def describe(self) -> dict[str, Any]:
        """All of it as JSON values; a masked token's are null."""
        return {
            "model": self.model,
            "logprobs_mode": self.logprobs_mode,
            "rule": self.rule,
            "passed_over": self.passed_over,
            "prompt": self.prompt,
            "prompt_token_ids": list(self.prompt_token_ids),
            "steps": [_describe_step(step) for step in self.steps],
        }

    def _read(self, step: _Step, position: int) -> StepRecord:
        choice, token_id, raw, processed = step
        tokenizer, asked = self._model.tokenizer, labels_asked(self._params)
        labels = label_values(tokenizer, raw, processed, asked) if raw and processed else None
        return StepRecord(choice, position, token_id, tokenizer.token_text(token_id), labels if asked else [])


class Entry:
    """One request and its reply, as far as it has come.

    status: None before the reply starts. seconds: what the reply took; None while it runs. failure: the exception that
    ended it, if one did. truncated: whether a body was too long to be kept whole. kept_headers: as they came, without
    what may be a secret.
    """

    __slots__ = (
        *("_body", "_reply", "_reply_headers", "_room", "_started", "__weakref__"),
        *("failure", "generations", "kept_headers", "method", "number", "path", "seconds", "status", "truncated"),
    )

    def __init__(self, number: int, scope: Scope) -> None:
        self.number = number
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.status: int | None = None
        self.seconds: float | None = None
        self.failure: str | None = None
        self.truncated = False
        self.generations: list[GenerationRecord] = []
        self.kept_headers = without_secrets(scope["headers"])
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
        record = GenerationRecord(self, model, request, params)
        if self.truncated:
            record.shorten()
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
        return _decoded(self.kept_headers)

    @property
    def reply_headers(self) -> dict[str, str]:
        """The reply's, likewise."""
        return _decoded(self._reply_headers)

    @property
    def body(self) -> Any:
        """The request's body: JSON, or the text if it is none; None without a body."""
        return _json_or_text(b"".join(self._body))

    @property
    def streamed(self) -> bool:
        """Whether the reply came as server-sent events."""
        return self.reply_headers.get("content-type", "").startswith("text/event-stream")

    @property
    def reply(self) -> Any:
        """The full reply's body: JSON, or the text if it is none; None for a stream, which has `events`."""
        return None if self.streamed else _json_or_text(b"".join(data for _, data in list(self._reply)))

    @property
    def events(self) -> list[Event]:
        """The events of a stream, as far as they have come."""
        return list(_events(list(self._reply))) if self.streamed else []

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
            "generations": [record.describe() for record in self.generations],
        }


class Journal:
    """The last `size` requests. One event loop writes; any thread may read and clear."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = Lock()
        self.clear()

    def clear(self) -> None:
        """Forget everything, and count from 1 again."""
        with self._lock:
            self._numbers = count(1)
            self._entries: deque[Entry] = deque(maxlen=self.size)
            self._rows: deque[tuple[GenerationRecord, int]] = deque()
            self._row_bytes = 0

    def open(self, scope: Scope) -> Entry:
        """A new entry for a request that has just come."""
        entry = Entry(next(self._numbers), scope)
        self._entries.append(entry)
        return entry

    def count_rows(self, record: GenerationRecord) -> None:
        """Count the rows of a generation that has ended; the oldest ones make room if they are too many."""
        with self._lock:
            self._rows.append((record, record.row_bytes()))
            self._row_bytes += self._rows[-1][1]
            while self._row_bytes > MAX_ROW_BYTES:
                oldest, size = self._rows.popleft()
                self._row_bytes -= size
                oldest.drop_rows()

    def entries(self) -> list[Entry]:
        """All entries, the oldest first."""
        return list(self._entries)

    @property
    def forgotten(self) -> int:
        """How many requests had to make room for later ones."""
        entries = self.entries()
        return entries[0].number - 1 if entries else 0


class JournalMiddleware:
    """Writes down what passes. A reply is written down before it goes out: who has it finds it in the journal."""

    def __init__(self, app: ASGIApp, journal: Journal) -> None:
        self._app = app
        self._journal = journal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through."""
        if scope["type"] != "http" or scope["path"].startswith(CONTROL_PREFIX):
            await self._app(scope, receive, send)
            return
        entry = self._journal.open(scope)
        observe(scope, entry)

        async def receiving() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                entry.received(message)
            return message

        def sending(message: Message) -> Awaitable[None]:
            entry.sent(message)
            return send(message)

        try:
            await self._app(scope, receiving, sending)
        except BaseException as error:
            entry.fail(error)
            raise
        finally:
            for record in entry.generations:
                if record.has_own_rows:
                    self._journal.count_rows(record)


_EVENT = re.compile(rb"(.*?)(?:\r\n\r\n|\n\n|\r\r)", re.DOTALL)


def _events(pieces: Sequence[tuple[float, bytes]]) -> Iterator[Event]:
    """Every whole event, with the time of the piece that completed it; comments have no data and are left out."""
    rest = iter(pieces)
    seconds, received = 0.0, 0
    for event in _EVENT.finditer(b"".join(data for _, data in pieces)):
        while received < event.end():
            seconds, piece = next(rest)
            received += len(piece)
        lines = event[1].decode("utf-8", "replace").splitlines()
        data = [line.removeprefix("data:").removeprefix(" ") for line in lines if line.startswith("data:")]
        if data:
            yield Event(seconds, _json_or_text("\n".join(data).encode()))


def _row_bytes(raw: Logits, processed: Logits) -> int:
    own = [] if raw.memo is not None else [raw]
    return sum(row.values.nbytes for row in (*own, *([] if processed is raw else [processed])))


def _json_or_text(data: bytes) -> Any:
    if not data:
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data.decode("utf-8", "replace")


def _decoded(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}


def _describe_step(step: StepRecord) -> dict[str, Any]:
    labels = None if step.labels is None else [describe_label(value) for value in step.labels]
    return {**step._asdict(), "labels": labels}


def describe_label(value: LabelValue) -> dict[str, Any]:
    """A label's values as JSON: null for what is masked."""
    return no_infinity(value._asdict())


def no_infinity(values: dict[str, Any]) -> dict[str, Any]:
    """The values, null for what isn't finite, which JSON can't carry."""
    return {name: None if isinstance(value, float) and not isfinite(value) else value for name, value in values.items()}
