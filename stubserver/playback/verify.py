"""Drift: the recorded requests sent again, and what the server answers differently today."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from stubserver.errors import UpstreamError
from stubserver.playback.canonical import parse_json, shown
from stubserver.playback.cassette import Cassette
from stubserver.playback.events import EventCutter
from stubserver.playback.exchange import Exchange, Request
from stubserver.playback.redaction import REDACTED
from stubserver.playback.upstream import Upstream
from stubserver.playback.wire import OF_THE_CONNECTION

FREE_FIELDS = frozenset({"id", "request_id", "created", "system_fingerprint"})
"""Fields that are new in every reply: only their kind counts, and of an id what stands before its first hyphen."""

_MISSING = object()


@dataclass
class Report:
    """asked: requests sent. drift: what differs, a line each. drifted: how many replies that concerns."""

    asked: int = 0
    drifted: int = 0
    drift: list[str] = field(default_factory=list)


async def verify_cassette(cassette: Cassette, upstream: Upstream, api_key: str = "", tolerance: float = 1e-4) -> Report:
    """Send every recorded request again, one after the other. `tolerance`: how far numbers may move, absolute.

    Raises UpstreamError as a line of the report where the server can't be reached.
    """
    report = Report()
    for number, exchange in enumerate(cassette.exchanges, 1):
        report.asked += 1
        lines = [line async for line in _drift(exchange, upstream, api_key, tolerance)]
        report.drifted += bool(lines)
        report.drift += [f"{number} {exchange.request.line}: {line}" for line in lines]
    return report


async def _drift(exchange: Exchange, upstream: Upstream, api_key: str, tolerance: float) -> AsyncIterator[str]:
    recorded = exchange.reply
    try:
        async with upstream.open(_prepared(exchange.request, api_key)) as response:
            content = await response.aread()
    except (UpstreamError, upstream.broken) as error:
        yield str(error)
        return
    if response.status_code != recorded.status:
        yield f"the status was {recorded.status}, now {response.status_code}"
    is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
    if is_stream != (recorded.events is not None):
        yield f"it was {'a stream' if not is_stream else 'no stream'}, now it {'is one' if is_stream else 'is none'}"
        return
    left = _values(recorded.content, is_stream)
    right = _values(content, is_stream)
    for line in drift(left, right, tolerance):
        yield line


def _prepared(request: Request, api_key: str) -> Request:
    headers = tuple(pair for pair in request.headers if pair[0] not in OF_THE_CONNECTION and REDACTED not in pair[1])
    own = (("authorization", f"Bearer {api_key}"),) if api_key else ()
    return replace(request, headers=headers + own)


def _values(content: bytes, is_stream: bool) -> Any:
    """The reply as a JSON value: of a stream, its events choice by choice, since those interleave by chance."""
    if not is_stream:
        return _value(content)
    events = [_value(event.strip().removeprefix(b"data:").strip()) for event in EventCutter().feed(content)]
    choices: dict[str, list[Any]] = {}
    for event in events:
        parts = event.get("choices") if isinstance(event, dict) else None
        index = parts[0].get("index") if isinstance(parts, list) and parts and isinstance(parts[0], dict) else "last"
        choices.setdefault(f"choice {index}", []).append(event)
    return choices


def _value(content: bytes) -> Any:
    try:
        return parse_json(content)
    except ValueError:
        return content.decode("utf-8", "replace")


def drift(recorded: Any, now: Any, tolerance: float, path: str = "") -> Iterator[str]:
    """What differs: fields that appeared or went, numbers that moved by more than the tolerance, other values."""
    name = path.rpartition(".")[2]
    if now is _MISSING:
        yield f"{path} has gone (it was {shown(recorded)})"
    elif recorded is _MISSING:
        yield f"{path} is new ({shown(now)})"
    elif isinstance(recorded, dict) and isinstance(now, dict):
        for key in [*recorded, *(key for key in now if key not in recorded)]:
            inner = f"{path}.{key}" if path else str(key)
            yield from drift(recorded.get(key, _MISSING), now.get(key, _MISSING), tolerance, inner)
    elif isinstance(recorded, list) and isinstance(now, list):
        if len(recorded) != len(now):
            yield f"{path} had {len(recorded)} items, now {len(now)}"
        for index, pair in enumerate(zip(recorded, now, strict=False)):
            yield from drift(*pair, tolerance, f"{path}[{index}]")
    elif _is_number(recorded) and _is_number(now):
        if name not in FREE_FIELDS and abs(recorded - now) > tolerance:
            yield f"{path} was {json.dumps(recorded)}, now {json.dumps(now)}"
    elif type(recorded) is not type(now) or _told_apart(name, recorded) != _told_apart(name, now):
        yield f"{path or 'the body'} was {shown(recorded)}, now {shown(now)}"


def _told_apart(name: str, value: Any) -> Any:
    """What of a value counts."""
    if name not in FREE_FIELDS or not isinstance(value, str):
        return value
    prefix, hyphen, _ = value.partition("-")
    return prefix if hyphen else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
