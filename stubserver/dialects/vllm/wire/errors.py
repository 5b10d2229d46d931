"""Errors as vLLM writes them: `{"error": {"message", "type", "param", "code"}}`.

What each kind of error is here: its status, its type, and vLLM's words for what the layers below refuse. Sources of the
words: 0.32.0, `v1/engine/input_processor.py`, `entrypoints/openai/`, and recordings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from stubserver import errors
from stubserver.dialects.vllm.raw_body import PythonError
from stubserver.errors import Code, RequestError
from stubserver.serving.body import UnparsableBodyError

MAX_REPORTED_ERRORS = 10
MAX_INPUT_CHARS = 200
MAX_ERROR_CHARS = 1000

Words = Callable[[RequestError], str]

KINDS: dict[type[RequestError], tuple[int, str]] = {
    errors.ValidationError: (400, "BadRequestError"),
    errors.SchemaError: (400, "Bad Request"),
    errors.PermissionDeniedError: (403, "PermissionDeniedError"),
    errors.NotFoundError: (404, "NotFoundError"),
    errors.UnscriptedError: (404, "UnscriptedError"),
    errors.UnrecordedError: (404, "UnrecordedError"),
    errors.GenerationError: (500, "InternalServerError"),
    PythonError: (500, "InternalServerError"),
    errors.UnsupportedError: (501, "NotImplementedError"),
    errors.UpstreamError: (502, "BadGatewayError"),
    RequestError: (400, "BadRequestError"),
}
"""Kind → (status, type); of a kind that isn't there, its base counts."""

OWN_KINDS = (errors.UnscriptedError, errors.UnrecordedError, errors.UpstreamError, errors.GenerationError)
"""Kinds whose words are stubserver's, for who writes tests: paths stay in them."""


def _prompt_too_long(error: RequestError) -> str:
    length, limit = error.facts["length"], error.facts["limit"]
    if length > limit:
        return (
            f"The decoder prompt (length {length}) is longer than the maximum model length of {limit}. "
            "Make sure that `max_model_len` is no smaller than the number of text tokens."
        )
    return (
        f"The decoder prompt (length {length}) plus the number of requested output tokens (at least 1) is longer "
        f"than the maximum model length of {limit}. Make sure that `max_model_len` is no smaller than the number of "
        "text tokens (prompt + requested output tokens)."
    )


WORDS: dict[Code, Words] = {
    "empty_prompt": lambda error: "The decoder prompt cannot be empty",
    "unknown_token": lambda error: f"Token id {error.value} is out of vocabulary",
    "unknown_replica": lambda error: f"data_parallel_rank {error.value} is out of range [0, 1).",
    "prompt_too_long": _prompt_too_long,
    "not_finite": lambda error: "Out of range float values are not JSON compliant",
    # The words of `tokenizers`, handed on.
    "not_text": lambda error: "TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]",
    "no_chat_template": lambda error: (
        "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template "
        "if the tokenizer does not define one."
    ),
    "no_messages": lambda error: "Cannot apply chat template to an empty conversation. Provide at least one message.",
    "unknown_model": lambda error: (
        f"The model `{error.value}` does not exist. Valid aliases: {', '.join(error.facts['known'])}."
    ),
    "media_type": lambda error: "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
    # A plain ValueError inside of vLLM's engine: `v1/engine/async_llm.py` makes an EngineGenerateError() of it.
    "unsaid": lambda error: "",
}
"""What vLLM says to refusals of the layers below; to all others, what those say themselves."""


def error_reply(error: RequestError) -> tuple[int, Any]:
    """(status, body) of what answers a request that is refused."""
    if isinstance(error, UnparsableBodyError):
        return 400, {"detail": "There was an error parsing the body"}
    status, kind = next(KINDS[base] for base in type(error).__mro__ if base in KINDS)
    message, parameter = _message(error), error.parameter
    if isinstance(error, errors.SchemaError) and error.problems:
        parameter = _place(error.problems[0]["loc"])
    shown = message if isinstance(error, OWN_KINDS) else _sanitized(message)
    body = {"message": shown, "type": kind, "param": parameter, "code": status}
    # A profile may have words of its own.
    return status, {"error": {**body, **error.facts.get("override", {})}}


