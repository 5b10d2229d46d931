"""Faults in what a reply says: edits of its JSON, through the wire of the server that says it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol

from stubserver.faults import keys
from stubserver.serving.wire import MISSING, Choice, Document, Part, Position, TopLogprob, Wire

Decode = Callable[[Any, int], str]
"""(the name that a reply gives its model, token id) → the token's text."""

Names = Collection[str]
"""How the reply may show the fault's token."""

_MOST_SHOWN = 8
"""Tokens that are named in place of one that isn't there."""


class Edit(Protocol):
    """An edit of one reply, of a stream's event by event."""

    def apply(self, document: Document) -> Document | None:
        """A new document; the same object if nothing of it changes; None if nothing of it is sent."""
        ...

    def explain(self) -> str:
        """Why nothing has changed so far."""
        ...


def make_edit(fault: keys.DocumentKeys, wire: Wire, decode: Decode) -> Edit:
    """The edit of one reply that a fault stands for; the events of a stream go through it in their order."""
    match fault:
        case keys.ChoicesKeys():
            return _PartEdit(wire, "choices", [] if fault.value == "empty" else fault.value)
        case keys.UsageKeys():
            return _PartEdit(wire, "usage", fault.value)
        case keys.LogprobsKeys():
            return _PartEdit(wire, "logprobs", fault.value)
        case keys.MissingStepKeys():
            return _StepEdit(wire, fault.step)
        case keys.TruncateTopKeys():
            return _TopEdit(wire, lambda _, top: top[: fault.keep], f"no position has more than {fault.keep} of them")
        case keys.DropSampledKeys():
            return _TopEdit(
                wire,
                lambda position, top: [each for each in top if each.token != position.token],
                "no sampled token is among its own",
            )
        case keys.SortTopByValueKeys():
            return _TopEdit(wire, lambda _, top: sorted(top, key=lambda each: -each.logprob), "they are sorted already")
        case keys.DuplicateKeysKeys():
            return _TopEdit(wire, lambda _, top: [*top, *map(_lower, top[:1])], "they are empty")
        case keys.DropLabelKeys():
            return _LabelEdit(wire, fault.label, decode)
        case keys.NanKeys():
            return _ValueEdit(wire, fault.token, decode, value=float("nan"), only_masked=False)
        case keys.MinusInfinityKeys():
            return _ValueEdit(wire, fault.token, decode, value=float("-inf"), only_masked=True)
        case keys.SentinelKeys():
            return _ValueEdit(wire, fault.token, decode, value=fault.value, only_masked=True)
    raise AssertionError(f"{fault.kind} isn't about JSON")  # type: ignore[attr-defined]


class _PartEdit:
    """A part of the reply has another value, or is missing."""

    def __init__(self, wire: Wire, part: Part, value: Any) -> None:
        self._wire = wire
        self._part = part
        self._value = MISSING if value == "missing" else value

    def apply(self, document: Document) -> Document | None:
        return self._wire.write_part(document, self._part, self._value)

    def explain(self) -> str:
        return f"it has no {self._part} that could be changed"


