"""Data checked against keys: pydantic's errors become words for people, with the place in the document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from stubserver.errors import ScriptError
from stubserver.keys.document import Document, Place

T = TypeVar("T")

_KINDS: dict[str, str] = {
    "string_type": "has to be a text",
    "int_type": "has to be a whole number",
    "int_from_float": "has to be a whole number",
    "float_type": "has to be a number",
    "bool_type": "has to be true or false",
    "list_type": "has to be a list",
    "dict_type": "has to be a mapping of keys to values",
    "model_type": "has to be a mapping of keys to values",
}


def check_data(document: Document, validate: Callable[[Any], T]) -> T:
    """What `validate` (of a pydantic model or adapter) makes of the data.

    Raises ScriptError with the place of the first thing that is wrong.
    """
    try:
        return validate(document.data)
    except ValidationError as error:
        # Settings are checked with the rest, and the order is the models' own; one mistake at a time is enough.
        raise _script_error(error.errors()[0], document) from None


def _script_error(error: ErrorDetails, document: Document) -> ScriptError:
    key = error.get("ctx", {}).get("key")
    loc = (*error["loc"], key) if error["type"] == "script" and key is not None else error["loc"]
    return _place(document, loc, missing=error["type"] == "missing").error(_message(error))


def _message(error: ErrorDetails) -> str:
    kind = error["type"]
    if kind == "script":
        return error["msg"]
    if kind == "missing":
        return "this key is missing"
    wanted = _KINDS.get(kind, error["msg"][:1].lower() + error["msg"][1:])
    hint = ": if it is text, quote it" if kind == "string_type" and _is_scalar(error["input"]) else ""
    return f"{wanted}, got {_show(error['input'])}{hint}"


def _place(document: Document, loc: tuple[Any, ...], missing: bool) -> Place:
    """pydantic's location has parts which the file hasn't, such as the `exact` of `prompt: text`; leave them out."""
    place, data, kind = document.root, document.data, None
    for part in loc:
        if kind is not None and part == kind:
            kind = None  # a fault's kind comes before its keys, one of which may have the same name
        elif (isinstance(data, dict) and part in data) or (isinstance(data, list) and part in range(len(data))):
            place, data = place / part, data[part]
            kind = data.get("kind") if isinstance(data, dict) else None
    return place / loc[-1] if missing else place


def _show(value: Any) -> str:
    names: dict[type, Callable[[Any], str]] = {
        dict: lambda mapping: "a mapping",
        list: lambda items: "a list",
        type(None): lambda none: "nothing",
        bool: lambda flag: str(flag).lower(),
    }
    return names.get(type(value), repr)(value)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, bool | int | float)
