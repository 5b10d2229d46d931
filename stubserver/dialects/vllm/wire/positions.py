"""Logprobs of replies as positions, and positions as logprobs again, in every shape that vLLM has.

completions             four lists: tokens, token_logprobs, top_logprobs (a mapping a token), text_offset
chat                    `content`: an entry a token, with its text, and a list of top ones
/inference/v1/generate  the same, with ids in place of texts where `output_mode` is "tokens"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import Any

from stubserver.serving.wire import Position, TopLogprob

_LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def placeholder(token_id: int) -> str:
    """vLLM's stand-in for a token's text."""
    return f"token_id:{token_id}"


def read_positions(logprobs: Any) -> list[Position] | None:
    """The positions of a choice's `logprobs`; None if there are none, or in no known shape."""
    if not isinstance(logprobs, dict):
        return None
    try:
        if isinstance(logprobs.get("content"), list):
            return [_read_entry(entry) for entry in logprobs["content"]]
        return _read_lists(logprobs) if isinstance(logprobs.get("tokens"), list) else None
    except (KeyError, TypeError, AttributeError):
        return None


def write_positions(logprobs: Mapping[str, Any], positions: Sequence[Position]) -> dict[str, Any]:
    """`logprobs` with these positions in place of those that were read from it."""
    if isinstance(logprobs.get("content"), list):
        return {**logprobs, "content": list(map(_write_entry, positions))}
    written = _write_lists(positions)
    return {name: written.get(name, part) for name, part in logprobs.items()}


# A list of entries ----------------------------------------------------------------------------------------------------


def _read_entry(entry: Mapping[str, Any]) -> Position:
    top = entry.get("top_logprobs")
    listed = None if top is None else [TopLogprob(_name(each), each["logprob"], each) for each in top]
    return Position(_name(entry), entry["logprob"], listed, entry)


def _write_entry(position: Position) -> dict[str, Any]:
    entry = {**position.rest, "logprob": position.logprob}
    if "top_logprobs" in entry:
        top = position.top
        entry["top_logprobs"] = None if top is None else [{**each.rest, "logprob": each.logprob} for each in top]
    return entry


def _name(entry: Mapping[str, Any]) -> str:
    return str(entry["token"]) if "token" in entry else placeholder(entry["token_id"])


# Four lists -----------------------------------------------------------------------------------------------------------


class _Text(str):
    """A key that differs from every other one, so that a mapping can have the same text twice."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def _read_lists(logprobs: Mapping[str, Any]) -> list[Position]:
    columns = [chain(logprobs.get(name) or (), repeat(None)) for name in _LISTS[1:]]
    return [
        Position(str(token), value, None if top is None else _read_top(top), offset)
        for token, value, top, offset in zip(logprobs["tokens"], *columns, strict=False)
    ]


def _read_top(top: Mapping[str, float]) -> list[TopLogprob]:
    return [TopLogprob(str(name), logprob) for name, logprob in top.items()]


def _write_lists(positions: Iterable[Position]) -> dict[str, list[Any]]:
    rows = [(each.token, each.logprob, _write_top(each.top), each.rest) for each in positions]
    return {name: [row[column] for row in rows] for column, name in enumerate(_LISTS)}


def _write_top(top: Sequence[TopLogprob] | None) -> dict[str, float] | None:
    return None if top is None else {_Text(each.token): each.logprob for each in top}


def token_names(token_id: int, text: str | None) -> set[str]:
    """How a reply may show a token: by its text, if that is known, or by its stand-in."""
    return {placeholder(token_id)} | (set() if text is None else {text})
