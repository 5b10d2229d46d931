"""Until the branch `wire` is merged, which has both in full: as much of them as scripts from recordings need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stubserver.serving.wire import Choice, Document, Entry, Position


def read_choices(document: Document) -> list[Choice]:
    """The choices of a full reply, with their positions."""
    return [Choice(choice["index"], _positions(choice.get("logprobs"))) for choice in document.get("choices") or ()]


def fold(documents: Sequence[Document]) -> Document:
    """The choices that the events add up to. Raises ValueError for an error among them, KeyError or TypeError."""
    choices: dict[int, Document] = {}
    for document in documents:
        if "error" in document:
            raise ValueError("the stream ended in an error")
        for choice in document["choices"]:
            known = choices.setdefault(choice["index"], {"index": choice["index"], "logprobs": {}})
            for name, part in (choice.get("logprobs") or {}).items():
                known["logprobs"].setdefault(name, []).extend(part or ())
            known |= {name: choice[name] for name in ("finish_reason", "stop_reason") if choice.get(name) is not None}
    return {"choices": [choices[index] for index in sorted(choices)]}


def _positions(logprobs: Mapping[str, Any] | None) -> list[Position] | None:
    if not logprobs:
        return None
    if "content" in logprobs:
        return [_position(each["token"], each["logprob"], each["top_logprobs"]) for each in logprobs["content"] or ()]
    columns = (logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"])
    listed = [
        (token, value, [{"token": name, "logprob": each} for name, each in (top or {}).items()])
        for token, value, top in zip(*columns, strict=True)
    ]
    return [_position(*each) for each in listed]


def _position(token: str, logprob: float, top: Sequence[Mapping[str, Any]]) -> Position:
    return Position(token, logprob, [Entry(each["token"], each["logprob"]) for each in top])
