"""Real `stubserver` processes, for tests of what only a process has."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Any

MODULE = (sys.executable, "-m", "stubserver")
START_SECONDS = 60


@contextmanager
def started(
    *arguments: str, command: tuple[str, ...] = MODULE, **options: Any
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """(process, the line that it prints when it is ready) of a command on a free port; killed at the end.

    One that hangs is killed, so that the line is empty. options: of `subprocess.Popen`, stderr is a pipe.
    """
    words = [*command, *arguments, "--port", "0"]
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    with subprocess.Popen(words, **given) as process:
        assert process.stdout is not None
        overdue = Timer(START_SECONDS, process.kill)
        overdue.start()
        line = process.stdout.readline()
        overdue.cancel()
        try:
            assert line, process.communicate()
            yield process, line
        finally:
            process.kill()


def url_in(line: str) -> str:
    """Where the server is that printed this line."""
    ready = re.search(r"ready at (\S+):", line)
    assert ready, line
    return ready[1]
