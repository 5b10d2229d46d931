"""Drift: the recorded requests sent again, and what the server answers differently today."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from stubserver.errors import UpstreamError
from stubserver.playback.asgi_messages import OF_THE_CONNECTION
from stubserver.playback.canonical import parse_json, shown
from stubserver.playback.cassette import Cassette
from stubserver.playback.exchange import Exchange, Request
from stubserver.playback.redaction import REDACTED
from stubserver.playback.upstream import Upstream
from stubserver.serving.framing import EventCutter
from stubserver.serving.wire import Wire

_MISSING = object()


@dataclass
class Report:
    """asked: requests sent. drift: what differs, a line each. drifted: how many replies that concerns."""

    asked: int = 0
    drifted: int = 0
    drift: list[str] = field(default_factory=list)


async def verify_cassette(
    cassette: Cassette, upstream: Upstream, wire: Wire, api_key: str = "", tolerance: float = 1e-4
) -> Report:
    """Send every recorded request again, one after the other. `tolerance`: how far numbers may move, absolute.

    Raises UpstreamError as a line of the report where the server can't be reached.
    """
    report = Report()
    for number, exchange in enumerate(cassette.exchanges, 1):
        report.asked += 1
        lines = [line async for line in _drift(exchange, upstream, wire, api_key, tolerance)]
        report.drifted += bool(lines)
        report.drift += [f"{number} {exchange.request.line}: {line}" for line in lines]
    return report


async def _drift(
    exchange: Exchange, upstream: Upstream, wire: Wire, api_key: str, tolerance: float
) -> AsyncIterator[str]:
    recorded = exchange.reply
    try:
        async with upstream.open(_prepared(exchange.request, api_key)) as response:
            content = await response.aread()
    except (UpstreamError, upstream.broken) as error:
        yield str(error)
        return
    if response.status_code != recorded.status:
        yield f"the status was {recorded.status}, now {response.status_code}"
    is_stream = wire.framing.is_stream(response.headers.get("content-type", ""))
    if is_stream != (recorded.events is not None):
        yield f"it was {'a stream' if not is_stream else 'no stream'}, now it {'is one' if is_stream else 'is none'}"
        return
    left, right = (_events(each, wire) if is_stream else _value(each) for each in (recorded.content, content))
    for line in drift(left, right, tolerance, wire.fresh_fields):
        yield line


def _prepared(request: Request, api_key: str) -> Request:
    headers = tuple(pair for pair in request.headers if pair[0] not in OF_THE_CONNECTION and REDACTED not in pair[1])
    own = (("authorization", f"Bearer {api_key}"),) if api_key else ()
    return replace(request, headers=headers + own)


def _events(content: bytes, wire: Wire) -> Any:
    """The events of a stream as JSON values, choice by choice, since those interleave by chance."""
    by_choice: dict[str, list[Any]] = {}
    for event in EventCutter().feed(content):
        value = _value(wire.framing.read(event))
        choices = wire.read_choices(value) if isinstance(value, dict) else []
        by_choice.setdefault(f"choice {choices[0].index if choices else 'last'}", []).append(value)
    return by_choice


def _value(content: bytes) -> Any:
    try:
        return parse_json(content)
    except ValueError:
        return content.decode("utf-8", "replace")


def drift(recorded: Any, now: Any, tolerance: float, fresh: Collection[str], path: str = "") -> Iterator[str]:
    """What differs: fields that appeared or went, numbers that moved by more than the tolerance, other values.

    fresh: fields that are new in every reply: only their kind counts, and of an id what stands before its first hyphen.
    """
    name = path.rpartition(".")[2]
    if now is _MISSING:
        yield f"{path} has gone (it was {shown(recorded)})"
    elif recorded is _MISSING:
        yield f"{path} is new ({shown(now)})"
    elif isinstance(recorded, dict) and isinstance(now, dict):
        for key in [*recorded, *(key for key in now if key not in recorded)]:
            inner = f"{path}.{key}" if path else str(key)
            yield from drift(recorded.get(key, _MISSING), now.get(key, _MISSING), tolerance, fresh, inner)
    elif isinstance(recorded, list) and isinstance(now, list):
        if len(recorded) != len(now):
            yield f"{path} had {len(recorded)} items, now {len(now)}"
        for index, pair in enumerate(zip(recorded, now, strict=False)):
            yield from drift(*pair, tolerance, fresh, f"{path}[{index}]")
    elif _is_number(recorded) and _is_number(now):
        if name not in fresh and abs(recorded - now) > tolerance:
            yield f"{path} was {json.dumps(recorded)}, now {json.dumps(now)}"
    elif type(recorded) is not type(now) or (recorded != now if name not in fresh else _kind(recorded) != _kind(now)):
        yield f"{path or 'the body'} was {shown(recorded)}, now {shown(now)}"


def _kind(value: Any) -> Any:
    """What counts of a value that is new in every reply."""
    if not isinstance(value, str):
        return value
    prefix, hyphen, _ = value.partition("-")
    return prefix if hyphen else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
