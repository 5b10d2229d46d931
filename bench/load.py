"""Load: requests sent over kept-alive connections, each as soon as its connection has the answer to the last one.

By wrk where there is one, else by a client of our own. That one is slower: where it can't keep the bare app busy, the
ratios come out too good.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

HOST = "127.0.0.1"
LUA = Path(__file__).with_name("bodies.lua")


class Load(NamedTuple):
    """What came back. bytes: of unfinished answers too. errors: statuses other than 2xx, and broken connections."""

    requests: int
    seconds: float
    bytes: int
    errors: int
    median_us: float


class LoadError(Exception):
    """A server didn't answer as it should, so its speed says nothing."""


def default_tool() -> str:
    return "wrk" if shutil.which("wrk") else "own"


def run_load(tool: str, port: int, bodies: Path, connections: int, seconds: int, start: int = 0) -> Load:
    """Post the bodies, a line each, in turn from number `start` on. Raises LoadError."""
    run = run_wrk if tool == "wrk" else run_own
    load = run(port, bodies, connections, seconds, start)
    if load.errors or not load.bytes:
        raise LoadError(f"{load.errors} errors, {load.bytes} bytes")
    return load


def run_wrk(port: int, bodies: Path, connections: int, seconds: int, start: int) -> Load:
    options = ["-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "-s", str(LUA)]
    command = ["wrk", *options, f"http://{HOST}:{port}", "--", str(bodies), str(start)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Load(**json.loads(done.stdout.splitlines()[-1]))


def run_own(port: int, bodies: Path, connections: int, seconds: int, start: int) -> Load:
    requests = [http_request(body) for body in bodies.read_bytes().splitlines()]
    requests = requests[start % len(requests) :] + requests[: start % len(requests)]
    return asyncio.run(_run_clients(port, requests, connections, seconds))


async def _run_clients(port: int, requests: Sequence[bytes], connections: int, seconds: float) -> Load:
    loop = asyncio.get_running_loop()
    turns = cycle(requests)
    clients = [_Client(turns) for _ in range(connections)]
    started = perf_counter()
    for client in clients:
        await loop.create_connection(lambda client=client: client, HOST, port)  # type: ignore[misc]
    await asyncio.sleep(seconds)
    elapsed = perf_counter() - started
    for client in clients:
        client.stop()
    latencies = [each for client in clients for each in client.latencies]
    return Load(
        requests=len(latencies),
        seconds=elapsed,
        bytes=sum(client.bytes for client in clients),
        errors=sum(client.errors for client in clients),
        median_us=median(latencies) * 1e6 if latencies else 0.0,
    )


class _Client(asyncio.Protocol):
    """One connection: a request, its answer, the next request."""

    def __init__(self, requests: Iterator[bytes]) -> None:
        self.latencies: list[float] = []
        self.bytes = 0
        self.errors = 0
        self._requests = requests
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self.bytes += len(data)
        self._received += data
        if is_complete(self._received):
            self.latencies.append(perf_counter() - self._sent)
            self.errors += not self._received.startswith(b"HTTP/1.1 2")
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        self.errors += not self._stopped

    def stop(self) -> None:
        self._stopped = True
        self._transport.abort()

    _stopped = False

    def _send(self) -> None:
        self._received.clear()
        self._sent = perf_counter()
        self._transport.write(next(self._requests))


def is_complete(received: bytes | bytearray) -> bool:
    """Whether this is a whole answer, of a known length or in chunks."""
    head, end, body = bytes(received).partition(b"\r\n\r\n")
    if not end:
        return False
    _, found, length = head.lower().partition(b"content-length:")
    if found:
        return len(body) >= int(length.split(b"\r\n", 1)[0])
    return body.endswith(b"0\r\n\r\n")


def http_request(body: bytes, *, close: bool = False) -> bytes:
    """A label read, or whatever the body asks for, as it goes over the wire."""
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    closing = "Connection: close\r\n" if close else ""
    return f"{head}{closing}Content-Length: {len(body)}\r\n\r\n".encode() + body
