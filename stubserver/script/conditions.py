"""The conditions of a rule: what is read from the request, and the test that it has to pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from stubserver.script.context import ScriptRequest


class _Missing:
    """What a field or header that isn't there reads as; unlike None, no JSON value equals it."""

    def __repr__(self) -> str:
        return "nothing"


MISSING: Final = _Missing()

Read = Callable[[ScriptRequest], Any]
Test = Callable[[Any], bool]


@dataclass(frozen=True)
class Subject:
    """What a condition is about. name: for people. is_secret: messages don't show its value."""

    name: str
    read: Read
    is_prompt: bool = False
    is_secret: bool = False


@dataclass(frozen=True)
class Condition:
    """wanted: what the test asks for, for people.

    exact: the value itself if the test is for equality, so that a message can show where two texts part.
    """

    subject: Subject
    wanted: str
    test: Test
    exact: Any = None

    def holds(self, request: ScriptRequest) -> bool:
        """Whether the request is as the condition wants it."""
        return self.test(self.subject.read(request))


def json_equal(a: Any, b: Any) -> bool:
    """Equality of JSON values: 1 is 1.0, but true is neither 1 nor "true"."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(json_equal(value, b[key]) for key, value in a.items())
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(json_equal, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)
