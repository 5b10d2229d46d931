"""Languages: what texts a constraint allows, as objects that every form of constraint is turned into."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

LAST: Final = 0x10FFFF

Range = tuple[int, int]
"""Characters from the first to the last, both included."""


class LanguageError(ValueError):
    """A constraint can't be read; the words are xgrammar's where it refuses the same."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of these ranges, which are ascending and apart."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Seq:
    """One after another; no parts: the empty text."""

    parts: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Alt:
    """One of several; no options: no text at all."""

    options: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Repeat:
    """A node from `low` to `high` times; None for any number."""

    node: Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Ref:
    """A rule by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Token:
    """A part that is read as one: where several tokens may begin at a place, none is the beginning of another.

    Says nothing of the texts. A language with rules that lead back to themselves can be followed faster with it.
    """

    node: Node


Node = Chars | Seq | Alt | Repeat | Ref | Token

EMPTY: Final = Seq()


@dataclass(frozen=True, slots=True)
class Language:
    """Rules by name, of which `root` is the language."""

    rules: Mapping[str, Node]
    root: str = "root"


def chars(ranges: Iterable[Range], *, negated: bool = False) -> Chars:
    """A class of characters, its ranges in any order; negated: all others."""
    merged: list[Range] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return Chars(tuple(_gaps(merged)) if negated else tuple(merged))


def _gaps(ranges: Sequence[Range]) -> Iterator[Range]:
    start = 0
    for first, last in ranges:
        if start < first:
            yield (start, first - 1)
        start = last + 1
    if start <= LAST:
        yield (start, LAST)


def one_of(characters: str) -> Chars:
    """One of these characters."""
    return chars((ord(char), ord(char)) for char in characters)


def text(content: str) -> Node:
    """This text."""
    return seq(*map(one_of, content))


def seq(*parts: Node) -> Node:
    """One after another, sequences flattened."""
    flat = [inner for part in parts for inner in (part.parts if isinstance(part, Seq) else (part,))]
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def alt(*options: Node) -> Node:
    """One of several."""
    return options[0] if len(options) == 1 else Alt(tuple(dict.fromkeys(options)))


def repeat(node: Node, low: int, high: int | None) -> Node:
    """From `low` to `high` times; None: any number."""
    return EMPTY if high == 0 else Repeat(node, low, high)


def optional(node: Node) -> Node:
    """Once or not at all."""
    return Repeat(node, 0, 1)


def any_number(node: Node) -> Node:
    """Any number of times."""
    return Repeat(node, 0, None)


ANY_CHAR: Final = Chars(((0, LAST),))
