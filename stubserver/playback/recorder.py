"""Recording: the request goes on to the real server, its reply to the client as it comes, and both to the cassette."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from zlib import error as EncodingError  # noqa: N812

from starlette.types import Receive, Send

from stubserver.asgi import until_gone
from stubserver.errors import UpstreamError
from stubserver.playback.asgi_messages import passed_on, send_error, start_message
from stubserver.playback.cassette import CassetteWriter, make_header
from stubserver.playback.encodings import unpack, unpacker
from stubserver.playback.exchange import Exchange, Headers, RecordedEvent, Reply, Request
from stubserver.playback.redaction import Redaction, secrets_of
from stubserver.playback.upstream import Upstream
from stubserver.serving.framing import EventCutter, Framing
from stubserver.serving.wire import Wire

logger = logging.getLogger("stubserver")

Notify = Callable[[str], None]
"""Gets a line for people about what was recorded, or why it wasn't."""

OF_THE_WIRE = frozenset({"content-encoding", "content-length"})
"""Headers of a reply that are made anew when it is played back."""


class Tape:
    """Writes exchanges to a cassette, their secrets taken out."""

    def __init__(
        self, writer: CassetteWriter, redaction: Redaction, upstream: Upstream, wire: Wire, notify: Notify
    ) -> None:
        self._notify = notify
        self._writer = writer
        self._redaction = redaction
        self._upstream = upstream
        self._wire = wire
        self._exchanges = 0
        self._bytes = 0

    async def record(self, exchange: Exchange) -> None:
        """Write an exchange down. A full disk loses this exchange, not the client's reply, and the file stays whole."""
        identity: dict[str, Any] = {}
        if self._writer.is_new:
            identity = await self._upstream.identity(self._wire.identity_paths, exchange.request.headers)
        clean = self._redaction.exchange(exchange)
        try:
            if self._writer.is_new:
                self._bytes += self._writer.write_header(make_header(self._redaction.value(identity)))
            self._bytes += self._writer.append(clean)
        except OSError as error:
            self.skip(exchange.request, str(error.strerror))
            return
        self._exchanges += 1
        self._notify(
            f"recorded {self._exchanges} exchange{'s' if self._exchanges > 1 else ''}, {_size(self._bytes)}; last: "
            f"{clean.request.line} {clean.reply.status} in {clean.reply.seconds:.2f} s"
        )

    def skip(self, request: Request, why: str) -> None:
        """Say that an exchange isn't in the cassette."""
        self._notify(f"NOT recorded: {self._redaction.request(request, secrets_of(request)).line}: {why}")

    def close(self) -> None:
        """Let others write to the cassette."""
        self._writer.close()


class Proxy:
    """Passes requests on to the real server. `tape`: where they are recorded, if anywhere."""

    def __init__(self, upstream: Upstream, wire: Wire, tape: Tape | None = None) -> None:
        self._upstream = upstream
        self._wire = wire
        self._tape = tape

    async def pass_on(
        self, request: Request, raw_path: str | None, receive: Receive, send: Send, *, record: bool = True
    ) -> None:
        """Ask the real server and pass its reply on piece by piece; a client that goes away is gone upstream too.

        A client that has the whole of its reply may count on it that the reply is recorded.
        """
        listener = _Listener(self._wire.framing, self._tape if record else None)
        copying = asyncio.create_task(self._copy(request, raw_path, send, listener))
        leaving = asyncio.create_task(until_gone(receive))
        try:
            await asyncio.wait((copying, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            copying.cancel()
            await asyncio.wait((copying, leaving))
        if not copying.cancelled():
            copying.result()
        await listener.write(request)
        if listener.has_ended:
            await send({"type": "http.response.body", "body": b""})

    async def _copy(self, request: Request, raw_path: str | None, send: Send, listener: _Listener) -> None:
        try:
            async with self._upstream.open(request, raw_path) as response:
                given = tuple(
                    (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in response.headers.raw
                )
                length = tuple(pair for pair in given if pair[0] == "content-length")
                headers = passed_on(given) + length
                listener.start(response.status_code, headers)
                await send(start_message(response.status_code, headers))
                async for chunk in response.aiter_raw():
                    listener.feed(chunk)
                    if listener.is_complete:
                        await listener.write(request)
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                listener.has_ended = True
        except UpstreamError as error:
            await send_error(error, self._wire, send)
        except self._upstream.broken as error:
            # The reply has begun, so all that can be done is what upstream did: to break off.
            logger.warning("%s broke off: %s", self._upstream.url, error or type(error).__name__)


class _Listener:
    """Hears a reply as it passes, remembers when each part of it came, and has it written to the tape."""

    def __init__(self, framing: Framing, tape: Tape | None) -> None:
        self.has_ended = False
        self._framing = framing
        self._tape = tape
        self._is_written = False
        self._started = time.perf_counter()
        self._status = 0
        self._headers: Headers = ()
        self._seconds = 0.0
        self._chunks: list[bytes] = []
        self._events: list[RecordedEvent] = []
        self._problem = ""
        self._received = 0
        self._length: int | None = None

    @property
    def is_complete(self) -> bool:
        """All of the reply was heard. Its client may know so, and be gone, before the connection upstream ends."""
        finished = bool(self._events) and self._framing.is_done(self._events[-1].data)
        return self.has_ended or self._length == self._received or finished

    @property
    def problem(self) -> str:
        """Why there is no reply that could be recorded."""
        return self._problem or ("" if self.is_complete else "the reply broke off")

    def start(self, status: int, headers: Headers) -> None:
        self._status, self._headers, self._seconds = status, headers, self._elapsed()
        known = dict(headers)
        self._length = int(known["content-length"]) if known.get("content-length", "").isdecimal() else None
        self._encoding = known.get("content-encoding", "").strip().lower().removeprefix("identity")
        self._unpack = unpacker(self._encoding)
        self._cutter = EventCutter() if self._framing.is_stream(known.get("content-type", "")) else None
        if self._unpack is None:
            self._problem = f"its content-encoding is {self._encoding!r}, in which no secret could be found"

    def feed(self, chunk: bytes) -> None:
        self._received += len(chunk)
        if self._unpack is None:
            return
        try:
            data = self._unpack(chunk)
        except EncodingError as error:
            self._problem, self._unpack = f"it isn't {self._encoding}: {error}", None
            return
        if self._cutter is None:
            self._chunks.append(data)
            return
        self._events += [RecordedEvent(self._elapsed(), event) for event in self._cutter.feed(data)]

    async def write(self, request: Request) -> None:
        """Have what was heard written down, once; or say why it isn't."""
        if self._tape is None or self._is_written or not self._status:
            return
        if self.problem:
            self._tape.skip(request, self.problem)
        else:
            encoding = next((value for name, value in request.headers if name == "content-encoding"), "")
            plain = replace(request, body=unpack(encoding, request.body))
            await self._tape.record(Exchange(plain, self._reply()))
        self._is_written = True

    def _reply(self) -> Reply:
        headers = tuple(pair for pair in self._headers if pair[0] not in OF_THE_WIRE)
        body = b"".join(self._chunks)
        events = None
        if self._cutter is not None:
            rest = [RecordedEvent(self._elapsed(), self._cutter.rest())] if self._cutter.rest() else []
            events = (*self._events, *rest)
        return Reply(self._status, headers, body, events, self._encoding, self._seconds)

    def _elapsed(self) -> float:
        return time.perf_counter() - self._started


def _size(count: int) -> str:
    return f"{count} bytes" if count < 1000 else f"{count / 1000:.1f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"
