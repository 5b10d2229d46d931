"""A script out of recorded logprobs, so that other requests than the recorded ones can be answered.

A recorded row names some tokens and their logprobs; the tokens that it doesn't name share what is left of 1. The script
says `unrecorded: refuse`, so that no value which rests on those goes out as if it had been recorded, and each rule has
in `recorded` what can be told of it: see stubserver.engine.recorded.
A row says what follows the tokens before it, so a script can go on only where the recorded tokens were the likeliest.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from math import exp, fsum
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from stubserver.errors import TokenizerError
from stubserver.playback.canonical import parse_json
from stubserver.playback.cassette import Cassette
from stubserver.playback.convert import convert_reply
from stubserver.playback.errors import CassetteError
from stubserver.playback.exchange import Exchange
from stubserver.script.tokens import TokenReader
from stubserver.tokenizer.hf import HFTokenizer, load_tokenizer

LogprobsMode = Literal["raw_logprobs", "processed_logprobs"]

MASKED = -9999.0
"""vLLM's value of a masked token: no logprob that was recorded."""

ROUTES = ("/v1/completions", "/v1/chat/completions")

BENDING = (
    *("allowed_token_ids", "bad_words", "logit_bias", "structured_outputs", "response_format", "min_tokens"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "top_p", "top_k", "min_p"),
)
"""Fields that move processed logprobs away from what the model says, and the greedy token from the likeliest one."""

SUM_TOLERANCE = 1e-6
"""How far a sum of probabilities may be above 1; a little more is the rounding of many float32 values."""


class Position(NamedTuple):
    """A recorded row: the token that was generated, and token id → logprob."""

    token_id: int
    logprobs: Mapping[int, float]
    known_top: int
    """How many of the likeliest tokens of all are among them, without a gap."""


@dataclass
class Made:
    """The script as YAML, and what went into it."""

    text: str
    rules: int
    steps: int
    tokens: int
    left_out: list[str]


