"""What middlewares do with a connection: read the body ahead, wait for the client to leave, close it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol, cast

from starlette.types import Message, Receive, Scope

from stubserver.errors import ConnectionClosedError

CONNECTION = "stubserver.connection"
"""The ASGI extension by which server.py hands out the connection."""

_HEADERS = "stubserver.headers"
"""Where the scope of a request has its headers by name, once one was looked for."""

CONTROL_PREFIX = "/stub/"
"""Where the control routes are, which nothing gets in the way of."""


class Connection(Protocol):
    """What is needed of an asyncio.Transport."""

    def write(self, data: bytes) -> None:
        """Send bytes past HTTP."""

    def close(self) -> None:
        """Send what has been written, then close."""


def find_header(scope: Scope, name: bytes) -> str | None:
    """The (first) value of a header of a request; `name` in lower case, as ASGI has it."""
    by_name = scope.get(_HEADERS)
    if by_name is None:
        by_name = scope[_HEADERS] = dict(reversed(scope.get("headers", ())))
    value: bytes | None = by_name.get(name)
    return None if value is None else value.decode("latin-1")


def with_headers(scope: Scope, headers: Sequence[tuple[bytes, bytes]]) -> Scope:
    """The scope with other headers."""
    return {name: value for name, value in scope.items() if name != _HEADERS} | {"headers": headers}


async def read_body(receive: Receive) -> bytes:
    """The whole body; what there is of it if the client leaves."""
    parts: list[bytes] = []
    more = True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


def json_object(raw: bytes) -> dict[str, Any]:
    """A body's JSON object; empty if the body is none, about which the route has words of its own."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def replaying(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives this body, then what the real one gives."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receiving() -> Message:
        return messages.pop() if messages else await receive()

    return receiving


async def until_gone(receive: Receive) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def close_connection(scope: Scope, receive: Receive, last: bytes = b"") -> None:
    """Close the TCP connection, after some last bytes. Raises ConnectionClosedError where there is none.

    So is in-process use through an ASGI transport, and any server other than stubserver's own.
    """
    connection = cast(Connection | None, scope.get("extensions", {}).get(CONNECTION))
    if connection is None:
        raise ConnectionClosedError("The server closed the connection: a fault that was set on stubserver")
    if last:
        connection.write(last)
    connection.close()
    await until_gone(receive)
