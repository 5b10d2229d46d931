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
    group.addoption("--stub-record", metavar="MODE", help="the record_mode of stubs with a cassette: once, all, …")
    group.addoption("--stub-upstream", metavar="URL", help="the real server that is recorded")


def pytest_configure(config: pytest.Config) -> None:
    """The marker, for `--strict-markers`."""
    config.addinivalue_line(
        "markers", f"{MARKER}(script=None, **settings): a stub of its own for this test, with these settings"
    )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A line for each clause of the contract suite, if it ran."""
    told = [report for group in terminalreporter.stats.values() for report in group if _properties(report)]
    if not told:
        return
    from stubserver.testing.contract_properties import CLAUSE

    reports = [report for report in told if CLAUSE in _properties(report)]
    if reports:
        from stubserver.testing.contract_report import write_report

        write_report(terminalreporter, reports)


def _properties(report: Any) -> dict[str, object]:
    return dict(getattr(report, "user_properties", ()))


@pytest.fixture(scope="session")
def _session_stubserver(request: pytest.FixtureRequest) -> Iterator[StubServer]:
    from stubserver.testing.server import StubServer

    with StubServer(**_options(request)) as stub:
        yield stub


@pytest.fixture
def make_stubserver(request: pytest.FixtureRequest) -> Iterator[Callable[..., StubServer]]:
    """`make_stubserver(script, **settings)`: further servers, closed at the test's end."""
    from stubserver.testing.server import StubServer

    made: list[StubServer] = []

    def make(*script: Any, **settings: Any) -> StubServer:
        made.append(servers.enter_context(StubServer(**_options(request, *script, **settings))))
        return made[-1]

    with ExitStack() as servers:
        yield make
    _check_faults(*made)


@pytest.fixture
def stubserver(request: pytest.FixtureRequest) -> Iterator[StubServer]:
    """A stub on a free port: one for all tests, as new for each; with the marker, one of the test's own."""
    marker = request.node.get_closest_marker(MARKER)
    if marker is not None:
        make: Callable[..., StubServer] = request.getfixturevalue("make_stubserver")
        yield make(*marker.args, **marker.kwargs)
        return
    stub: StubServer = request.getfixturevalue("_session_stubserver")
    stub.reset()
    stub._begin_fault_log()
    yield stub
    _check_faults(stub)


@pytest.fixture
def stubserver_in_process(request: pytest.FixtureRequest) -> Iterator[Stub]:
    """A stub without a socket, the test's own; with the settings of the marker, if there is one."""
    from stubserver.testing.stub import Stub

    marker = request.node.get_closest_marker(MARKER)
    given = (marker.args, marker.kwargs) if marker else ((), {})
    stub = Stub(**_options(request, *given[0], **given[1]))
    yield stub
    stub.close()
    _check_faults(stub)


@pytest.fixture
def stubserver_env(stubserver: StubServer, monkeypatch: pytest.MonkeyPatch) -> StubServer:
    """The `stubserver`, to which OPENAI_BASE_URL and OPENAI_API_KEY lead during the test."""
    monkeypatch.setenv("OPENAI_BASE_URL", stubserver.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", stubserver.api_key)
    return stubserver


def _check_faults(*stubs: Stub) -> None:
    """Fail the test if a fault befell replies and changed nothing: it doesn't test what it says."""
    for stub in stubs:
        idle = stub._fault_log.explain_idle()
        if idle:
            pytest.fail(idle, pytrace=False)


def _options(request: pytest.FixtureRequest, script: Any = None, **settings: Any) -> dict[str, Any]:
    """Arguments of a stub: those of the test, else those of the command line."""
    option = request.config.getoption
    mode = option("--stub-logprobs-mode")
    given = {} if mode is None else {"logprobs_mode": mode}
    cassette = settings.pop("cassette", None)
    if cassette:
        given |= _cassette_options(request, cassette)
    return {"script": option("--stub-script") if script is None else script, **given, **settings}


def _cassette_options(request: pytest.FixtureRequest, cassette: Any) -> dict[str, Any]:
    """Which cassette, `True` being the test's own, and whether it is recorded."""
    from stubserver.playback.names import cassette_for_test

    own = cassette is True
    path = cassette_for_test(request.node.path, request.node.name) if own else cassette
    wanted = {"record_mode": "--stub-record", "upstream": "--stub-upstream"}
    given = {setting: request.config.getoption(option) for setting, option in wanted.items()}
    return {"cassette": str(path), **{setting: value for setting, value in given.items() if value is not None}}