def _message(error: RequestError) -> str:
    if isinstance(error, errors.SchemaError) and error.problems:
        return _list(error.problems)
    if error.code is not None:
        return WORDS[error.code](error) if error.code in WORDS else error.message
    # vLLM names the field that it knows, and its value.
    known = [("parameter", error.parameter), ("value", error.value)] if type(error) is errors.ValidationError else []
    named = ", ".join(f"{name}={part}" for name, part in known if part is not None)
    return f"{error.message} ({named})" if named else error.message


_SYSTEM_FOLDERS = ("home", "usr", "opt", "var", "tmp", "root", "lib", "mnt", "srv")

_HIDDEN: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r" at 0x[\da-fA-F]+>"), ">"),
    # A line of a traceback, and the indented one that follows it.
    (re.compile(r'\n?\s*File "[^"]+", line \d+, in \S+(?:\n\s+.*)?'), ""),
    (re.compile(rf"/(?:{'|'.join(_SYSTEM_FOLDERS)})(?:/[-\w.]+)+"), "<path>"),
    # Any file in a folder, told by its ending.
    (re.compile(r"(?:/[-\w]+){2,}\.\w+"), "<path>"),
)
"""What vLLM leaves out of its errors, and what stands there then: `entrypoints/serve/exception_handling/utils.py`."""


def _sanitized(message: str) -> str:
    """The message as vLLM lets it out: without addresses, tracebacks and what looks like a file's path."""
    for pattern, shown in _HIDDEN:
        message = pattern.sub(shown, message)
    return message.strip()


def http_error(status: int, detail: str) -> Any:
    """FastAPI's body where there is no such path, or another method is meant."""
    return {"detail": detail}


def status_body(status: int, message: str) -> Any:
    """The body of a status that a test has chosen."""
    phrase = next((known.phrase for known in HTTPStatus if known == status), "Unknown")
    return {"error": {"message": message or phrase, "type": phrase, "param": None, "code": status}}


# vLLM's words, in v1/engine/exceptions.py.
ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


def dead_reply(path: str) -> tuple[int, Any]:
    """What is answered once the engine is dead: /health has a status without a body, everything else an error."""
    if path in ("/health", "/ping"):
        return 503, None
    return error_reply(errors.GenerationError(ENGINE_DEAD))


# Bodies that aren't of the schema -------------------------------------------------------------------------------------

# Parts of a pydantic location that name a branch of a union, not a field that a client knows; vLLM's list, and that
# of the models that have their own validators there (and so brackets in their names). It takes the field `arguments`
# for such a part, too.
_BRANCH = re.compile(
    r"[\[\](){}]|^(function-(wrap|after|before|plain)|json-or-python|lax-or-strict|chain|default|nullable|tagged-union"
    r"|union|call|arguments|is-instance|is-subclass|callable|str|int|float|bool|bytes|bytearray|list|tuple|dict|set"
    r"|frozenset|complex|none|nonetype)$",
    re.IGNORECASE,
)
_MODEL = re.compile(r"^\w*(ResponseFormat|Request)$")


def _list(problems: Sequence[Mapping[str, Any]]) -> str:
    label = "error" if len(problems) == 1 else "errors"
    shown = problems[:MAX_REPORTED_ERRORS]
    lines = [f"{len(problems)} validation {label}:", *(f"  {_line(problem)}" for problem in shown)]
    if len(problems) > len(shown):
        lines.append(f"  ...and {len(problems) - len(shown)} more {label}")
    return "\n".join(lines)


def _line(problem: Mapping[str, Any]) -> str:
    shown = {**problem, "loc": _place(problem["loc"])}
    if "input" in problem:
        shown["input"] = _summary(problem["input"])
    return _cut(str(shown), MAX_ERROR_CHARS)


def _place(loc: Sequence[int | str]) -> str:
    return ".".join(["body", *(str(part) for part in loc if not _is_internal(str(part)))])


def _is_internal(part: str) -> bool:
    return bool(_BRANCH.search(part) or _MODEL.search(part))


def _summary(value: Any) -> str:
    """What was sent, in few characters."""
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    return _cut(str(value), MAX_INPUT_CHARS)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[:longest] + "...[truncated]"
