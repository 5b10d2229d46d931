"""A full reply out of a recorded stream, and a stream out of a full reply. Nothing is added that wasn't recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from stubserver.playback.canonical import parse_json
from stubserver.playback.exchange import RecordedEvent, Reply, Request
from stubserver.serving.wire import Wire

CONVERTED = "x-stub-converted"
"""The header of a converted reply; its value is the form that was recorded."""


def requests_in_other_form(request: Request, wire: Wire) -> Iterator[Request]:
    """The requests for the same in the other form; none if the body is no JSON object."""
    try:
        body = parse_json(request.body)
    except ValueError:
        return
    if isinstance(body, dict):
        yield from (replace(request, body=json.dumps(other).encode()) for other in wire.other_form(body))


def convert_reply(reply: Reply, request: Request, wire: Wire) -> Reply | None:
    """The reply in its other form; None if it can't be told."""
    if reply.status != 200:
        return reply
    try:
        return _to_stream(reply, request, wire) if reply.events is None else _to_full(reply, wire)
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def _to_stream(reply: Reply, request: Request, wire: Wire) -> Reply:
    documents = wire.unfold(parse_json(reply.body), parse_json(request.body))
    done = [wire.framing.done] if wire.framing.done else []
    events = [*(wire.framing.write(_compact(document)) for document in documents), *done]
    timed = tuple(RecordedEvent(reply.seconds, event) for event in events)
    return replace(
        reply, headers=_headers(reply, "full", f"{wire.framing.media_type}; charset=utf-8"), body=b"", events=timed
    )


def _to_full(reply: Reply, wire: Wire) -> Reply:
    events = [event.data for event in reply.events or () if not wire.framing.is_done(event.data)]
    documents = [parse_json(text) for text in map(wire.framing.read, events) if text.strip()]
    body = _compact(wire.fold(documents))
    return replace(reply, headers=_headers(reply, "stream", "application/json"), body=body, events=None)


def _headers(reply: Reply, form: str, media_type: str) -> tuple[tuple[str, str], ...]:
    headers = (pair for pair in reply.headers if pair[0] != "content-type")
    return (*headers, ("content-type", media_type), (CONVERTED, form))


def _compact(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
