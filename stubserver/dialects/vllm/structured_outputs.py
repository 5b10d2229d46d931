"""What vLLM's front end does with a constraint: checks, and the choice of a backend.

Source of the order: vLLM 0.32.0, `SamplingParams._validate_structured_outputs`.
"""

from __future__ import annotations

import json
from typing import Any, Final, cast

from stubserver.config.settings import Settings, StructuredOutputsConfig
from stubserver.engine.grammar import guidance, words, xgrammar
from stubserver.engine.grammar.constraint import Constraint, Kind
from stubserver.engine.grammar.features import guidance_lacks
from stubserver.errors import UnsupportedError, ValidationError

EMPTY_CHOICE: Final = "Choice '{value}' cannot be an empty list"
EMPTY_TEXT: Final = "structured_outputs.{kind} cannot be an empty string"
NOT_TRUE: Final = (
    "structured_outputs.json_object must be True if set; omit structured_outputs to disable structured outputs"
)
NUL_IN_REGEX: Final = "structured_outputs.regex must not contain a NUL character ('\\x00')"
TOO_DEEP: Final = "The JSON schema is nested too deeply: objects and arrays may nest at most {most} levels"
BAD_STRUCTURAL_TAG: Final = "Invalid {parameter} structural_tag specification."

MOST_LEVELS: Final = 64
"""How deep objects and arrays of a schema may nest."""

TAG_LEVELS: Final = MOST_LEVELS + 16
"""How deep those of a structural tag may, which wraps schemas."""


def compile_constraint(kind: str, value: Any, settings: Settings) -> Constraint:
    """A constraint of a request → what the engine gets.

    kind: "json" (a schema, as object or text), "json_object", "regex", "choice" (a list of texts) or "grammar" (EBNF
    with `::=`, else Lark), "structural_tag" (JSON). Raises ValidationError, in vLLM's words, for what vLLM refuses.
    """
    config = settings.structured_outputs_config
    _check_value(kind, value)
    known = cast(Kind, kind)
    match config.backend:
        case "xgrammar":
            return xgrammar.checked(known, value, config)
        case "guidance":
            return guidance.checked(known, value, config)
        case _:
            return _automatic(known, value, config)


def _automatic(kind: Kind, value: Any, config: StructuredOutputsConfig) -> Constraint:
    """The backend for what `auto` means: xgrammar, or guidance for what that refuses, or outlines for some schemas."""
    try:
        return xgrammar.checked(kind, value, config)
    except ValidationError:
        if kind == "json" and value and guidance_lacks(_schema(value)):
            return Constraint("json", guidance.as_text(value), "outlines", config)
        return guidance.checked(kind, value, config)


def _schema(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValidationError(words.NOT_JSON) from error


def _check_value(kind: str, value: Any) -> None:
    """Refuse what no backend is asked about. Raises ValidationError."""
    empty_text = isinstance(value, str) and not value.strip()
    if kind == "choice" and not value:
        raise ValidationError(EMPTY_CHOICE.format(value=value))
    if kind in ("grammar", "json", "structural_tag") and empty_text:
        raise ValidationError(EMPTY_TEXT.format(kind=kind))
    levels = {"json": MOST_LEVELS, "structural_tag": TAG_LEVELS}.get(kind)
    if levels and value and _is_too_deep(value, levels):
        raise ValidationError(TOO_DEEP.format(most=MOST_LEVELS))
    if kind == "json_object" and value is False:
        raise ValidationError(NOT_TRUE)
    if kind == "regex" and "\x00" in value:
        raise ValidationError(NUL_IN_REGEX)


def no_structural_tag(parameter: str) -> ValidationError:
    """What the front end says of it."""
    return ValidationError(BAD_STRUCTURAL_TAG.format(parameter=parameter), parameter=parameter)


def check_structural_tag(text: Any, parameter: str) -> None:
    """Refuse what is no structural tag, as vLLM's front end does, whatever the backend. Raises ValidationError."""
    if isinstance(text, str) and _is_too_deep(text, TAG_LEVELS):
        raise ValidationError(TOO_DEEP.format(most=MOST_LEVELS))
    if not (isinstance(text, str) and text):
        raise no_structural_tag(parameter)
    try:
        xgrammar.check_structural_tag(text)
    except ValidationError as error:
        raise no_structural_tag(parameter) from error
    except UnsupportedError:
        return  # the backend xgrammar will say so; guidance may take it


def _is_too_deep(schema: Any, levels: int) -> bool:
    try:
        schema = json.loads(schema) if isinstance(schema, str) else schema
    except RecursionError:
        return True
    except ValueError:
        return False
    level: list[Any] = [schema]
    for _ in range(levels):
        level = [child for node in level for child in _children(node) if isinstance(child, dict | list)]
    return bool(level)


def _children(node: Any) -> list[Any]:
    return list(node.values()) if isinstance(node, dict) else list(node) if isinstance(node, list) else []
