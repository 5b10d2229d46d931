"""Real server processes for real clients."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from processes import started, url_in

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """In CI a client that isn't installed is a failure: nobody would see the skipped tests there."""
    report = yield
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
    return report


@contextmanager
def serving(log: Path, *flags: str) -> Iterator[str]:
    """The URL of a `stubserver serve` of bigram512 with these flags; a server that died shows its output."""
    script = str(FIXTURES / "bigram512" / "script.yaml")
    with log.open("w") as stderr, started("serve", script, *flags, stderr=stderr) as (process, line):
        try:
            yield url_in(line)
            assert process.poll() is None, f"died with status {process.returncode}"
        except AssertionError as error:
            error.add_note(f"{' '.join(process.args)} said:\n{log.read_text()}")
            raise


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., AbstractContextManager[str]]:
    """`with serve(*flags) as url`: a server of bigram512."""
    return lambda *flags: serving(tmp_path_factory.mktemp("server") / "stderr.txt", *flags)


@pytest.fixture(scope="session")
def raw_server(serve: Callable[..., AbstractContextManager[str]]) -> Iterator[str]:
    """The URL of a server in raw_logprobs mode."""
    with serve("--logprobs-mode", "raw_logprobs") as url:
        yield url


@pytest.fixture(scope="session")
def processed_server(serve: Callable[..., AbstractContextManager[str]]) -> Iterator[str]:
    """The URL of a server in processed_logprobs mode."""
    with serve("--logprobs-mode", "processed_logprobs") as url:
        yield url
