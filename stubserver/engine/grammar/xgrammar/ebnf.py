"""EBNF (`root ::= …`) as xgrammar 0.2.8 reads it, without its macros and lookaheads."""

from __future__ import annotations

import re
from typing import Final

from stubserver.engine.grammar import words
from stubserver.engine.grammar.xgrammar.language import (
    Language,
    LanguageError,
    Node,
    Range,
    Ref,
    alt,
    chars,
    repeat,
    seq,
    text,
)
from stubserver.errors import UnsupportedError

_ROOT: Final = "root"

_MACRO: Final = re.compile(r"\b(TagDispatch|TokenTagDispatch|Token|ExcludeToken|Regex)\(")
"""What xgrammar adds to EBNF, and is not imitated."""

_TOKEN: Final = re.compile(
    r"""(?P<skip>[ \t\r\n]+|\#[^\n]*)|(?P<text>"(?:[^"\\\r\n]|\\.)*")|(?P<class>\[(?:[^\]\\]|\\.)*\])"""
    r"""|(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)|(?P<times>\{\s*\d+\s*(?:,\s*\d*\s*)?\})|(?P<sign>::=|\(=|[|()*+?])""",
    re.DOTALL,
)

_ESCAPES: Final = {
    **dict(zip("ntrbfvae0", "\n\t\r\b\f\v\a\x1b\x00", strict=True)),
    **{char: char for char in "\"\\'?-][^/"},
}


def ebnf_language(grammar: str) -> Language:
    """The language of a grammar. Raises LanguageError in words like xgrammar's."""
    macro = _MACRO.search(grammar)
    if macro:
        raise UnsupportedError(words.GAVE_UP.format(error=macro.group() + "…)"))
    rules = _Reader(grammar).read()
    if _ROOT not in rules:
        raise LanguageError('EBNF parser error at line 1, column 1: The root rule with name "root" is not found')
    return Language(rules)


class _Reader:
    """Reads the rules of one grammar."""

    def __init__(self, grammar: str) -> None:
        self._tokens = _tokens(grammar)
        self._at = 0
        self._used: set[str] = set()

    def read(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        while self._at < len(self._tokens):
            name = self._next("name", "rule name")
            self._next("sign", "::=")
            if name in rules:
                raise LanguageError(f'EBNF parser error: Rule "{name}" is defined multiple times')
            rules[name] = self._options()
            self._skip_lookahead()
        for name in sorted(self._used - rules.keys()):
            raise LanguageError(f'EBNF parser error: Rule "{name}" is not defined')
        return rules

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        place = self._at + ahead
        return self._tokens[place] if place < len(self._tokens) else ("end", "")

    def _next(self, kind: str, expected: str) -> str:
        found, content = self._peek()
        if found != kind or (expected == "::=" and content != "::="):
            raise LanguageError(f"EBNF parser error: Expect {expected}, but got {content}")
        self._at += 1
        return content

    def _options(self) -> Node:
        options = [self._sequence()]
        while self._peek() == ("sign", "|"):
            self._at += 1
            options.append(self._sequence())
        return alt(*options)

    def _skip_lookahead(self) -> None:
        """`(=…)` after a rule: xgrammar works faster with it, and to the same masks."""
        if self._peek() == ("sign", "(="):
            self._at += 1
            self._options()
            self._close()

    def _close(self) -> None:
        if self._peek() != ("sign", ")"):
            raise LanguageError(f"EBNF parser error: Expect ), but got {self._peek()[1]}")
        self._at += 1

    def _sequence(self) -> Node:
        parts = [self._repeated()]
        while self._is_element():
            parts.append(self._repeated())
        return seq(*parts)

    def _is_element(self) -> bool:
        kind, content = self._peek()
        begins_rule = kind == "name" and self._peek(1) == ("sign", "::=")
        return not begins_rule and (kind in ("text", "class", "name") or content == "(")

    def _repeated(self) -> Node:
        node = self._element()
        kind, content = self._peek()
        if kind == "times":
            self._at += 1
            low, _, high = content.strip("{}").partition(",")
            return _times(node, int(low), int(low) if "," not in content else int(high) if high.strip() else None)
        bounds: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if content in bounds and kind == "sign":
            self._at += 1
            return repeat(node, *bounds[content])
        return node

    def _element(self) -> Node:
        kind, content = self._peek()
        if not self._is_element():
            raise LanguageError(f"EBNF parser error: Expect element, but got {content}")
        self._at += 1
        match kind:
            case "text":
                return text(_unescaped(content[1:-1]))
            case "class":
                return _class(content[1:-1])
            case "name":
                self._used.add(content)
                return Ref(content)
        if self._peek() == ("sign", ")"):
            self._at += 1
            return seq()
        node = self._options()
        self._close()
        return node


def _times(node: Node, low: int, high: int | None) -> Node:
    if high is not None and high < low:
        raise LanguageError(f"EBNF parser error: Lower bound is larger than upper bound: {low} > {high}")
    return repeat(node, low, high)


def _tokens(grammar: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(grammar):
        match = _TOKEN.match(grammar, at)
        if match is None:
            line, column = grammar.count("\n", 0, at) + 1, at - grammar.rfind("\n", 0, at)
            raise LanguageError(
                f"EBNF lexer error at line {line}, column {column}: Unexpected character: {grammar[at]}"
            )
        if match.lastgroup and match.lastgroup != "skip":
            found.append((match.lastgroup, match.group()))
        at = match.end()
    return found


def _unescaped(content: str) -> str:
    return "".join(char for char, _ in _characters(content))


def _characters(content: str) -> list[tuple[str, bool]]:
    """(character, whether it was escaped) of a text or a class."""
    found: list[tuple[str, bool]] = []
    at = 0
    while at < len(content):
        if content[at] != "\\":
            found.append((content[at], False))
            at += 1
            continue
        digits = {"x": _count_digits(content[at + 2 :]), "u": 4, "U": 8}.get(content[at + 1], 0)
        code = content[at + 2 : at + 2 + digits]
        try:
            char = chr(int(code, 16)) if digits else _ESCAPES[content[at + 1]]
        except (ValueError, KeyError):
            raise LanguageError("EBNF lexer error: Invalid escape sequence") from None
        found.append((char, True))
        at += 2 + digits
    return found


def _count_digits(content: str) -> int:
    """How many hexadecimal digits it begins with: `\\x` takes all of them."""
    return len(content) - len(content.lstrip("0123456789abcdefABCDEF"))


def _class(content: str) -> Node:
    members = _characters(content.removeprefix("^"))
    ranges: list[Range] = []
    while members:
        first = members.pop(0)[0]
        if len(members) > 1 and members[0] == ("-", False):
            last = members[1][0]
            members = members[2:]
            if last < first:
                raise LanguageError(
                    "EBNF parser error: Invalid character class: lower bound is larger than upper bound"
                )
            ranges.append((ord(first), ord(last)))
        else:
            ranges.append((ord(first), ord(first)))
    return chars(ranges, negated=content.startswith("^"))
