"""Every recorded exchange of the routes that are served, replayed."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache

import pytest
from compare import Comparison
from exceptions import EXCEPTIONS
from recordings import SCRIPT, Exchange, load_exchanges
from starlette.testclient import TestClient

from stubserver.app import create_app

EXCHANGES = list(load_exchanges())


@cache
def client(settings: str) -> TestClient:
    return TestClient(create_app(SCRIPT, **json.loads(settings)), raise_server_exceptions=False)


@pytest.mark.parametrize("exchange", [e for e in EXCHANGES if e.served], ids=lambda exchange: exchange.id)
def test_recorded_exchange(exchange: Exchange) -> None:
    compare = Comparison(**EXCEPTIONS.get(exchange.id, {}))
    reply = client(json.dumps(exchange.settings)).request(
        exchange.request["method"], exchange.path, content=exchange.content, headers=exchange.headers
    )
    recorded = exchange.response
    assert reply.status_code == recorded["status"], reply.text
    assert reply.headers.get("content-type", "") == recorded["content_type"]
    if "events" in recorded:
        events = [event.removeprefix("data: ") for event in reply.text.split("\n\n") if event]
        ours = [event if event == "[DONE]" else json.loads(event) for event in events]
        found = list(compare.streams(recorded["events"], ours))
    elif "body" in recorded:
        found = list(compare.values(recorded["body"], reply.json()))
    else:
        found = list(compare.values(recorded["text"], reply.text))
    assert not found, "\n".join(found)


def test_every_exchange_is_replayed_or_named() -> None:
    """1,545 exchanges: those of routes to come are counted here, so that none is left out unseen."""
    waiting = Counter(exchange.path for exchange in EXCHANGES if not exchange.served)
    assert len(EXCHANGES) == 1545
    assert waiting == {
        "/v1/chat/completions": 150,
        "/inference/v1/generate": 42,
        "/generative_scoring": 12,
        "/v1/systemone": 10,
    }


def test_exceptions_name_exchanges() -> None:
    assert EXCEPTIONS.keys() <= {exchange.id for exchange in EXCHANGES}
