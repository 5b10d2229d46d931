"""Servers for the tests: our own as processes, and upstreams that answer exactly what a test says."""

from __future__ import annotations

import re
import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from processes import started, url_in

from stubserver.config.settings import resolve_settings
from stubserver.dialects.vllm.wire.codec import WIRE
from stubserver.playback.player import RecordingApp, open_player
from stubserver.server import bind
from stubserver.testing import StubServer
from stubserver.testing.server import _ThreadServer

FIXTURES = Path(__file__).parents[2] / "fixtures"
BIGRAM = FIXTURES / "bigram512"


@contextmanager
def stub(*arguments: str, **options: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """(process, URL) of `stubserver …` on a free port; options of `subprocess.Popen`."""
    with started(*arguments, **options) as (process, line):
        yield process, url_in(line)


def stop(process: subprocess.Popen[str]) -> str:
    """Stop a server; what it said on stderr."""
    process.terminate()
    return process.communicate(timeout=30)[1]


@contextmanager
def recorder(upstream: str, path: Path, **settings: Any) -> Iterator[tuple[str, list[str]]]:
    """(URL, what it says while it records) of `stubserver record`, in a thread of this process."""
    said: list[str] = []
    flags = {"upstream": upstream, "cassette": str(path), "record_mode": "once", **settings}
    player = open_player(resolve_settings(flags, {}, {}), WIRE, said.append)
    assert player is not None
    server = _ThreadServer(RecordingApp(player), bind("127.0.0.1", 0))
    server.start()
    try:
        yield server.url, said
    finally:
        server.stop()
        player.close()


@contextmanager
def replay(path: Path, **settings: Any) -> Iterator[str]:
    """The URL of a server that plays a cassette, in a thread of this process."""
    with StubServer(cassette=str(path), **settings) as server:
        yield server.url


Answer = Callable[[bytes, Any], None]
"""(request, socket) → sends what it likes; the connection is closed afterwards."""


@contextmanager
def upstream(answer: Answer) -> Iterator[str]:
    """The URL of a server whose every request is answered by this function."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            received = b""
            while b"\r\n\r\n" not in received:
                received += self.request.recv(65536)
            head, _, body = received.partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head.lower())
            while length and len(body) < int(length[1]):
                body += self.request.recv(65536)
            answer(head + b"\r\n\r\n" + body, self.request)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # clients that go away

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def reply(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def always(body: bytes, *headers: str, status: str = "200 OK") -> Answer:
    return lambda request, connection: connection.sendall(reply(body, *headers, status=status))