class _PositionsEdit:
    """An edit of the logprobs of choices. What they were is remembered, for the explanation."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._choices = 0
        self._positions = 0
        self._tops = 0
        self._tokens: dict[str, None] = {}

    def apply(self, document: Document) -> Document | None:
        choices = self._wire.read_choices(document)
        self._remember(choices)
        edited = [each if not each.positions else self._edit(document, each, each.positions) for each in choices]
        return document if edited == choices else self._wire.write_choices(document, edited)

    def explain(self) -> str:
        if not self._choices:
            return "it has no choices"
        return self._why_not() if self._positions else "it has no logprobs"

    def _remember(self, choices: Sequence[Choice]) -> None:
        self._choices += len(choices)
        for position in (each for choice in choices for each in choice.positions or ()):
            self._positions += 1
            self._tops += position.top is not None
            if len(self._tokens) <= _MOST_SHOWN:
                self._tokens.update(dict.fromkeys(each.token for each in position.top or ()))

    def _edit(self, document: Document, choice: Choice, positions: Sequence[Position]) -> Choice:
        """The choice, of which the document has some positions, with others."""
        raise NotImplementedError

    def _why_not(self) -> str:
        """Why no position was changed, though there are some."""
        raise NotImplementedError

    @property
    def _shown_tokens(self) -> str:
        shown = ", ".join(map(repr, islice(self._tokens, _MOST_SHOWN)))
        return f"{shown}, …" if len(self._tokens) > _MOST_SHOWN else shown or "none"


class _StepEdit(_PositionsEdit):
    """A token of each choice has no position. They are counted, for a stream has them spread over its events."""

    def __init__(self, wire: Wire, step: int) -> None:
        super().__init__(wire)
        self._step = step
        self._seen: dict[int, int] = {}

    def _edit(self, document: Document, choice: Choice, positions: Sequence[Position]) -> Choice:
        start = self._seen.get(choice.index, 0)
        self._seen[choice.index] = start + len(positions)
        left = [each for number, each in enumerate(positions, start) if number != self._step]
        return replace(choice, positions=left or None)

    def _why_not(self) -> str:
        return f"no choice has logprobs of a token {self._step}, only of {max(self._seen.values())}"


class _TopEdit(_PositionsEdit):
    """Other top logprobs, wherever there are some."""

    def __init__(
        self, wire: Wire, edit: Callable[[Position, Sequence[TopLogprob]], Sequence[TopLogprob]], why_not: str
    ) -> None:
        super().__init__(wire)
        self._edit_top = edit
        self._unchanged = why_not

    def _edit(self, document: Document, choice: Choice, positions: Sequence[Position]) -> Choice:
        edited = [each if each.top is None else each._replace(top=self._edit_top(each, each.top)) for each in positions]
        return replace(choice, positions=edited)

    def _why_not(self) -> str:
        return f"of its top logprobs, {self._unchanged}" if self._tops else "it has no top logprobs"


class _LabelEdit(_PositionsEdit):
    """A token is missing from all top logprobs."""

    def __init__(self, wire: Wire, label: int | str, decode: Decode) -> None:
        super().__init__(wire)
        self._label = label
        self._decode = decode

    def _edit(self, document: Document, choice: Choice, positions: Sequence[Position]) -> Choice:
        names = _names(self._label, document, self._wire, self._decode)
        edited = [
            each if each.top is None else each._replace(top=[top for top in each.top if top.token not in names])
            for each in positions
        ]
        return replace(choice, positions=edited)

    def _why_not(self) -> str:
        return f"there is no token {self._label!r} among its top logprobs, which have {self._shown_tokens}"


class _ValueEdit(_PositionsEdit):
    """Every value, those of masked tokens, or those of one token, replaced."""

    def __init__(self, wire: Wire, token: int | str | None, decode: Decode, *, value: float, only_masked: bool) -> None:
        super().__init__(wire)
        self._token = token
        self._decode = decode
        self._value = value
        self._only_masked = only_masked

    def _edit(self, document: Document, choice: Choice, positions: Sequence[Position]) -> Choice:
        names = None if self._token is None else _names(self._token, document, self._wire, self._decode)
        return replace(choice, positions=[self._edit_position(each, names) for each in positions])

    def _edit_position(self, position: Position, names: Names | None) -> Position:
        own = None if position.logprob is None else self._edit_value(position.token, position.logprob, names)
        if position.top is None:
            return position._replace(logprob=own)
        top = [each._replace(logprob=self._edit_value(each.token, each.logprob, names)) for each in position.top]
        return position._replace(logprob=own, top=top)

    def _edit_value(self, token: str, logprob: float, names: Names | None) -> float:
        is_meant = token in names if names is not None else not self._only_masked or logprob <= self._wire.masked
        return self._value if is_meant else logprob

    def _why_not(self) -> str:
        if self._token is not None:
            return f"there is no token {self._token!r} among its logprobs; the top ones have {self._shown_tokens}"
        return "it has no value of a masked token" if self._only_masked else "it has no values"


def _lower(top: TopLogprob) -> TopLogprob:
    return top._replace(logprob=top.logprob - 1)


def _names(token: int | str, document: Document, wire: Wire, decode: Decode) -> Names:
    if isinstance(token, str):
        return {token}
    return wire.token_names(token, decode(wire.read_model(document), token))
