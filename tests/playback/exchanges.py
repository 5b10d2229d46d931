"""Exchanges for the tests, in few words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stubserver.playback.cassette import make_header, write_cassette
from stubserver.playback.exchange import Exchange, RecordedEvent, Reply, Request

JSON = (("content-type", "application/json"),)
SSE = (("content-type", "text/event-stream"),)


def compact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def request(path: str = "/v1/completions", **fields: Any) -> Request:
    return Request("POST", path, headers=JSON, body=compact(fields))


def full(asked: Request, answer: Any, status: int = 200) -> Exchange:
    return Exchange(asked, Reply(status, JSON, compact(answer)))


def stream(asked: Request, *events: bytes, step: float = 0.0) -> Exchange:
    timed = tuple(RecordedEvent(step * number, event) for number, event in enumerate(events))
    return Exchange(asked, Reply(200, SSE, events=timed))


def cassette(path: Path, *exchanges: Exchange, **upstream: Any) -> str:
    write_cassette(path, make_header(upstream), exchanges)
    return str(path)
