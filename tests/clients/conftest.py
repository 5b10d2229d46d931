"""Real server processes for real clients."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Timer

import pytest

FIXTURES = Path(__file__).parents[2] / "fixtures"
START_SECONDS = 60


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
    command = [sys.executable, "-m", "stubserver", "serve", str(FIXTURES / "bigram512" / "script.yaml"), "--port", "0"]
    with (
        log.open("w") as stderr,
        subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        assert process.stdout is not None
        overdue = Timer(START_SECONDS, process.kill)
        overdue.start()
        ready = re.search(r"ready at (\S+):", process.stdout.readline())
        overdue.cancel()
        try:
            assert ready, "no ready line"
            yield ready[1]
            assert process.poll() is None, f"died with status {process.returncode}"
        except AssertionError as error:
            error.add_note(f"{' '.join(process.args)} said:\n{log.read_text()}")
            raise
        finally:
            process.terminate()


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
