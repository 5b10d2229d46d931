"""A body is read as Python's own reader does, which is vLLM's: the same values, the same refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stubserver.errors import SchemaError
from stubserver.serving.body import UnparsableBodyError, _load_json

PIECES = st.sampled_from(
    [
        *'[]{}",:0123456789.eE+-\\ \n\t',
        "true",
        "false",
        "null",
        "NaN",
        "Infinity",
        '"a"',
        "\\ud800",
        "\\u00e9",
        "\x00",
        "é",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def read(raw: bytes) -> Any:
    """The value, spelled so that 1, 1.0 and True differ; None if there is none."""
    try:
        return repr(_load_json(raw))
    except (SchemaError, UnparsableBodyError):
        return None


def expected(raw: bytes) -> Any:
    try:
        return repr(json.loads(raw))
    except ValueError:
        return None


@given(st.lists(PIECES).map("".join))
@example("1" * 30)
@example("-0")
@example("1e400")
@example('{"a": 1, "a": 2}')
@example('"\\ud83d\\ude00"')
def test_any_text(text: str) -> None:
    assert read(text.encode()) == expected(text.encode())


@given(VALUES)
def test_any_value(value: Any) -> None:
    raw = json.dumps(value).encode()
    assert read(raw) == expected(raw)


@pytest.mark.parametrize(
    "raw", [b"\xef\xbb\xbf{}", '{"a": "é"}'.encode("utf-16"), b'"\xff"', b'{"a": "\x01"}', b"9" * 5000]
)
def test_what_the_fast_reader_does_not_take(raw: bytes) -> None:
    assert read(raw) == expected(raw)
