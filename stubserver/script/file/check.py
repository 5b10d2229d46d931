"""A document checked against the schema: pydantic's errors become words for people, with the place in the file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from stubserver.errors import ScriptError
from stubserver.faults.keys import AnyFault, FaultKeys
from stubserver.keys.document import Document, Place
from stubserver.script.file.schema import ScriptFile

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

_FAULTS = TypeAdapter(list[AnyFault], config=ConfigDict(defer_build=True))


def check_document(document: Document) -> ScriptFile:
    """The document as a ScriptFile. Raises ScriptError with the place of the first thing that is wrong."""
    if document.data is None:
        raise document.root.error("is empty; it needs rules, bigram or callable")
    try:
        return ScriptFile.model_validate(document.data)
    except ValidationError as error:
        # Settings are checked with the rest, and the order is the models' own; one mistake at a time is enough.
        raise _script_error(error.errors()[0], document) from None


def check_faults(document: Document) -> list[FaultKeys]:
    """The document as a list of faults. Raises ScriptError with the place of the first thing that is wrong."""
    try:
        return [*_FAULTS.validate_python(document.data)]
    except ValidationError as error:
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
