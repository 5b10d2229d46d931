"""What vLLM knows that its backends can't do with a JSON schema.

Source of the facts: vLLM 0.32.0, `backend_xgrammar.py` and `backend_guidance.py`. xgrammar itself would ignore most of
it and answer with masks that are too wide; vLLM asks another backend instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

FORMATS: Final = frozenset(
    (
        *("email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri"),
        *("uri-reference", "uri-template", "json-pointer", "relative-json-pointer"),
    )
)
"""The values of `format` that xgrammar knows."""

Schema = Mapping[str, Any]


def xgrammar_lacks(schema: Any) -> bool:
    """Whether any part of the schema has what xgrammar ignores."""
    return any(lacks(part, _types(part)) for part in _parts(schema) for lacks in _XGRAMMAR_LACKS)


def guidance_lacks(schema: Any) -> bool:
    """Whether any part of the schema has what makes vLLM turn from guidance to outlines."""
    return any("patternProperties" in part for part in _parts(schema))


def _parts(value: Any) -> Iterator[Schema]:
    """The schema and every object in it that is reached by objects and lists of objects."""
    if isinstance(value, Mapping):
        yield value
        for child in value.values():
            for inner in child if isinstance(child, list) else [child]:
                yield from _parts(inner)


def _types(part: Schema) -> set[str]:
    found = part.get("type")
    return {each for each in (found if isinstance(found, list) else [found]) if isinstance(each, str)}


def _is_pattern_with_length(part: Schema) -> bool:
    return bool({"pattern", "format"} & part.keys() and {"minLength", "maxLength"} & part.keys())


def _property_names(part: Schema, types: set[str]) -> bool:
    if "object" not in types or "propertyNames" not in part:
        return False
    names = part["propertyNames"]
    return (
        (isinstance(names, Mapping) and _is_pattern_with_length(names))
        or bool({"patternProperties", "properties"} & part.keys())
        or part.get("unevaluatedProperties", True) is not True
    )


def _pattern_properties(part: Schema, types: set[str]) -> bool:
    patterns = part.get("patternProperties")
    return "object" in types and isinstance(patterns, Mapping) and ("properties" in part or len(patterns) > 1)


def _format(part: Schema, types: set[str]) -> bool:
    return "string" in types and "format" in part and part["format"] not in FORMATS


def _several_all_of(part: Schema, types: set[str]) -> bool:
    found = part.get("allOf")
    return isinstance(found, list) and len(found) > 1


_XGRAMMAR_LACKS: Final[tuple[Callable[[Schema, set[str]], bool], ...]] = (
    lambda part, types: "multipleOf" in part and bool(types & {"integer", "number"}),
    lambda part, types: (
        "array" in types and bool({"uniqueItems", "contains", "minContains", "maxContains"} & part.keys())
    ),
    _format,
    lambda part, types: "string" in types and _is_pattern_with_length(part),
    _property_names,
    _pattern_properties,
    _several_all_of,
)
