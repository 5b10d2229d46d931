"""Between ASGI and exchanges: a request in, headers in both directions."""

from __future__ import annotations

import json
from collections.abc import Iterable

from starlette.types import Message, Receive, Scope, Send

from stubserver.errors import RequestError
from stubserver.playback.exchange import Headers, Request
from stubserver.serving.wire import Wire

OF_THE_CONNECTION = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"),
        *("transfer-encoding", "upgrade", "host", "content-length", "date", "server"),
    }
)
"""Headers that belong to one hop; the server that sends the reply writes them itself."""


async def read_request(scope: Scope, receive: Receive) -> Request | None:
    """The whole request, its body as the client encoded it; None if the client went away before its end."""
    chunks: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            break
    headers = tuple([(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]])
    return Request(scope["method"], scope["path"], scope["query_string"].decode("latin-1"), headers, b"".join(chunks))


def start_message(status: int, headers: Iterable[tuple[str, str]]) -> Message:
    """The beginning of a reply."""
    raw = [(name.encode("latin-1", "replace"), value.encode("latin-1", "replace")) for name, value in headers]
    return {"type": "http.response.start", "status": status, "headers": raw}


async def send_error(error: RequestError, wire: Wire, send: Send) -> None:
    """A reply with the error's status and body."""
    status, content = wire.error_reply(error)
    body = json.dumps(content, ensure_ascii=True).encode()
    headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
    await send(start_message(status, headers))
    await send({"type": "http.response.body", "body": body})


def passed_on(headers: Headers) -> Headers:
    """The headers that go on to the next hop."""
    named = next((value for name, value in headers if name == "connection"), "")
    dropped = OF_THE_CONNECTION | {name.strip().lower() for name in named.split(",")}
    return tuple((name, value) for name, value in headers if name not in dropped)
