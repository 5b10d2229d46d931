"""One exchange, a request and its reply, and how it is written as a line of JSON.

A body that is JSON in the compact form of most servers is written as JSON, for people to read in a diff; what would
not come back byte for byte from that (other spacing, other spellings of floats, double keys) is written as a text, and
what is no text as base64. So the bytes are exact whichever way they are written.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from stubserver.serving.framing import EVENTS

Headers = tuple[tuple[str, str], ...]
"""Names in lower case, in the order of the wire."""


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked. `body`: without the content encoding that it came in. `query`: as in the URL."""

    method: str
    path: str
    query: str = ""
    headers: Headers = ()
    body: bytes = b""

    @property
    def line(self) -> str:
        """`POST /v1/completions`, with the query."""
        return f"{self.method} {self.path}{'?' + self.query if self.query else ''}"


class RecordedEvent(NamedTuple):
    """A server-sent event with its separator. `at`: seconds since the request."""

    at: float
    data: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """What was answered. `body` or `events` have no content encoding any more; `encoding` is the one they came in.

    seconds: from the request to the reply's first byte.
    """

    status: int
    headers: Headers = ()
    body: bytes = b""
    events: tuple[RecordedEvent, ...] | None = None
    encoding: str = ""
    seconds: float = 0.0

    @property
    def content(self) -> bytes:
        """All of the body, of a stream too."""
        return self.body if self.events is None else b"".join(event.data for event in self.events)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its reply."""

    request: Request
    reply: Reply


# To JSON --------------------------------------------------------------------------------------------------------------


def write_exchange(exchange: Exchange) -> dict[str, Any]:
    """The exchange as an object of JSON, its keys always in the same order."""
    return {"request": _write_request(exchange.request), "reply": _write_reply(exchange.reply)}


def _write_request(request: Request) -> dict[str, Any]:
    written: dict[str, Any] = {"method": request.method, "path": request.path}
    if request.query:
        written["query"] = request.query
    written["headers"] = dict(request.headers)
    # A request is compared as canonical JSON, so a client's spacing is nothing to keep.
    return written | _write_bytes(request.body, styles=(_compact, json.dumps))


def _write_reply(reply: Reply) -> dict[str, Any]:
    written: dict[str, Any] = {"status": reply.status, "seconds": round(reply.seconds, 6), "headers": _merged(reply)}
    if reply.encoding:
        written["encoding"] = reply.encoding
    if reply.events is None:
        return written | _write_bytes(reply.body)
    return {**written, "events": [_write_event(event) for event in reply.events]}


def _merged(reply: Reply) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in reply.headers:
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _write_event(event: RecordedEvent) -> dict[str, Any]:
    at = {"at": round(event.at, 6)}
    data = EVENTS.read(event.data)
    if event.data == EVENTS.write(data):
        written = _write_bytes(data)
        if "json" in written:
            return at | written
    return at | _write_bytes(event.data, styles=())


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _write_bytes(data: bytes, styles: tuple[Any, ...] = (_compact,)) -> dict[str, Any]:
    if not data:
        return {}
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}
    try:
        value = json.loads(text)
        if any(style(value) == text for style in styles) and _is_plain(text):
            return {"json": value}
    except (ValueError, RecursionError):
        pass
    return {"text": text}


def _is_plain(text: str) -> bool:
    """Not a spelling of what JSON lacks, which Python would read and write."""
    return "NaN" not in text and "Infinity" not in text


# From JSON ------------------------------------------------------------------------------------------------------------


def read_exchange(written: Mapping[str, Any]) -> Exchange:
    """The exchange that this object describes. Raises KeyError, TypeError or ValueError if it is none."""
    return Exchange(_read_request(written["request"]), _read_reply(written["reply"]))


def _read_request(written: Mapping[str, Any]) -> Request:
    headers = _read_headers(written)
    return Request(written["method"], written["path"], written.get("query", ""), headers, _read_bytes(written))


def _read_reply(written: Mapping[str, Any]) -> Reply:
    events = tuple(map(_read_event, written["events"])) if "events" in written else None
    return Reply(
        status=int(written["status"]),
        headers=_read_headers(written),
        body=_read_bytes(written),
        events=events,
        encoding=written.get("encoding", ""),
        seconds=float(written.get("seconds", 0)),
    )


def _read_headers(written: Mapping[str, Any]) -> Headers:
    return tuple((str(name).lower(), str(value)) for name, value in written.get("headers", {}).items())


def _read_event(written: Mapping[str, Any]) -> RecordedEvent:
    data = _read_bytes(written)
    return RecordedEvent(float(written.get("at", 0)), EVENTS.write(data) if "json" in written else data)


def _read_bytes(written: Mapping[str, Any]) -> bytes:
    if "json" in written:
        return _compact(written["json"]).encode()
    if "base64" in written:
        return b64decode(written["base64"], validate=True)
    return str(written.get("text", "")).encode()
