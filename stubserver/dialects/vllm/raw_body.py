"""Bodies that vLLM reads by itself, not through FastAPI: what it says then is Python's own."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request

from stubserver.errors import RequestError, SchemaError, ValidationError
from stubserver.serving.body import read_bytes


class PythonError(RequestError):
    """vLLM's own code fails with this, and nothing is made of it: a 500."""


async def read_raw_json(request: Request, words: str = "JSON decode error: {error}") -> Any:
    """The JSON body, whatever it is.

    Raises SchemaError in these words for what is no JSON, ValidationError for a number that is too long, and
    PythonError for lists too deep.
    """
    try:
        return json.loads(await read_bytes(request))
    except json.JSONDecodeError as error:
        raise SchemaError(words.format(error=error)) from None
    except ValueError as error:
        raise ValidationError(str(error)) from None
    except RecursionError as error:
        raise PythonError(str(error)) from None


def check_object(body: Any) -> None:
    """Refuse what has no `get`, as Python does. Raises PythonError."""
    if not isinstance(body, dict):
        raise PythonError(f"'{type(body).__name__}' object has no attribute 'get'")
