"""Regular expressions as xgrammar 0.2.8 reads them.

Two readers of it are imitated: one for `regex`, and one for `pattern` in JSON schemas, which knows more and allows
only characters that JSON needs no escape for. Whole texts match: `^` and `$` say nothing. `\\d`, `\\w` and `\\s` are
ASCII (`\\s` of the first with U+00A0), `.` is any character, line ends too.

Found by asking xgrammar for the grammars that it makes, and for the texts that it accepts.
"""

from __future__ import annotations

from typing import Final

from stubserver.engine.grammar.xgrammar.language import (
    ANY_CHAR,
    EMPTY,
    Alt,
    Chars,
    LanguageError,
    Node,
    Range,
    Repeat,
    Seq,
    alt,
    chars,
    one_of,
    repeat,
    seq,
)

_DIGIT: Final = (("0", "9"),)
_WORD: Final = (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))
_SPACE: Final = (("\t", "\r"), (" ", " "))
_CLASSES: Final[dict[str, tuple[tuple[str, str], ...]]] = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_NO_BREAK_SPACE: Final = (0xA0, 0xA0)

_CONTROLS: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b", "0": "\x00"}

JSON_SAFE: Final = chars([(0, 0x1F), (ord('"'), ord('"')), (ord("\\"), ord("\\"))], negated=True)
"""What may stand in a JSON string as it is."""


def regex_language(pattern: str) -> Node:
    """The texts of a `regex`. Raises LanguageError in xgrammar's words."""
    return _Reader(pattern, of_schema=False).read()


def pattern_language(pattern: str) -> Node:
    """What may stand between the quotes of a string by a schema's `pattern`. Raises LanguageError."""
    try:
        node = _Reader(pattern, of_schema=True).read()
    except LanguageError:
        node = Alt()
    # What the one reader can't read, or finds no text for, the other one reads, without a thought for JSON.
    return regex_language(pattern) if _is_void(node) else node


def _is_void(node: Node) -> bool:
    match node:
        case Chars(ranges):
            return not ranges
        case Seq(parts):
            return any(map(_is_void, parts))
        case Alt(options):
            return all(map(_is_void, options))
        case Repeat(inner, low, _):
            return low > 0 and _is_void(inner)
        case _:
            return False


