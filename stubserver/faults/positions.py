"""Logprobs of a reply as positions, whatever the shape on the wire: four lists, or a list of entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """A token among the top ones of a position. rest: what else the wire has for it."""

    token: str
    logprob: float
    rest: dict[str, Any]


class Position(NamedTuple):
    """A token of the reply. logprob and top are None where the wire has null. rest: what else it has."""

    token: str
    logprob: float | None
    top: list[Entry] | None
    rest: dict[str, Any]


class _Text(str):
    """A key that differs from every other one, so that a mapping can have the same text twice."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def edit_positions(logprobs: dict[str, Any], edit: Callable[[list[Position]], list[Position]]) -> dict[str, Any]:
    """`logprobs` of a choice, its positions edited."""
    if isinstance(logprobs.get("content"), list):
        return {
            **logprobs,
            "content": [_to_content(each) for each in edit(list(map(_of_content, logprobs["content"])))],
        }
    if isinstance(logprobs.get("tokens"), list):
        return {**logprobs, **_to_lists(edit(_of_lists(logprobs)))}
    return logprobs


def _name(entry: dict[str, Any]) -> str:
    return str(entry["token"]) if "token" in entry else f"token_id:{entry.get('token_id')}"


def _of_content(entry: dict[str, Any]) -> Position:
    top = entry.get("top_logprobs")
    entries = None if top is None else [Entry(_name(each), each["logprob"], each) for each in top]
    return Position(_name(entry), entry["logprob"], entries, entry)


def _to_content(position: Position) -> dict[str, Any]:
    top = position.top
    entries = None if top is None else [{**each.rest, "logprob": each.logprob} for each in top]
    return {**position.rest, "logprob": position.logprob, "top_logprobs": entries}


def _of_lists(logprobs: dict[str, Any]) -> list[Position]:
    rows = zip(*(logprobs[name] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")), strict=False)
    return [
        Position(
            token,
            value,
            None if top is None else [Entry(str(name), logprob, {}) for name, logprob in top.items()],
            {"text_offset": offset},
        )
        for token, value, top, offset in rows
    ]


def _to_lists(positions: Sequence[Position]) -> dict[str, Any]:
    return {
        "tokens": [position.token for position in positions],
        "token_logprobs": [position.logprob for position in positions],
        "top_logprobs": [
            None if position.top is None else {_Text(entry.token): entry.logprob for entry in position.top}
            for position in positions
        ],
        "text_offset": [position.rest["text_offset"] for position in positions],
    }