@dataclass
class _Rows:
    """The rows after one prompt, by the tokens before them."""

    when: dict[str, Any]
    after: dict[tuple[int, ...], dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    known_top: dict[tuple[int, ...], int] = field(default_factory=lambda: defaultdict(int))
    ends: set[tuple[int, ...]] = field(default_factory=set)

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


def make_script(cassette: Cassette, tokenizer: str, mode: LogprobsMode) -> Made:
    """The script of what the cassette holds. `tokenizer`: as the setting; it has to be the recorded model's.

    mode: of the recorded server. Raises TokenizerError, and CassetteError if there are no logprobs at all.
    """
    reading = _Reading(load_tokenizer(tokenizer), mode)
    left_out: defaultdict[str, list[int]] = defaultdict(list)
    for number, exchange in enumerate(cassette.exchanges, 1):
        try:
            reading.add(exchange)
        except (_LeftOutError, TokenizerError) as error:
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


class _LeftOutError(Exception):
    """Why an exchange isn't in the script."""


class _Reading:
    """Collects rows, exchange by exchange."""

    def __init__(self, tokenizer: HFTokenizer, mode: LogprobsMode) -> None:
        self._tokenizer = tokenizer
        self._tokens = TokenReader(tokenizer, tokenizer.vocab_size)
        self._mode = mode
        self.rows: dict[str, _Rows] = {}

    def add(self, exchange: Exchange) -> None:
        """Take up what an exchange says. Raises _LeftOutError and TokenizerError."""
        body, reply = self._read(exchange)
        wanted = max(int(body.get("n") or 1), 1)
        prompts = _prompts(body)
        for choice in reply["choices"]:
            positions = list(self._positions(choice, body))
            when = prompts[choice["index"] // wanted]
            rows = self.rows.setdefault(json.dumps(when, sort_keys=True), _Rows(when))
            path: tuple[int, ...] = ()
            for position in positions:
                rows.after[path].update(position.logprobs)
                rows.known_top[path] = max(rows.known_top[path], position.known_top)
                path = (*path, position.token_id)
            if choice.get("finish_reason") == "stop" and choice.get("stop_reason") is None and not body.get("stop"):
                rows.ends.add(path)

    def _read(self, exchange: Exchange) -> tuple[dict[str, Any], dict[str, Any]]:
        """(the request's body, the full reply)."""
        if exchange.request.path not in ROUTES or exchange.reply.status != 200:
            raise _LeftOutError("no logprobs in it")
        body = parse_json(exchange.request.body)
        reply = convert_reply(exchange.reply, exchange.request) if exchange.reply.events else exchange.reply
        if reply is None:
            raise _LeftOutError("its stream can't be put together")
        if body.get("echo"):
            raise _LeftOutError("it echoes its prompt")
        bent = [name for name in BENDING if _is_set(body, name)]
        if self._mode == "processed_logprobs" and (bent or body.get("temperature") not in (0, 1)):
            raise _LeftOutError(f"processed logprobs are not the model's with {', '.join(bent) or 'its temperature'}")
        return body, parse_json(reply.body)

    def _positions(self, choice: Mapping[str, Any], body: Mapping[str, Any]) -> Iterator[Position]:
        logprobs = choice.get("logprobs") or {}
        entries = _chat_entries(logprobs) if "content" in logprobs else _completion_entries(logprobs)
        greedy = body.get("temperature") == 0 and not any(_is_set(body, name) for name in BENDING)
        wanted = 0 if body.get("logprob_token_ids") else body.get("top_logprobs" if "messages" in body else "logprobs")
        if not entries:
            raise _LeftOutError("no logprobs in it")
        for text, value, top in entries:
            token_id = self._token_id(text)
            if token_id is None:
                return  # what follows it can't be placed
            named = {self._token_id(name): each for name, each in [*top, (text, value)] if each > MASKED}
            row = {known: each for known, each in named.items() if known is not None}
            ranked = _ranked(text, value, top)[: len(top) if wanted == -1 else int(wanted or 0)]
            known_top = len(list(takewhile(lambda name: self._token_id(name) is not None, ranked)))
            yield Position(token_id, row, max(known_top, int(greedy)))

    def _token_id(self, text: str) -> int | None:
        """The token that a reply shows as this text; None for one whose bytes are no text."""
        try:
            return self._tokens.read(text if text.startswith("token_id:") else f"text:{text}")
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


def _is_set(body: Mapping[str, Any], name: str) -> bool:
    """Whether the field is given, and not as what does nothing."""
    return body.get(name) not in (None, 0, 1, -1, [], {})


def _prompts(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each prompt of the request, the condition that it is asked again."""
    if "messages" in body:
        fields = {name: {"exact": body[name]} for name in ("messages", "tools") if body.get(name) is not None}
        return [{"field": fields}]
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return [{"prompt": {"exact": prompt}}]
    if not isinstance(prompt, list) or not prompt:
        raise _LeftOutError("it has no prompt")
    if isinstance(prompt[0], int):
        return [{"prompt": {"token_ids": prompt}}]
    return [{"prompt": {"exact": each} if isinstance(each, str) else {"token_ids": each}} for each in prompt]


_Top = list[tuple[str, float]]
"""Texts and logprobs in the order of the reply: by rank, but the generated token first."""

_Entries = list[tuple[str, float, _Top]]
"""Of each position the token's text, its logprob, and the top ones."""


def _ranked(text: str, value: float, top: _Top) -> list[str]:
    """The texts by rank. Texts that several byte tokens share stand where the first of them does, as in the reply."""
    others = [(name, each) for name, each in top if name != text]
    place = next((index for index, (_, each) in enumerate(others) if each < value), len(others))
    names = [name for name, _ in others]
    return [*names[:place], text, *names[place:]] if len(others) < len(top) else names


def _completion_entries(logprobs: Mapping[str, Any]) -> _Entries:
    tokens = logprobs.get("tokens") or []
    tops = logprobs.get("top_logprobs") or [{}] * len(tokens)
    values = logprobs.get("token_logprobs") or []
    return [(token, value, list((top or {}).items())) for token, value, top in zip(tokens, values, tops, strict=True)]


def _chat_entries(logprobs: Mapping[str, Any]) -> _Entries:
    return [
        (entry["token"], entry["logprob"], [(top["token"], top["logprob"]) for top in entry.get("top_logprobs") or ()])
        for entry in logprobs["content"] or ()
    ]
