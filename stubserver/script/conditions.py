"""The conditions of a rule: what is read from the request, and the test that it has to pass."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stubserver.keys.document import Place
from stubserver.keys.when import FieldMatch, HeaderMatch, PromptMatch, When
from stubserver.script.context import ScriptRequest


class _Missing:
    """What a field or header that isn't there reads as; unlike None, no JSON value equals it."""

    def __repr__(self) -> str:
        return "nothing"


MISSING: Final = _Missing()

Read = Callable[[ScriptRequest], Any]
Test = Callable[[Any], bool]


@dataclass(frozen=True)
class Condition:
    """subject: what is read, for people. wanted: what the test asks for, likewise.

    exact: the value itself if the test is for equality, so that a message can show where two texts part.
    """

    subject: str
    wanted: str
    read: Read
    test: Test
    exact: Any = None

    def holds(self, request: ScriptRequest) -> bool:
        """Whether the request is as the condition wants it."""
        return self.test(self.read(request))

    @property
    def is_about_prompt(self) -> bool:
        """Whether it reads the prompt, or something beside it."""
        return self.subject in ("prompt", "prompt_token_ids")


def read_conditions(when: When, place: Place) -> tuple[Condition, ...]:
    """The conditions of a `when`, all of which have to hold. Raises ScriptError for a bad regex or path."""
    conditions: list[Condition] = []
    if when.prompt is not None:
        conditions += _prompt(when.prompt, place / "prompt")
    if when.model is not None:
        conditions.append(_model(when.model))
    for path, match in when.field.items():
        conditions += _matches(f"field {path}", read_field(path, place / "field" / path), match, place / "field" / path)
    for name, header in when.header.items():
        conditions += _matches(f"header {name}", _read_header(name), header, place / "header" / name)
    return tuple(conditions)


def json_equal(a: Any, b: Any) -> bool:
    """Equality of JSON values: 1 is 1.0, but true is neither 1 nor "true"."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(json_equal(value, b[key]) for key, value in a.items())
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(json_equal, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


_PATH_PART = re.compile(r'\.?(?P<key>[^.\[\]]+)|\[(?P<index>-?\d+)\]|\["(?P<quoted>[^"]*)"\]')


def read_field(path: str, place: Place) -> Read:
    """A reader of `messages[-1].content`, `stream_options.include_usage` or `["dotted.key"]` from the JSON body.

    Raises ScriptError for what is no such path.
    """
    parts: list[str | int] = []
    position = 0
    text = path.removeprefix("$")
    while position < len(text):
        match = _PATH_PART.match(text, position)
        if match is None:
            raise place.error(f"isn't a path such as messages[-1].content: can't read {text[position:]!r}")
        index = match["index"]
        parts.append(int(index) if index is not None else match["key"] or match["quoted"] or "")
        position = match.end()
    if not parts:
        raise place.error("isn't a path such as messages[-1].content")
    return lambda request: _walk(request.body, parts)


def _walk(value: Any, parts: Sequence[str | int]) -> Any:
    for part in parts:
        if not _has(value, part):
            return MISSING
        value = value[part]
    return value


def _has(value: Any, part: str | int) -> bool:
    if isinstance(part, str):
        return isinstance(value, Mapping) and part in value
    return isinstance(value, list) and -len(value) <= part < len(value)


def _read_header(name: str) -> Read:
    lower = name.lower()
    return lambda request: request.headers.get(lower, MISSING)


def _read_prompt(request: ScriptRequest) -> str:
    return request.prompt


def _read_token_ids(request: ScriptRequest) -> list[int]:
    return list(request.prompt_token_ids)


def _prompt(match: PromptMatch, place: Place) -> Iterator[Condition]:
    yield from _matches("prompt", _read_prompt, match, place)
    if match.token_ids is not None:
        yield _equal("prompt_token_ids", _read_token_ids, match.token_ids)


def _model(names: list[str]) -> Condition:
    return Condition("model", " or ".join(map(repr, names)), lambda request: request.model, lambda name: name in names)


def _matches(
    subject: str, read: Read, match: PromptMatch | FieldMatch | HeaderMatch, place: Place
) -> Iterator[Condition]:
    """One condition for each key of the mapping."""
    given = match.model_fields_set
    if "exact" in given:
        yield _equal(subject, read, match.exact)
    if match.contains is not None:
        yield _contains(subject, read, match.contains)
    if match.regex is not None:
        yield _regex(subject, read, match.regex, place)
    if not isinstance(match, PromptMatch) and match.exists is not None:
        yield _exists(subject, read, match.exists)


def _equal(subject: str, read: Read, wanted: Any) -> Condition:
    shown = json.dumps(wanted, ensure_ascii=False, default=str)
    return Condition(subject, shown, read, lambda value: json_equal(value, wanted), exact=wanted)


def _contains(subject: str, read: Read, part: str) -> Condition:
    return Condition(
        subject,
        f"a text with {json.dumps(part, ensure_ascii=False)}",
        read,
        lambda value: _is_text(value) and part in value,
    )


def _regex(subject: str, read: Read, regex: str, place: Place) -> Condition:
    try:
        pattern = re.compile(regex)
    except re.error as error:
        raise (place / "regex").error(f"isn't a regular expression: {error}") from None
    return Condition(
        subject, f"a text with /{regex}/", read, lambda value: _is_text(value) and pattern.search(value) is not None
    )


def _exists(subject: str, read: Read, wanted: bool) -> Condition:
    return Condition(
        subject, "any value" if wanted else "nothing", read, lambda value: (value is not MISSING) == wanted
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
