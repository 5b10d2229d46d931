"""Scripts made from recordings: values that rest on tokens which were never recorded are refused, or marked.

A row of such a script names the recorded tokens; all others have one and the same value, their share of what is left of
1, by which they are told. What a reply may show without an invented number:

- raw values of recorded tokens, for they are the recording's own; of the likeliest ones as many as are known without a
  gap, which the rule's name says for each step (`recorded, top 5 5 1`);
- processed values where `allowed_token_ids` keeps recorded tokens only, for a softmax over those needs no others;
- the likeliest token, and what follows it, as far as that was recorded.

Everything else is refused with a 404, or goes out with a header that says what it rests on.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stubserver.config.settings import Settings
from stubserver.errors import UnrecordedError
from stubserver.sampling.logits import Logits
from stubserver.script.context import Answer, Context, Script, ScriptRequest
from stubserver.tokenizer.protocol import Tokenizer

HEADER = b"x-stub-recorded"
EXACT = "exact"

ROUTES = (
    *("/v1/completions", "/v1/chat/completions", "/v1/chat/completions/batch"),
    *("/inference/v1/generate", "/generative_scoring"),
)
"""Where the tokens that a reply shows can be told from the request."""

ASKED_IDS = ("allowed_token_ids", "logprob_token_ids", "label_token_ids")
PENALTIES = {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1}
MOVERS: dict[str, Any] = {"logit_bias": {}, "bad_words": [], "min_tokens": 0}
"""Fields that may take the likeliest token its place, and what they are without effect."""

MASKS = {"top_p": 1, "min_p": 0}

_notes: ContextVar[list[str] | None] = ContextVar("recorded_notes", default=None)
"""What the values of the reply that is being made rest on; None where nobody wants to know."""


_NAME = re.compile(r"recorded, top ([\d ]+)")


def recorded_name(known_tops: Iterable[int]) -> str:
    """The name of a rule of which so many of the likeliest tokens are known, step by step."""
    return f"recorded, top {' '.join(map(str, known_tops))}"


class Served(Protocol):
    """What has to be known of what is served; another script may change it."""

    @property
    def marks_recorded(self) -> bool:
        """Whether a model's script is made from recordings."""
        ...


class RecordedMiddleware:
    """Says in a header whether a reply's values are exact: `exact`, or what they rest on."""

    def __init__(self, app: ASGIApp, served: Served) -> None:
        self._app = app
        self._served = served

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer the request, the header added where a recorded script took part."""
        answer = self._mark if self._served.marks_recorded else self._app
        return answer(scope, receive, send)

    async def _mark(self, scope: Scope, receive: Receive, send: Send) -> None:
        notes: list[str] = []
        _notes.set(notes)

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start" and notes and message["status"] == 200:
                found = "; ".join(dict.fromkeys(note for note in notes if note != EXACT)) or EXACT
                message = {**message, "headers": [*message["headers"], (HEADER, found.encode("ascii", "replace"))]}
            await send(message)

        await self._app(scope, receive, send_marked)


class RecordedScript:
    """The `Script` protocol over a script of recordings."""

    def __init__(self, script: Script, tokenizer: Tokenizer, settings: Settings) -> None:
        self._script = script
        self._tokenizer = tokenizer
        self._settings = settings

    @property
    def vocab_size(self) -> int:
        """V: the length of every row."""
        return self._script.vocab_size

    @property
    def has_faults(self) -> bool:
        """Whether a rule has faults."""
        return self._script.has_faults

    def bind(self, request: ScriptRequest) -> Answer:
        """What answers this request. Raises UnrecordedError, by what the first row and the request tell."""
        answer = self._script.bind(request)
        checked = _CheckedAnswer(answer, request, self._settings, self._tokenizer)
        checked.check()
        return answer._replace(next_logits=checked.next_logits)


@lru_cache(maxsize=64)
def recorded_ids(logits: Logits) -> frozenset[int]:
    """The tokens of a row that were recorded: all whose value isn't the one that the others share."""
    values, counts = np.unique(logits.values, return_counts=True)
    shared = values[counts.argmax()]
    if counts.max() == 1:
        return frozenset(range(logits.vocab_size))
    return frozenset(np.flatnonzero(logits.values != shared).tolist())


