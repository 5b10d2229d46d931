"""Numbers within bounds, as xgrammar 0.2.8 writes them.

Integers without leading zeros and without `-0`. Numbers with a bound have no exponent and at most six digits after the
point; `-0.0` is one of them where negative numbers are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil, floor
from typing import Any, Final

from stubserver.engine.grammar.xgrammar.language import (
    Alt,
    LanguageError,
    Node,
    alt,
    any_number,
    one_of,
    optional,
    repeat,
    seq,
    text,
)

DIGITS: Final = "0123456789"
_DIGIT: Final = one_of(DIGITS)
_FROM_ONE: Final = one_of(DIGITS[1:])
_MINUS: Final = text("-")

INTEGER: Final = alt(text("0"), seq(optional(_MINUS), _FROM_ONE, any_number(_DIGIT)))
NUMBER: Final = seq(
    optional(_MINUS),
    alt(text("0"), seq(_FROM_ONE, any_number(_DIGIT))),
    optional(seq(text("."), repeat(_DIGIT, 1, None))),
    optional(seq(one_of("eE"), optional(one_of("+-")), repeat(_DIGIT, 1, None))),
)

_PLACES: Final = 6
_ONE: Final = 10**_PLACES
_MOST: Final = 2**63

_BOUNDS: Final = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def integer_language(schema: Mapping[str, Any]) -> Node:
    """Integers by a schema's bounds. Raises LanguageError for bounds that xgrammar refuses."""
    low, high = _bounds(schema, whole=True)
    if low is None and high is None:
        return INTEGER
    if low is not None and high is not None and low > high:
        raise LanguageError("Invalid range: minimum greater than maximum")
    return alt(*_signed(low, high, _whole, least_negative=1))


def number_language(schema: Mapping[str, Any]) -> Node:
    """Numbers by a schema's bounds. Raises LanguageError for bounds that xgrammar refuses."""
    low, high = _bounds(schema, whole=False)
    if low is None and high is None:
        return NUMBER
    if low is not None and high is not None and low > high:
        raise LanguageError("Invalid range: empty range")
    options = list(_signed(low, high, _decimal, least_negative=1))
    if (low is None or low < 0) and (high is None or high >= 0):
        options.append(seq(text("-0."), repeat(text("0"), 1, _PLACES)))
    return alt(*options)


def _bounds(schema: Mapping[str, Any], *, whole: bool) -> tuple[int | None, int | None]:
    """The least and the greatest value, both included; for numbers in millionths."""
    given = {key: schema[key] for key in _BOUNDS if key in schema}
    for value in given.values():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise LanguageError("Value must be a number")
        if whole and value != int(value):
            raise LanguageError("Integer constraint must be a whole number")
        if whole and abs(value) > _MOST:
            raise LanguageError("Integer exceeds maximum limit")
    unit = 1 if whole else _ONE
    lows, highs = [], []
    for key, value in given.items():
        scaled = value * unit
        rounded = round(scaled)
        exact = abs(scaled - rounded) < 1e-6
        step = int(key.startswith("exclusive")) if exact else 0
        if key.endswith("inimum"):
            lows.append((rounded if exact else ceil(scaled)) + step)
        else:
            highs.append((rounded if exact else floor(scaled)) - step)
    return max(lows, default=None), min(highs, default=None)


def _signed(low: int | None, high: int | None, write: Any, *, least_negative: int) -> Iterator[Node]:
    """The negative part and the rest of a range, by a function that writes a range from 0."""
    if low is None or low < 0:
        most = None if low is None else -low
        yield seq(_MINUS, write(least_negative if high is None or high >= 0 else -high, most))
    if high is None or high >= 0:
        yield write(max(low or 0, 0), high)


def _whole(low: int, high: int | None) -> Node:
    """Whole numbers from `low`, which is at least 0, to `high`; None: without an end."""
    if high is None:
        length = len(str(low))
        longer = seq(_FROM_ONE, repeat(_DIGIT, length, None))
        return alt(_of_length(low, 10**length - 1), longer)
    options = []
    for length in range(len(str(low)), len(str(high)) + 1):
        first = max(low, 10 ** (length - 1) if length > 1 else 0)
        options.append(_of_length(first, min(high, 10**length - 1)))
    return alt(*options)


def _of_length(low: int, high: int) -> Node:
    """Numbers of as many digits as both have."""
    return _digits(str(low), str(high))


def _digits(low: str, high: str) -> Node:
    """Texts of digits between two of the same length."""
    if not low:
        return seq()
    if set(low) == {"0"} and set(high) == {"9"}:
        return repeat(_DIGIT, len(low), len(low))
    if low[0] == high[0]:
        return seq(text(low[0]), _digits(low[1:], high[1:]))
    rest = len(low) - 1
    options = [seq(text(low[0]), _digits(low[1:], "9" * rest))]
    between = DIGITS[int(low[0]) + 1 : int(high[0])]
    if between:
        options.append(seq(one_of(between), repeat(_DIGIT, rest, rest)))
    options.append(seq(text(high[0]), _digits("0" * rest, high[1:])))
    return alt(*options)


def _decimal(low: int, high: int | None) -> Node:
    """Decimals between so many millionths, at least 0; None: without an end."""
    first, last = low // _ONE, None if high is None else high // _ONE
    if first == last and high is not None:
        return _with_fraction(first, low % _ONE, high % _ONE)
    options = [_with_fraction(first, low % _ONE, _ONE - 1)]
    if last is None or first + 1 <= last - 1:
        options.append(seq(_whole(first + 1, None if last is None else last - 1), _ANY_FRACTION))
    if last is not None and high is not None:
        options.append(_with_fraction(last, 0, high % _ONE))
    return alt(*options)


_ANY_FRACTION: Final = optional(seq(text("."), repeat(_DIGIT, 1, _PLACES)))


def _with_fraction(whole: int, low: int, high: int) -> Node:
    """A whole number with fractions between so many millionths; without one if that may be 0."""
    fraction = seq(text("."), _fraction(low, high, _PLACES, is_first=True))
    return seq(text(str(whole)), optional(fraction) if low == 0 else fraction)


def _fraction(low: int, high: int, places: int, *, is_first: bool = False) -> Node:
    """Up to so many digits after the point, whose value, filled up with zeros, is in the range."""
    whole = 10**places
    if low == 0 and high == whole - 1:
        return repeat(_DIGIT, int(is_first), places)
    step = whole // 10
    options: list[Node] = []
    for digit in range(low // step, high // step + 1):
        inner = _fraction(max(low - digit * step, 0), min(high - digit * step, step - 1), places - 1)
        options.append(seq(text(str(digit)), inner))
    found = Alt(tuple(options)) if len(options) > 1 else options[0]
    return optional(found) if low == 0 and not is_first else found
