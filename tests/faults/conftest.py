"""Servers for the tests of faults and profiles."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fault_server import Running, serving


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Running]:
    with serving() as server:
        yield server


@pytest.fixture
def server(shared_server: Running) -> Running:
    """A server without faults."""
    shared_server.state.faults.reset()
    return shared_server
