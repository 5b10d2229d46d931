"""A request's body: JSON text → checked model, or what is wrong with it."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import TypeAdapter
from pydantic import ValidationError as PydanticError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from stubserver.asgi import find_header
from stubserver.errors import RequestError, SchemaError

T = TypeVar("T")

JSON = "application/json"


class UnparsableBodyError(RequestError):
    """The body isn't JSON text at all: not UTF-8, nested too deeply, or with a number too long to read."""

    def __init__(self) -> None:
        super().__init__("The body can't be read as JSON.")


async def parse_body(request: Request, adapter: TypeAdapter[T]) -> tuple[dict[str, Any], T]:
    """The JSON body as it came, and checked. Raises SchemaError, ValidationError or UnparsableBodyError."""
    body = await read_json(request)
    return body, validate(body, adapter)


async def read_json(request: Request) -> Any:
    """The JSON body as it came, which can't be null. Raises SchemaError or UnparsableBodyError."""
    check_media_type(request)
    body = _load_json(await _read(request))
    if body is None:
        raise _missing()
    return body


def check_media_type(request: Request) -> None:
    """Refuse a body that says to be anything but JSON; a space before the semicolon counts. Raises SchemaError."""
    media_type = find_header(request.scope, b"content-type") or ""
    if media_type != JSON and media_type.lower().split(";", 1)[0] != JSON:
        raise SchemaError(f"The content type has to be {JSON}, not {media_type!r}.", code="media_type")


async def read_bytes(request: Request) -> bytes:
    """The body as it came."""
    return await _read(request)


def _missing() -> SchemaError:
    """FastAPI takes null for no body."""
    return SchemaError(problems=[{"type": "missing", "loc": (), "msg": "Field required", "input": None}])


def validate(body: Any, adapter: TypeAdapter[T]) -> T:
    """The body checked. Raises SchemaError or ValidationError."""
    try:
        return adapter.validate_python(body, from_attributes=True)
    except PydanticError as error:
        raise SchemaError(problems=[dict(each) for each in error.errors(include_url=False)]) from None
    except RecursionError:
        raise UnparsableBodyError from None


async def _read(request: Request) -> bytes:
    """The whole body; most come in one piece, for which Starlette's own way takes several times as long."""
    chunks: list[bytes] = []
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _load_json(raw: bytes) -> Any:
    if not raw:
        raise _missing()
    with suppress(ValueError):
        # Four times as fast. What it doesn't take, Python's own parser may take all the same, or has words for.
        return from_json(raw)
    try:
        return json.loads(raw)
    except json.JSONDecodeError as error:
        wrong = {
            "type": "json_invalid",
            "loc": (error.pos,),
            "msg": "JSON decode error",
            "input": {},
            "ctx": {"error": error.msg},
        }
        raise SchemaError(problems=[wrong]) from None
    except (ValueError, RecursionError):
        raise UnparsableBodyError from None