class _CheckedAnswer:
    """One request's way through the recordings."""

    def __init__(self, answer: Answer, request: ScriptRequest, settings: Settings, tokenizer: Tokenizer) -> None:
        self._answer = answer
        self._request = request
        self._settings = settings
        self._tokenizer = tokenizer
        # /inference/v1/generate has what the others have beside the prompt in an object of its own.
        self._body = {**request.body, **(request.body.get("sampling_params") or {})}
        self._tops: dict[int, int] = {}
        named = _NAME.search(answer.rule or "")
        self._known_tops = [int(count) for count in named[1].split()] if named else None

    def check(self) -> None:
        """What can be said before the first token."""
        _note(EXACT)
        body, ids = self._body, self._request.prompt_token_ids
        row = self._answer.next_logits(Context(self._request, ids, (), self._settings.seed))
        for problem in self._problems(body, row, 0):
            self._object(problem)
        for dependence in self._dependences(body):
            _note(dependence)

    def next_logits(self, context: Context) -> Logits:
        """The recorded row after this context. Raises UnrecordedError."""
        row, position = self._answer.next_logits(context), len(context.output_token_ids)
        if len(context.prompt_token_ids) < len(self._request.prompt_token_ids):
            return row  # a prompt that is scored: refused, or marked, from the start
        self._tops[position] = int(row.values.argmax())
        self._check_path(context.output_token_ids)
        if position:
            for problem in self._problems(self._body, row, position):
                self._object(problem)
        return row

    def _check_path(self, output: Sequence[int]) -> None:
        """A row says what follows the tokens that were recorded before it, and no others."""
        for position, token_id in enumerate(output):
            if self._tops.get(position, token_id) != token_id:
                self._object(f"nothing was recorded after {self._shown([token_id])} as token {position} of the output")

    def _problems(self, body: Mapping[str, Any], row: Logits, position: int) -> Iterator[str]:
        """What of the request can't be answered from this row."""
        known, top = recorded_ids(row), self._known_top(row, position)
        asked = [*_asked_ids(body), *(self._choice_starts(body) if not position else ())]
        missing = [token_id for token_id in asked if token_id not in known]
        if missing:
            yield f"{self._shown(missing)} was never recorded here; recorded is {self._shown(sorted(known))}"
        if self._request.endpoint not in ROUTES:
            yield f"{self._request.endpoint} asks for more than a recording tells"
        if self._request.scores_prompt:
            yield "the values of a prompt's own tokens are not in the script"
        restricted = _is_restricted(body)
        if self._count(body) > top and not (restricted and self._is_processed):
            yield f"{self._count(body)} top logprobs are asked for, and {top} were recorded without a gap"
        if not restricted:
            yield from self._open_draws(body, row, top)

    def _known_top(self, row: Logits, position: int) -> int:
        """How many of the likeliest tokens of all are recorded. Without a word of it: those above all that is left."""
        if self._known_tops is not None and position < len(self._known_tops):
            return self._known_tops[position]
        probs = np.exp(row.logprobs[list(recorded_ids(row))].astype(np.float64))
        return int((probs >= 1 - probs.sum()).sum())

    def _open_draws(self, body: Mapping[str, Any], row: Logits, top: int) -> Iterator[str]:
        """Why a token that was never recorded may come out."""
        movers = [name for name, neutral in (PENALTIES | MOVERS).items() if body.get(name) not in (None, neutral)]
        if not top:
            yield "the likeliest token was not recorded; allowed_token_ids chooses among those that were"
        elif movers:
            yield f"{', '.join(movers)} may bring up a token that was never recorded"
        elif _is_grammar(body) or not self._choice_is_sure(body, row):
            yield "a grammar may allow tokens that were never recorded; allowed_token_ids says which are meant"
        elif self._temperature(body) != 0 and not 0 < (body.get("top_k") or 0) <= top:
            yield (
                f"temperature {self._temperature(body):g} may draw a token that was never recorded: "
                "send temperature 0, allowed_token_ids, or a top_k"
            )

    def _choice_is_sure(self, body: Mapping[str, Any], row: Logits) -> bool:
        """Whether the likeliest label beats every unrecorded token, for a choice may begin with a part of a label."""
        probs = np.exp(row.logprobs.astype(np.float64))
        left = 1 - probs[list(recorded_ids(row))].sum()
        starts = self._choice_starts(body)
        return not starts or bool(max(probs[token_id] for token_id in starts) >= left)

    def _dependences(self, body: Mapping[str, Any]) -> Iterator[str]:
        """What goes out although it rests on how the tokens that weren't recorded share what is left."""
        if self._settings.logprobs_mode.endswith("logits"):
            yield "rests on unrecorded values: logprobs stand for logits"
        if not self._is_processed or _is_restricted(body):
            return
        bent = [name for name, neutral in (PENALTIES | MASKS).items() if body.get(name) not in (None, neutral)]
        bent += ["temperature"] if self._temperature(body) not in (0, 1) else []
        bent += [name for name in ("top_k", "logit_bias", "bad_words") if body.get(name)]
        bent += ["a grammar"] if _is_grammar(body) or _choices(body) else []
        if bent:
            yield f"rests on unrecorded tokens: {', '.join(bent)}"

    def _object(self, problem: str) -> None:
        if self._settings.unrecorded == "refuse":
            raise UnrecordedError(
                f"The answer would rest on what was never recorded: {problem}. "
                "Record it, or serve with --unrecorded mark."
            )
        _note(f"rests on unrecorded tokens: {problem}")

    @property
    def _is_processed(self) -> bool:
        return self._settings.logprobs_mode.startswith("processed")

    def _temperature(self, body: Mapping[str, Any]) -> float:
        default = self._settings.override_generation_config.temperature
        given = body.get("temperature")
        return float(given if given is not None else 1.0 if default is None else default)

    def _count(self, body: Mapping[str, Any]) -> int:
        """How many top logprobs the request wants to see; -1 is all of them."""
        wanted = body.get("top_logprobs") if "messages" in body else body.get("logprobs")
        count = wanted if isinstance(wanted, int) and not isinstance(wanted, bool) else 0
        return self._answer_width if count == -1 else 0 if body.get("logprob_token_ids") else count

    @property
    def _answer_width(self) -> int:
        return self._tokenizer.vocab_size

    def _choice_starts(self, body: Mapping[str, Any]) -> list[int]:
        """The first tokens of the labels of a structured choice."""
        return [self._tokenizer.encode(choice, add_special_tokens=False)[0] for choice in _choices(body) if choice]

    def _shown(self, token_ids: Sequence[int]) -> str:
        names = [f"{self._tokenizer.decode([token_id])!a} ({token_id})" for token_id in token_ids[:8]]
        return ", ".join(names) + (f" and {len(token_ids) - 8} more" if len(token_ids) > 8 else "")


def _note(text: str) -> None:
    notes = _notes.get()
    if notes is not None:
        notes.append(text)


def _asked_ids(body: Mapping[str, Any]) -> list[int]:
    """The tokens that the request names."""
    named = [token_id for name in ASKED_IDS for token_id in body.get(name) or ()]
    return [int(token_id) for token_id in [*named, *(body.get("logit_bias") or ())]]


def _is_restricted(body: Mapping[str, Any]) -> bool:
    return bool(body.get("allowed_token_ids"))


def _choices(body: Mapping[str, Any]) -> list[str]:
    return list((body.get("structured_outputs") or {}).get("choice") or ())


def _is_grammar(body: Mapping[str, Any]) -> bool:
    structured = body.get("structured_outputs") or {}
    kind = (body.get("response_format") or {}).get("type", "text")
    return kind != "text" or any(value for name, value in structured.items() if name != "choice")
