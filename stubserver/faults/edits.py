"""Faults in what a reply says: edits of its JSON. Each makes a new document; None means that nothing is sent."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from stubserver.faults import keys
from stubserver.faults.positions import Entry, Position, edit_positions

MASKED = -9999.0

Document = dict[str, Any]
Edit = Callable[[Document], Document | None]

Decode = Callable[[Any, int], str]
"""(the `model` of a reply, token id) → the token's text."""

_PositionEdit = Callable[[Position, Document], Position]


def make_edit(fault: keys.DocumentKeys, decode: Decode) -> Edit:
    """The edit of one reply that a fault stands for; the events of a stream go through it in their order."""
    match fault:
        case keys.ChoicesKeys():
            return lambda document: _replaced(document, "choices", [] if fault.value == "empty" else fault.value)
        case keys.UsageKeys():
            return lambda document: _edit_usage(document, fault.value)
        case keys.LogprobsKeys():
            return lambda document: _on_choices(document, lambda choice: _replaced(choice, "logprobs", fault.value))
        case keys.MissingStepKeys():
            return _StepDropper(fault.step).edit
        case keys.TruncateTopKeys():
            return _on_top(lambda position, top: top[: fault.keep])
        case keys.DropSampledKeys():
            return _on_top(lambda position, top: [entry for entry in top if entry.token != position.token])
        case keys.SortTopByValueKeys():
            return _on_top(lambda position, top: sorted(top, key=lambda entry: -entry.logprob))
        case keys.DuplicateKeysKeys():
            return _on_top(lambda position, top: [*top, *(_lower(entry) for entry in top[:1])])
        case keys.DropLabelKeys():
            return _dropping(fault.label, decode)
        case keys.NanKeys():
            return _replacing(float("nan"), fault.token, decode, only_masked=False)
        case keys.MinusInfinityKeys():
            return _replacing(float("-inf"), fault.token, decode, only_masked=True)
        case keys.SentinelKeys():
            return _replacing(fault.value, fault.token, decode, only_masked=True)
    raise AssertionError(f"{fault.kind} isn't about JSON")  # type: ignore[attr-defined]


def _replaced(mapping: Document, key: str, value: Any) -> Document:
    """The mapping with another value, or without the key for "missing"; as it is if it hasn't the key."""
    if key not in mapping:
        return mapping
    return {name: part if name != key else value for name, part in mapping.items() if name != key or value != "missing"}


def _edit_usage(document: Document, value: str | None) -> Document | None:
    """An event that is there for its usage alone goes with it."""
    only_usage = document.get("choices") == [] and document.get("usage") is not None
    return None if only_usage and value == "missing" else _replaced(document, "usage", value)


def _on_choices(document: Document, edit: Callable[[Document], Document]) -> Document:
    choices = document.get("choices")
    if not isinstance(choices, list):
        return document
    return {**document, "choices": [edit(choice) if isinstance(choice, dict) else choice for choice in choices]}


def _on_logprobs(document: Document, edit: Callable[[Document, Document], Document | None]) -> Document:
    """`edit` gets a choice and its logprobs, where it has some."""

    def on_choice(choice: Document) -> Document:
        logprobs = choice.get("logprobs")
        return {**choice, "logprobs": edit(choice, logprobs)} if isinstance(logprobs, dict) else choice

    return _on_choices(document, on_choice)


def _on_positions(edit: _PositionEdit) -> Edit:
    def on_document(document: Document) -> Document:
        def on_all(positions: list[Position]) -> list[Position]:
            return [edit(position, document) for position in positions]

        return _on_logprobs(document, lambda choice, logprobs: edit_positions(logprobs, on_all))

    return on_document


def _on_top(edit: Callable[[Position, list[Entry]], list[Entry]]) -> Edit:
    return _on_positions(
        lambda position, document: (
            position if position.top is None else position._replace(top=edit(position, position.top))
        )
    )


def _lower(entry: Entry) -> Entry:
    return entry._replace(logprob=entry.logprob - 1)


class _StepDropper:
    """Counts the tokens of each choice, for a stream has them spread over its events."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._seen: dict[Any, int] = {}

    def edit(self, document: Document) -> Document:
        """Without the step's entry, if it is in this document; logprobs that have no other are null."""
        return _on_logprobs(document, self._edit_logprobs)

    def _edit_logprobs(self, choice: Document, logprobs: Document) -> Document | None:
        left: list[Position] = []

        def drop(positions: list[Position]) -> list[Position]:
            start = self._seen.get(choice.get("index"), 0)
            self._seen[choice.get("index")] = start + len(positions)
            left.extend(each for number, each in enumerate(positions, start) if number != self._step)
            return left

        edited = edit_positions(logprobs, drop)
        return edited if left else None


def _names(label: int | str, document: Document, decode: Decode) -> Container[str]:
    """How the reply may show a token."""
    return {label} if isinstance(label, str) else {f"token_id:{label}", decode(document.get("model"), label)}


def _dropping(label: int | str, decode: Decode) -> Edit:
    def edit(position: Position, document: Document) -> Position:
        names = _names(label, document, decode)
        left = [entry for entry in position.top or () if entry.token not in names]
        return position if position.top is None else position._replace(top=left)

    return _on_positions(edit)


def _replacing(value: float, token: int | str | None, decode: Decode, *, only_masked: bool) -> Edit:
    """Every value, that of the token, or those that vLLM writes for masked tokens, replaced."""

    def edit(position: Position, document: Document) -> Position:
        names = None if token is None else _names(token, document, decode)

        def other(name: str, logprob: float) -> float:
            meant = name in names if names is not None else not only_masked or logprob <= MASKED
            return value if meant else logprob

        own = None if position.logprob is None else other(position.token, position.logprob)
        top = [entry._replace(logprob=other(entry.token, entry.logprob)) for entry in position.top or ()]
        return position._replace(logprob=own, top=None if position.top is None else top)

    return _on_positions(edit)
