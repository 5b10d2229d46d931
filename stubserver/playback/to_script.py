"""A script out of recorded logprobs, so that other requests than the recorded ones can be answered.

A recorded row names some tokens and their logprobs; the tokens that it doesn't name share what is left of 1. The script
says `unrecorded: refuse`, so that no value which rests on those goes out as if it had been recorded, and each rule has
in `recorded` what can be told of it: see stubserver.engine.recorded.
A row says what follows the tokens before it, so a script can go on only where the recorded tokens were the likeliest.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from math import exp, fsum
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from stubserver.errors import TokenizerError
from stubserver.playback.canonical import parse_json
from stubserver.playback.cassette import Cassette
from stubserver.playback.errors import CassetteError
from stubserver.playback.exchange import Exchange, Reply
from stubserver.sampling.logprobs import LogprobsMode
from stubserver.script.tokens import TokenReader
from stubserver.serving.wire import Document, LeftOutError, Position, RecordedRequest, Wire
from stubserver.tokenizer.hf import HFTokenizer, load_tokenizer

SUM_TOLERANCE = 1e-6
"""How far a sum of probabilities may be above 1; a little more is the rounding of many float32 values."""


@dataclass
class Made:
    """The script as YAML, and what went into it."""

    text: str
    rules: int
    steps: int
    tokens: int
    left_out: list[str]


def make_script(cassette: Cassette, wire: Wire, tokenizer: str, mode: LogprobsMode) -> Made:
    """The script of what the cassette holds. `tokenizer`: as the setting; it has to be the recorded model's.

    wire: the recorded server's; mode: its logprobs mode, of the two that report logprobs. Raises TokenizerError, and
    CassetteError if there are no logprobs at all.
    """
    reading = _Reading(wire, load_tokenizer(tokenizer), mode)
    left_out: defaultdict[str, list[int]] = defaultdict(list)
    for number, exchange in enumerate(cassette.exchanges, 1):
        try:
            reading.add(exchange)
        except (LeftOutError, TokenizerError) as error:
            left_out[str(error)].append(number)
    if not reading.rows:
        raise CassetteError(f"{cassette.path}: no exchange has logprobs that a script could be made of")
    rules = [reading.rule(rows) for rows in reading.rows.values()]
    file = {**_settings(cassette, tokenizer, mode), "rules": rules, "default": "error"}
    steps = [step for rule in rules for step in rule["steps"]]
    text = yaml.safe_dump(file, allow_unicode=True, sort_keys=False, width=120)
    notes = [f"exchange {', '.join(map(str, numbers))}: {reason}" for reason, numbers in left_out.items()]
    head = f"# Made by `stubserver cassette to-script` from {cassette.path.name}.\n"
    return Made(head + text, len(rules), len(steps), sum(len(_listed(step)) for step in steps), notes)


def _settings(cassette: Cassette, tokenizer: str, mode: LogprobsMode) -> dict[str, Any]:
    models = cassette.upstream.get("models")
    entries = models.get("data") if isinstance(models, dict) else None
    found: dict[str, Any] = {"served_model_name": [entry["id"] for entry in entries]} if entries else {}
    if entries and entries[0].get("max_model_len"):
        found["max_model_len"] = entries[0]["max_model_len"]
    where = tokenizer if tokenizer == "builtin" else str(Path(tokenizer).expanduser().resolve())
    return {**found, "tokenizer": where, "logprobs_mode": mode, "unrecorded": "refuse"}


def _listed(step: Mapping[str, Any]) -> Mapping[str, float]:
    values: Mapping[str, float] = step.get("logprobs") or step["logits"]
    return values


class _Row(NamedTuple):
    """A recorded position: the token that was generated, and token id → logprob.

    known_top: how many of the likeliest tokens of all are among them, without a gap.
    """

    token_id: int
    logprobs: Mapping[int, float]
    known_top: int


@dataclass
class _Rows:
    """The rows after one prompt, by the tokens before them."""

    when: Mapping[str, Any]
    after: dict[tuple[int, ...], dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    known_top: dict[tuple[int, ...], int] = field(default_factory=lambda: defaultdict(int))
    ends: set[tuple[int, ...]] = field(default_factory=set)

    def add(self, rows: Sequence[_Row], *, ended: bool) -> None:
        """Take up the rows of an output, from its first token on. ended: by the model's own end of sequence."""
        path: tuple[int, ...] = ()
        for row in rows:
            self.after[path].update(row.logprobs)
            self.known_top[path] = max(self.known_top[path], row.known_top)
            path = (*path, row.token_id)
        if ended:
            self.ends.add(path)

    def chain(self) -> Iterator[tuple[int, ...]]:
        """The paths to the first row and to those after the likeliest tokens; the last path may have no row."""
        path: tuple[int, ...] = ()
        while path in self.after:
            yield path
            if not self.known_top[path]:
                return
            row = self.after[path]
            path = (*path, max(row, key=lambda token_id: (row[token_id], -token_id)))
        yield path


