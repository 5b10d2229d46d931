"""Servers, each a process of its own, all on one core; the load gets another one."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from load import HOST, http_request
from workload import MODEL

START_SECONDS = 60
BARE_APP = Path(__file__).with_name("bare_app.py")
HEALTH = f"GET /health HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode()


class Server(NamedTuple):
    """started: when the process was, by perf_counter. ready_ms: from there to the first 200 of /health."""

    pid: int
    port: int
    started: float
    ready_ms: float


def stub_command(script: Path) -> list[str]:
    """The server that all this is about."""
    flags = ["--served-model-name", MODEL, "--logprobs-mode", "processed_logprobs", "--port", "{port}"]
    return [sys.executable, "-m", "stubserver", "serve", str(script), *flags]


def replay_command(cassette: Path) -> list[str]:
    return [sys.executable, "-m", "stubserver", "serve", "--cassette", str(cassette), "--port", "{port}"]


def bare_command(content: Path) -> list[str]:
    return [sys.executable, str(BARE_APP), str(content), "--port", "{port}"]


def cores() -> tuple[int, int] | None:
    """(the servers' core, the load's); None where there is only one, or the system can't pin."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[1]) if len(usable) > 1 else None


PINNED = cores()
"""Looked up before anything is pinned."""


def pin_load() -> None:
    """Put this process and the load tools that it starts on their core."""
    if PINNED:
        os.sched_setaffinity(0, {PINNED[1]})


def pin_server() -> None:
    """Put this process on the servers' core."""
    if PINNED:
        os.sched_setaffinity(0, {PINNED[0]})


@contextmanager
def running(command: Sequence[str], *, quiet: bool = False) -> Iterator[Server]:
    """The server that this command starts, from its first 200 on; it is stopped at the end. quiet: show no errors."""
    port = free_port()
    words = [word.replace("{port}", str(port)) for word in command]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("STUBSERVER_")}
    started = time.perf_counter()
    stderr = subprocess.DEVNULL if quiet else None
    with subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=stderr, env=environ, preexec_fn=pin_server
    ) as process:
        try:
            wait_until_ready(process, port)
            yield Server(process.pid, port, started, ms_since(started))
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Asked first, since a peer may have something to put away."""
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()


def wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.perf_counter() + START_SECONDS
    while not _is_ready(port):
        if process.poll() is not None or time.perf_counter() > deadline:
            raise RuntimeError(f"{shlex.join(map(str, process.args))} did not start")  # type: ignore[arg-type]
        time.sleep(0.001)


def _is_ready(port: int) -> bool:
    try:
        return exchange(port, HEALTH).startswith(b"HTTP/1.1 200")
    except ConnectionError:
        return False


def exchange(port: int, request: bytes) -> bytes:
    """The whole answer to a request that asks to close the connection."""
    with socket.create_connection((HOST, port), timeout=START_SECONDS) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def answer(server: Server, body: bytes) -> bytes:
    """The whole answer, head and body. Raises RuntimeError if it isn't a 200."""
    received = exchange(server.port, http_request(body, close=True))
    if not received.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(received.decode(errors="replace"))
    return received


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def ms_since(started: float) -> float:
    return (time.perf_counter() - started) * 1000


def resident_mb(pid: int) -> float:
    """The memory that a process holds, in MB of 10^6 bytes."""
    statm = Path(f"/proc/{pid}/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    shown = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True)
    return int(shown.stdout) * 1024 / 1e6