class _Reader:
    """Reads one pattern, by recursive descent."""

    def __init__(self, pattern: str, *, of_schema: bool) -> None:
        self._pattern = pattern
        self._at = 0
        self._of_schema = of_schema
        self._any_case = False

    def read(self) -> Node:
        if self._of_schema and self._pattern.startswith("(?i)") and self._pattern.isascii():
            self._at = 4
            self._any_case = True
        node = self._options()
        if self._at < len(self._pattern):
            raise self._error("Unmatched ')'")
        return node

    def _error(self, words: str) -> LanguageError:
        return LanguageError(f"Regex parsing error at position {self._at + 1}: {words}")

    def _peek(self, text: str) -> bool:
        return self._pattern.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        found = self._peek(text)
        self._at += len(text) if found else 0
        return found

    def _next(self) -> str:
        char = self._pattern[self._at]
        self._at += 1
        return char

    def _options(self) -> Node:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return alt(*options)

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            char = self._pattern[self._at]
            if char in "^$":
                self._at += 1
            elif char in "*+?":
                raise LanguageError(f"EBNF parser error at line 1, column 10: Expect element, but got {char}")
            else:
                parts.append(self._repeated(self._atom()))
        return seq(*parts)

    def _repeated(self, node: Node) -> Node:
        times = 0
        while self._at < len(self._pattern) and self._pattern[self._at] in "*+?{":
            if times and not self._of_schema:
                raise self._error("Two consecutive repetition modifiers are not allowed.")
            low, high = self._times()
            self._take("?")  # as few as possible: the same texts
            node = repeat(node, low, high)
            times += 1
        return node

    def _times(self) -> tuple[int, int | None]:
        match self._next():
            case "*":
                return 0, None
            case "+":
                return 1, None
            case "?":
                return 0, 1
        low = self._number()
        high = low
        if self._take(","):
            high = -1 if self._peek("}") else self._number()
        if not self._take("}"):
            raise self._error("Invalid repetition count.")
        if -1 < high < low:
            raise LanguageError(
                f"EBNF parser error at line 1, column 16: Lower bound is larger than upper bound: {low} > {high}"
            )
        return low, None if high < 0 else high

    def _number(self) -> int:
        start = self._at
        while self._at < len(self._pattern) and self._pattern[self._at] in "0123456789":
            self._at += 1
        if start == self._at:
            raise self._error("Invalid repetition count.")
        return int(self._pattern[start : self._at])

    def _atom(self) -> Node:
        match self._next():
            case "(":
                return self._group()
            case "[":
                return self._restricted(self._class())
            case ".":
                return self._restricted(ANY_CHAR)
            case "\\":
                return self._restricted(self._escape())
            case "{":
                raise self._error("Invalid repetition count.")
            case char:
                return self._restricted(one_of(char))

    def _restricted(self, found: Chars) -> Chars:
        if self._any_case:
            swapped = [other for char in _letters(found) for other in (ord(char.lower()), ord(char.upper()))]
            found = chars([*found.ranges, *((code, code) for code in swapped)])
        return _intersection(found, JSON_SAFE) if self._of_schema else found

    def _group(self) -> Node:
        is_ahead = self._take("?") and self._modifier()
        node = self._options()
        if not self._take(")"):
            raise self._error("The parenthesis is not closed.")
        return EMPTY if is_ahead else node

    def _modifier(self) -> bool:
        """Read what follows `(?`. True for a lookahead, which the reader of schemas ignores."""
        if self._take(":"):
            return False
        if self._peek("=") or self._peek("!"):
            if not self._of_schema:
                raise self._error("Lookahead is not supported yet.")
            self._at += 1
            return True
        if self._peek("<=") or self._peek("<!"):
            raise self._error("Lookbehind is not supported yet.")
        if self._take("<") or (self._of_schema and self._take("P<")):
            self._at = self._pattern.find(">", self._at) + 1 or len(self._pattern)
            return False
        raise self._error("Group modifier flag is not supported yet.")

    def _escape(self) -> Chars:
        """A class or a character after a backslash."""
        if self._at == len(self._pattern):
            raise self._error("Escape sequence is not finished.")
        char = self._pattern[self._at]
        if char.lower() in _CLASSES:
            self._at += 1
            return self._named(char)
        if char in "bB":
            raise self._error("Word boundary is not supported yet.")
        if char in "pP":
            raise self._error("Unicode character class escape sequence is not supported yet.")
        if char in "123456789k":
            raise self._error("Backreference is not supported yet.")
        return one_of(self._escaped_char())

    def _named(self, char: str) -> Chars:
        ranges: list[Range] = [(ord(first), ord(last)) for first, last in _CLASSES[char.lower()]]
        if char in "sS" and not self._of_schema:
            ranges.append(_NO_BREAK_SPACE)
        return chars(ranges, negated=char.isupper())

    def _escaped_char(self) -> str:
        """The character that an escape stands for: `\\n`, `\\x41`, `\\u0041`, `\\u{41}`, `\\cA`, or itself."""
        char = self._next()
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "x":
            return self._any_hexadecimal()
        if char == "u":
            if self._take("{"):
                end = self._pattern.find("}", self._at)
                digits, self._at = self._pattern[self._at : end], end + 1
                return chr(int(digits, 16))
            return self._hexadecimal(4)
        if char == "c" and self._at < len(self._pattern):
            return chr(ord(self._next()) % 32)
        return char

    def _hexadecimal(self, count: int) -> str:
        digits = self._pattern[self._at : self._at + count]
        if len(digits) < count or not all(digit in _HEX_DIGITS for digit in digits):
            raise self._error("Escape sequence is not finished.")
        self._at += count
        return chr(int(digits, 16))

    def _any_hexadecimal(self) -> str:
        """What follows `\\x`: all digits that there are, `\\x41a` is U+041A; without any, the x itself."""
        rest = self._pattern[self._at :]
        digits = rest[: len(rest) - len(rest.lstrip(_HEX_DIGITS))]
        if self._of_schema:
            digits = digits[:2]
        self._at += len(digits)
        return chr(int(digits, 16)) if digits else "x"

    def _class(self) -> Chars:
        """What follows `[`."""
        negated = self._take("^")
        if self._peek("]") and not negated:
            raise self._error("Empty character class is not allowed in regex.")
        ranges: list[Range] = []
        while not self._take("]"):
            if self._at >= len(self._pattern):
                raise self._error("Unclosed '['")
            ranges += self._class_member()
        return chars(ranges, negated=negated)

    def _class_member(self) -> list[Range]:
        """A character, a range or a named class. After `\\w` a `-` begins a range from `_`, in the first reader."""
        if self._peek("\\") and self._pattern[self._at + 1 : self._at + 2].lower() in _CLASSES:
            name = self._pattern[self._at + 1]
            self._at += 2
            named = list(self._named(name).ranges)
            if name == "w" and not self._of_schema and self._is_range():
                self._at += 1
                return [*named, (ord("_"), ord(self._class_char()))]
            return named
        first = self._class_char()
        if not self._is_range():
            return [(ord(first), ord(first))]
        self._at += 1
        if self._peek("\\") and self._pattern[self._at + 1 : self._at + 2].lower() in _CLASSES:
            raise LanguageError(_WRONG_RANGE)
        last = self._class_char()
        if last < first:
            raise LanguageError(_WRONG_RANGE)
        return [(ord(first), ord(last))]

    def _is_range(self) -> bool:
        return self._peek("-") and not self._peek("-]") and self._at + 1 < len(self._pattern)

    def _class_char(self) -> str:
        char = self._next()
        if char != "\\":
            return char
        if self._at == len(self._pattern):
            raise self._error("Escape sequence is not finished.")
        return "\b" if self._take("b") else self._escaped_char()


_HEX_DIGITS: Final = "0123456789abcdefABCDEF"

_WRONG_RANGE: Final = (
    "EBNF parser error at line 1, column 11: Invalid character class: lower bound is larger than upper bound"
)


def _letters(found: Chars) -> str:
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    return "".join(char for char in letters if any(first <= ord(char) <= last for first, last in found.ranges))


def _intersection(left: Chars, right: Chars) -> Chars:
    outside = [*chars(left.ranges, negated=True).ranges, *chars(right.ranges, negated=True).ranges]
    return chars(outside, negated=True)
