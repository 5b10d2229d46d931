"""The pytest plugin: fixtures and a marker. It imports nothing of stubserver before a test asks for a fixture.

def test_labels(stubserver):
    stubserver.on(prompt="Answer:").logits({" A": 2.0, " B": 1.0, " The": 5.0}, rest=-10)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from stubserver.testing.server import StubServer
    from stubserver.testing.stub import Stub

MARKER = "stubserver"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options: what the fixtures' stubs say and report, unless a test has its own."""
    group = parser.getgroup("stubserver")
    group.addoption("--stub-script", metavar="SCRIPT", help="the script of the stubserver fixtures; none: the demo's")
    group.addoption("--stub-logprobs-mode", metavar="MODE", help="the logprobs_mode of the stubserver fixtures")


def pytest_configure(config: pytest.Config) -> None:
    """The marker, for `--strict-markers`."""
    config.addinivalue_line(
        "markers", f"{MARKER}(script=None, **settings): a stub of its own for this test, with these settings"
    )


@pytest.fixture(scope="session")
def _session_stubserver(request: pytest.FixtureRequest) -> Iterator[StubServer]:
    from stubserver.testing.server import StubServer

    with StubServer(**_options(request.config)) as stub:
        yield stub


@pytest.fixture
def make_stubserver(request: pytest.FixtureRequest) -> Iterator[Callable[..., StubServer]]:
    """`make_stubserver(script, **settings)`: further servers, closed at the test's end."""
    from stubserver.testing.server import StubServer

    with ExitStack() as servers:
        yield lambda *script, **settings: servers.enter_context(
            StubServer(**_options(request.config, *script, **settings))
        )


@pytest.fixture
def stubserver(request: pytest.FixtureRequest) -> StubServer:
    """A stub on a free port: one for all tests, as new for each; with the marker, one of the test's own."""
    marker = request.node.get_closest_marker(MARKER)
    if marker is not None:
        make: Callable[..., StubServer] = request.getfixturevalue("make_stubserver")
        return make(*marker.args, **marker.kwargs)
    stub: StubServer = request.getfixturevalue("_session_stubserver")
    stub.reset()
    return stub


@pytest.fixture
def stubserver_in_process(request: pytest.FixtureRequest) -> Stub:
    """A stub without a socket, the test's own; with the settings of the marker, if there is one."""
    from stubserver.testing.stub import Stub

    marker = request.node.get_closest_marker(MARKER)
    given = (marker.args, marker.kwargs) if marker else ((), {})
    return Stub(**_options(request.config, *given[0], **given[1]))


@pytest.fixture
def stubserver_env(stubserver: StubServer, monkeypatch: pytest.MonkeyPatch) -> StubServer:
    """The `stubserver`, to which OPENAI_BASE_URL and OPENAI_API_KEY lead during the test."""
    monkeypatch.setenv("OPENAI_BASE_URL", stubserver.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", stubserver.api_key)
    return stubserver


def _options(config: pytest.Config, script: Any = None, **settings: Any) -> dict[str, Any]:
    """Arguments of a stub: those of the test, else those of the command line."""
    mode = config.getoption("--stub-logprobs-mode")
    given = {} if mode is None else {"logprobs_mode": mode}
    return {"script": config.getoption("--stub-script") if script is None else script, **given, **settings}
