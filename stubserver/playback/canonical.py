"""A body's canonical form: what two requests have in common that ask for the same.

The order of keys and the spelling of numbers don't matter (1.0 is 1), the order of lists does, and 1 is not "1".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import parse_qsl, urlencode

_MISSING = object()


def parse_json(body: bytes) -> Any:
    """The body's JSON value. Raises ValueError if it has none."""
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def canonical_body(body: bytes, ignored: Iterable[str]) -> str:
    """The body as canonical JSON, less the ignored fields (`user`, `stream_options.include_usage`); or its own text."""
    try:
        value = parse_json(body)
    except ValueError:
        return "text " + body.decode("utf-8", "backslashreplace")
    for path in ignored:
        _drop(value, path.split("."))
    return "json " + json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))


def canonical_query(query: str) -> str:
    """The query with its parameters in order."""
    return urlencode(sorted(parse_qsl(query, keep_blank_values=True)))


def _drop(value: Any, path: list[str]) -> None:
    *parents, last = path
    for name in parents:
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, dict):
        value.pop(last, None)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def differences(recorded: Any, given: Any, path: str = "") -> Iterator[str]:
    """The fields in which two canonical values differ, for people."""
    if isinstance(recorded, dict) and isinstance(given, dict):
        for key in [*recorded, *(key for key in given if key not in recorded)]:
            name = f"{path}.{key}" if path else str(key)
            yield from differences(recorded.get(key, _MISSING), given.get(key, _MISSING), name)
    elif isinstance(recorded, list) and isinstance(given, list) and len(recorded) == len(given):
        for index, pair in enumerate(zip(recorded, given, strict=True)):
            yield from differences(*pair, f"{path}[{index}]")
    elif recorded is _MISSING:
        yield f"{path} was not there, now {shown(given)}"
    elif given is _MISSING:
        yield f"{path} was {shown(recorded)}, now it is not there"
    elif _kind(recorded) != _kind(given) or recorded != given:
        yield f"{path or 'the body'} was {shown(recorded)}, now {shown(given)}"


def _kind(value: Any) -> type:
    """1 and 1.0 are of one kind, True and "1" of others."""
    return float if isinstance(value, int) and not isinstance(value, bool) else type(value)


def shown(value: Any, longest: int = 120) -> str:
    """The value as JSON, cut short."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= longest else text[:longest] + "…"
