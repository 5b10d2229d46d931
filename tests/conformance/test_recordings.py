"""Every recorded exchange, replayed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import pytest
from compare import Comparison
from exceptions import EXCEPTIONS
from recordings import SCRIPT, Exchange, load_exchanges
from starlette.testclient import TestClient

from stubserver import memory
from stubserver.app import create_app

EXCHANGES = list(load_exchanges())


@cache
def client(settings: str, *, remembers: bool) -> TestClient:
    """remembers: only so that a server which remembers nothing is none that has learnt something before."""
    return TestClient(create_app(SCRIPT, **json.loads(settings)), raise_server_exceptions=False)


@pytest.mark.parametrize("memory", [nullcontext, memory.switched_off], ids=["memory", "no memory"])
@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.id)
def test_recorded_exchange(exchange: Exchange, memory: Callable[[], AbstractContextManager[None]]) -> None:
    """With all that is remembered between requests, and without: it must never show."""
    compare = Comparison(**EXCEPTIONS.get(exchange.id, {}))
    with memory():
        server = client(json.dumps(exchange.settings), remembers=memory is nullcontext)
        reply = server.request(
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


def test_no_exchange_is_left_out() -> None:
    """1,545 exchanges as given, and 170 of our own."""
    counts = Counter("more" if exchange.file.startswith("more_") else "given" for exchange in EXCHANGES)
    assert counts == {"given": 1545, "more": 170}


def test_exceptions_name_exchanges() -> None:
    assert EXCEPTIONS.keys() <= {exchange.id for exchange in EXCHANGES}
