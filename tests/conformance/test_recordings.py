"""Every recorded exchange, replayed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
from exceptions import EXCEPTIONS, UNMATCHED
from recordings import RECORDINGS, Exchange, load_exchanges
from replay import replay

from stubserver import memory

RECORDED = list(load_exchanges(RECORDINGS))
EXCHANGES = [exchange for exchange in RECORDED if exchange.id not in UNMATCHED]


@pytest.mark.parametrize("memory", [nullcontext, memory.switched_off], ids=["memory", "no memory"])
@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.id)
def test_recorded_exchange(exchange: Exchange, memory: Callable[[], AbstractContextManager[None]]) -> None:
    """With all that is remembered between requests, and without: it must never show."""
    with memory():
        found = replay(exchange, remembers=memory is nullcontext)
    assert not found, "\n".join(found)


def test_no_exchange_is_left_out() -> None:
    """1,545 exchanges and 982 of edges as given, and 170 and 2,280 of our own; 11 aren't replayed."""
    counts = {folder.name: len(list(load_exchanges([folder]))) for folder in RECORDINGS}
    assert counts == {
        "vllm-0.32.0": 1545,
        "vllm-0.32.0-more": 170,
        "vllm-0.32.0-http": 2280,
        "vllm-0.32.0-edges": 982,
    }
    assert len(EXCHANGES) == 4977 - len(UNMATCHED) == 4966


def test_exceptions_name_exchanges() -> None:
    assert EXCEPTIONS.keys() | UNMATCHED.keys() <= {exchange.id for exchange in RECORDED}
