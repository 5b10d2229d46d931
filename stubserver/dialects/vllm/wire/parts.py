"""Parts of replies and of events: their choices, their usage, the model that they name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stubserver.dialects.vllm.wire.positions import read_positions, write_positions
from stubserver.serving.wire import MISSING, Choice, Document, Part


def read_choices(document: Document) -> list[Choice]:
    """The choices of a full reply or an event, with the positions that it has of each."""
    return [
        Choice(choice.get("index", 0), read_positions(choice.get("logprobs")))
        for choice in _listed(document)
        if isinstance(choice, dict)
    ]


def write_choices(document: Document, choices: Sequence[Choice]) -> Document:
    """A new document with other positions in its choices; see `Wire`."""
    rest = iter(choices)
    return _on_choices(document, lambda choice: _write_choice(choice, next(rest).positions))


def _write_choice(choice: Document, positions: Any) -> Document:
    logprobs = choice.get("logprobs")
    if read_positions(logprobs) is None:
        return choice
    return {**choice, "logprobs": None if positions is None else write_positions(choice["logprobs"], positions)}


def write_part(document: Document, part: Part, value: Any) -> Document | None:
    """A new document with another value of a part; see `Wire`. An event that is there for its usage goes with it."""
    if part == "logprobs":
        return _on_choices(document, lambda choice: _replaced(choice, part, value))
    only_usage = document.get("choices") == [] and document.get("usage") is not None
    return None if part == "usage" and only_usage and value is MISSING else _replaced(document, part, value)


def read_model(document: Document) -> str | None:
    """The name of the model that a reply gives itself; events of /inference/v1/generate give none."""
    model = document.get("model")
    return model if isinstance(model, str) else None


def count_tokens(document: Document) -> int:
    """How many tokens a full reply says were generated, at least 1."""
    usage = document.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return max(tokens, 1) if isinstance(tokens, int) else 1


def _listed(document: Document) -> list[Any]:
    choices = document.get("choices")
    return choices if isinstance(choices, list) else []


def _on_choices(document: Document, edit: Callable[[Document], Document]) -> Document:
    """The document with each choice edited; the same object if none has become another one."""
    choices = _listed(document)
    edited = [edit(choice) if isinstance(choice, dict) else choice for choice in choices]
    unchanged = all(before is after for before, after in zip(choices, edited, strict=True))
    return document if unchanged else {**document, "choices": edited}


def _replaced(mapping: Document, key: str, value: Any) -> Document:
    """The mapping with another value, or without the key; the same object if that is what it is."""
    if key not in mapping or mapping[key] == value:
        return mapping
    return {
        name: part if name != key else value for name, part in mapping.items() if name != key or value is not MISSING
    }
