"""How conditions are read: from a `when`, as a script writes it, to tests that a request has to pass."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stubserver.headers import is_secret
from stubserver.keys.document import Place
from stubserver.keys.when import FieldMatch, HeaderMatch, PromptMatch, When
from stubserver.script.conditions import MISSING, Condition, Read, Subject, json_equal


def read_conditions(when: When, place: Place) -> tuple[Condition, ...]:
    """The conditions of a `when`, all of which have to hold. Raises ScriptError for a bad regex or path."""
    conditions: list[Condition] = []
    if when.prompt is not None:
        conditions += _prompt(when.prompt, place / "prompt")
    if when.model is not None:
        conditions.append(_model(when.model))
    for path, match in when.field.items():
        conditions += _matches(_field(path, place / "field" / path), match, place / "field" / path)
    for name, header in when.header.items():
        conditions += _matches(_header(name), header, place / "header" / name)
    return tuple(conditions)


# What is read ---------------------------------------------------------------------------------------------------------

_PROMPT = Subject("prompt", lambda request: request.prompt, is_prompt=True)
_TOKEN_IDS = Subject("prompt_token_ids", lambda request: list(request.prompt_token_ids), is_prompt=True)
_MODEL = Subject("model", lambda request: request.model)

_PATH_PART = re.compile(r'\.?(?P<key>[^.\[\]]+)|\[(?P<index>-?\d+)\]|\["(?P<quoted>[^"]*)"\]')


def _header(name: str) -> Subject:
    lower = name.lower()
    return Subject(
        f"header {name}", lambda request: request.headers.get(lower, MISSING), is_secret=is_secret(name.encode())
    )


def _field(path: str, place: Place) -> Subject:
    return Subject(f"field {path}", _read_field(path, place))


def _read_field(path: str, place: Place) -> Read:
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


# What it has to be ----------------------------------------------------------------------------------------------------


def _prompt(match: PromptMatch, place: Place) -> Iterator[Condition]:
    yield from _matches(_PROMPT, match, place)
    if match.token_ids is not None:
        yield _equal(_TOKEN_IDS, match.token_ids)


def _model(names: list[str]) -> Condition:
    return Condition(_MODEL, " or ".join(map(repr, names)), lambda name: name in names)


def _matches(subject: Subject, match: PromptMatch | FieldMatch | HeaderMatch, place: Place) -> Iterator[Condition]:
    """One condition for each key of the mapping."""
    if "exact" in match.model_fields_set:
        yield _equal(subject, match.exact)
    if match.contains is not None:
        yield _contains(subject, match.contains)
    if match.regex is not None:
        yield _regex(subject, match.regex, place)
    if not isinstance(match, PromptMatch) and match.exists is not None:
        yield _exists(subject, match.exists)


def _equal(subject: Subject, wanted: Any) -> Condition:
    shown = json.dumps(wanted, ensure_ascii=False, default=str)
    return Condition(subject, shown, lambda value: json_equal(value, wanted), exact=wanted)


def _contains(subject: Subject, part: str) -> Condition:
    shown = f"a text with {json.dumps(part, ensure_ascii=False)}"
    return Condition(subject, shown, lambda value: isinstance(value, str) and part in value)


def _regex(subject: Subject, regex: str, place: Place) -> Condition:
    try:
        pattern = re.compile(regex)
    except re.error as error:
        raise (place / "regex").error(f"isn't a regular expression: {error}") from None
    shown = f"a text with /{regex}/"
    return Condition(subject, shown, lambda value: isinstance(value, str) and pattern.search(value) is not None)


def _exists(subject: Subject, wanted: bool) -> Condition:
    return Condition(subject, "any value" if wanted else "nothing", lambda value: (value is not MISSING) == wanted)