class _Reading:
    """Collects rows, exchange by exchange."""

    def __init__(self, wire: Wire, tokenizer: HFTokenizer, mode: LogprobsMode) -> None:
        self._wire = wire
        self._tokenizer = tokenizer
        self._tokens = TokenReader(tokenizer, tokenizer.vocab_size)
        self._mode = mode
        self.rows: dict[str, _Rows] = {}

    def add(self, exchange: Exchange) -> None:
        """Take up what an exchange says. Raises LeftOutError and TokenizerError."""
        body = _json_object(exchange.request.body)
        asked = self._wire.read_request(exchange.request.path, body)
        if exchange.reply.status != 200:
            raise LeftOutError("no logprobs in it")
        self._check(asked)
        document = self._document(exchange.reply)
        endings = self._wire.read_endings(document, body)
        for choice, ended in zip(self._wire.read_choices(document), endings, strict=True):
            if not choice.positions:
                raise LeftOutError("no logprobs in it")
            when = asked.when[choice.index // asked.choices]
            rows = self.rows.setdefault(json.dumps(when, sort_keys=True), _Rows(when))
            rows.add(list(self._read_rows(choice.positions, asked)), ended=ended)

    def _check(self, asked: RecordedRequest) -> None:
        if self._mode == "processed_logprobs" and (asked.moved or asked.temperature not in (0, 1)):
            why = ", ".join(asked.moved) or "its temperature"
            raise LeftOutError(f"processed logprobs are not the model's with {why}")

    def _document(self, reply: Reply) -> Document:
        """The full reply."""
        if not reply.events:
            return _json_object(reply.body)
        framing = self._wire.framing
        data = [framing.read(event.data) for event in reply.events if not framing.is_done(event.data)]
        try:
            return self._wire.fold([parse_json(each) for each in data if each])
        except (ValueError, KeyError, TypeError, IndexError):
            raise LeftOutError("its stream can't be put together") from None

    def _read_rows(self, positions: Sequence[Position], asked: RecordedRequest) -> Iterator[_Row]:
        for position in positions:
            token_id = self._token_id(position.token)
            if token_id is None or position.logprob is None:
                return  # what follows it can't be placed
            own = (position.token, position.logprob)
            top = [(each.token, each.logprob) for each in position.top or ()]
            named = {self._token_id(token): logprob for token, logprob in [*top, own] if logprob > self._wire.masked}
            row = {known: logprob for known, logprob in named.items() if known is not None}
            ranked = _ranked(*own, top)[: len(top) if asked.top is None else asked.top]
            known_top = len(list(takewhile(lambda token: self._token_id(token) is not None, ranked)))
            yield _Row(token_id, row, max(known_top, int(asked.greedy)))

    def _token_id(self, shown: str) -> int | None:
        """The token that a reply shows like this; None for one whose bytes are no text."""
        token_id = self._wire.read_token_id(shown)
        try:
            return self._tokens.read(f"text:{shown}" if token_id is None else token_id)
        except TokenizerError:
            return None

    def rule(self, rows: _Rows) -> dict[str, Any]:
        """The rows of a prompt as a rule of the script."""
        paths = list(rows.chain())
        whole = paths[-1] in rows.ends and self._tokenizer.eos_token_id is not None
        steps = [path for path in paths if path in rows.after]
        return {
            "when": rows.when,
            "recorded": {"top_logprobs": [rows.known_top[path] for path in steps]},
            "steps": [self._step(rows.after[path]) for path in steps],
            "then": "eos" if whole else "error",
        }

    def _step(self, row: Mapping[int, float]) -> dict[str, Any]:
        ordered = sorted(row.items(), key=lambda item: -item[1])
        named = {self._name(token_id): value for token_id, value in ordered}
        total = fsum(exp(value) for value in row.values())
        return {"logits": named, "rest": "-inf"} if total > 1 + SUM_TOLERANCE else {"logprobs": named}

    def _name(self, token_id: int) -> str:
        text = self._tokenizer.decode([token_id])
        return text if self._token_id(text) == token_id and ":" not in text else f"token_id:{token_id}"


def _json_object(text: bytes) -> Document:
    try:
        document = parse_json(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise LeftOutError("no logprobs in it")
    return document


def _ranked(token: str, logprob: float, top: Sequence[tuple[str, float]]) -> list[str]:
    """The tokens of `top` by rank; in the reply they are by rank too, but the generated one (`token`) may be first.

    Texts that several byte tokens share stand where the first of them does, as in the reply.
    """
    others = [(name, each) for name, each in top if name != token]
    place = next((index for index, (_, each) in enumerate(others) if each < logprob), len(others))
    names = [name for name, _ in others]
    return [*names[:place], token, *names[place:]] if len(others) < len(top) else names
