"""Every recorded exchange, replayed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
from exceptions import EXCEPTIONS
from recordings import RECORDINGS, Exchange, load_exchanges
from replay import replay

from stubserver import memory

EXCHANGES = list(load_exchanges(RECORDINGS))


@pytest.mark.parametrize("memory", [nullcontext, memory.switched_off], ids=["memory", "no memory"])
@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.id)
def test_recorded_exchange(exchange: Exchange, memory: Callable[[], AbstractContextManager[None]]) -> None:
    """With all that is remembered between requests, and without: it must never show."""
    with memory():
        found = replay(exchange, remembers=memory is nullcontext)
    assert not found, "\n".join(found)


def test_no_exchange_is_left_out() -> None:
    """1,545 exchanges as given, and 170 and 2,280 of our own."""
    beginnings = ("more", "http")
    counts = Counter(exchange.file.split("_")[0] for exchange in EXCHANGES)
    own = {name: counts.pop(name) for name in beginnings}
    assert (counts.total(), own) == (1545, {"more": 170, "http": 2280})


def test_exceptions_name_exchanges() -> None:
    assert EXCEPTIONS.keys() <= {exchange.id for exchange in EXCHANGES}
