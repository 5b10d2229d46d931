"""Every exception that stubserver raises on purpose.

    StubserverError
    ├── ConfigError              a setting, a script or a file is wrong; raised before the port opens
    │   ├── SettingsError        a flag, an environment variable or a `settings:` key
    │   ├── ScriptError          the script file, with the place in it
    │   ├── TokenizerError       the tokenizer can't be loaded, or lacks what the script needs
    │   └── CassetteError        a cassette can't be read, written or imported (playback/errors.py)
    ├── ConnectionClosedError    the fault `close` where there is no connection to close: in-process
    └── RequestError             one request can't be answered; the server goes on
        ├── ValidationError      the request asks for something that is refused
        ├── SchemaError          the body isn't of the endpoint's schema
        ├── PermissionDeniedError  the server was started without these routes
        ├── NotFoundError        the model isn't served
        ├── UnscriptedError      the script has no answer for this request
        ├── UnrecordedError      no recording has one, or it would rest on what was never recorded
        ├── UpstreamError        the real server, which is recorded or asked, can't be reached
        ├── GenerationError      the script failed while it answered
        ├── UnsupportedError     the model can't do what this route is for
        └── UnparsableBodyError  the body isn't JSON text at all (serving/body.py)

A RequestError has facts. Which status it has, which words and which body is for the server that is imitated to say:
its dialect writes it (`Wire.error_reply`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal


class StubserverError(Exception):
    """Root of the tree; catches everything that stubserver raises on purpose."""


class ConfigError(StubserverError):
    """Something is wrong before the server could start. The message says what, where, and what would be right."""


class SettingsError(ConfigError, ValueError):
    """A setting has a value that can't be used. A ValueError too, as what vLLM raises for the same settings is."""


class ScriptError(ConfigError):
    """A script can't be used; `place` is the file and the position in it: `script.yaml:12: rules[0].steps[1]`."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(f"{place}: {message}" if place else message)
        self.place = place


class TokenizerError(ConfigError):
    """A tokenizer can't be loaded, or a text isn't what it has to be in it."""


class ConnectionClosedError(StubserverError, ConnectionResetError):
    """What the fault `close` raises in the client's process if the app is used without a socket."""


Code = Literal[
    "empty_prompt",  # no tokens to go on from
    "unknown_token",  # value: a token id of the prompt that the vocabulary lacks
    "prompt_too_long",  # length, limit: tokens of the prompt, and of the context that leaves no room for one more
    "not_finite",  # value: a number that JSON can't carry
    "not_text",  # a text that has no UTF-8
    "invalid_grammar",  # detail: the grammar engine's words
    "token_not_allowed",  # value: a forced token that the grammar refuses
    "unknown_replica",  # of the server's, by the number that a router gave
    "no_chat_template",  # neither the tokenizer nor the request has one
    "no_messages",  # a conversation without any
    "unknown_model",  # value: the name; known: those that are served
    "media_type",  # a body that isn't declared as JSON
    "unsaid",  # what the server fails at without telling its client why
]
"""What the layers below the dialects refuse; a dialect has words of its own for each. In comments: the facts."""


class RequestError(StubserverError):
    """A request that can't be answered.

    message: for people. code: which of the refusals that every server knows it is. parameter: the field that it is
    about; value: what that had. facts: whatever else there is to say, by name.
    """

    def __init__(
        self, message: str, *, code: Code | None = None, parameter: str | None = None, value: Any = None, **facts: Any
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.parameter = parameter
        self.value = value
        self.facts: Mapping[str, Any] = facts


class ValidationError(RequestError):
    """The request's values are refused."""


class SchemaError(RequestError):
    """The body isn't of the endpoint's schema. problems: pydantic's errors, if it is those."""

    def __init__(
        self,
        message: str = "The body isn't of the endpoint's schema",
        *,
        problems: Sequence[Mapping[str, Any]] = (),
        code: Code | None = None,
        parameter: str | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(message, code=code, parameter=parameter, **facts)
        self.problems = problems


class PermissionDeniedError(RequestError):
    """The server was started without these routes."""


class NotFoundError(RequestError):
    """The model isn't served."""


class UnscriptedError(RequestError):
    """The script has no answer for this request; the message names the nearest rule and what differs."""


class UnrecordedError(RequestError):
    """No recording answers this request, or the answer would rest on what was never recorded."""


class UpstreamError(RequestError):
    """The real server can't be reached."""


class GenerationError(RequestError):
    """The script, or a custom logits processor, failed while it answered."""


class UnsupportedError(RequestError):
    """The model can't do what this route is for."""
