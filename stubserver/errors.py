"""Every exception that stubserver raises on purpose.

    StubserverError
    ├── ConfigError              a setting, a script or a file is wrong; raised before the port opens
    │   ├── SettingsError        a flag, an environment variable or a `settings:` key
    │   ├── ScriptError          the script file, with the place in it
    │   └── TokenizerError       the tokenizer can't be loaded, or lacks what the script needs
    ├── ConnectionClosedError    the fault `close` where there is no connection to close: in-process
    └── RequestError             answers one request with vLLM's error body; the server goes on
        ├── ValidationError      400: the request asks for something that vLLM refuses
        ├── PermissionDeniedError 403: the server was started without these routes
        ├── NotFoundError        404: the model isn't served
        ├── UnscriptedError      404: the script has no answer for this request
        ├── UnrecordedError      404: no recording has one, or it would rest on what was never recorded
        ├── GenerationError      500: the script failed while it answered
        └── UnsupportedError     501: the model can't do what this route is for

`RequestError` knows its status and the fields of the error body, so the HTTP shell needs no table of its own.
"""

from __future__ import annotations

from typing import Any, ClassVar


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


class RequestError(StubserverError):
    """A request that gets an error reply in vLLM's shape."""

    status: ClassVar[int] = 400
    type: ClassVar[str] = "BadRequestError"

    def __init__(self, message: str, *, parameter: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.parameter = parameter

    def body(self) -> dict[str, Any]:
        """The JSON body: `{"error": {"message", "type", "param", "code"}}`."""
        return {"error": {"message": self.message, "type": self.type, "param": self.parameter, "code": self.status}}


class ValidationError(RequestError):
    """vLLM refuses the request's values.

    vLLM's message names the field it knows: " (parameter=temperature, value=-0.1)"; `value` None is left out.
    """

    def __init__(self, message: str, *, parameter: str | None = None, value: Any = None) -> None:
        known = [f"{name}={part}" for name, part in (("parameter", parameter), ("value", value)) if part is not None]
        super().__init__(f"{message} ({', '.join(known)})" if known else message, parameter=parameter)


class SchemaError(RequestError):
    """The body isn't of the endpoint's schema; the message lists pydantic's errors as vLLM writes them."""

    type = "Bad Request"


class PermissionDeniedError(RequestError):
    """The server was started without these routes."""

    status = 403
    type = "PermissionDeniedError"


class NotFoundError(RequestError):
    """The model isn't served."""

    status = 404
    type = "NotFoundError"


class UnscriptedError(RequestError):
    """The script has no answer for this request; the message names the nearest rule and what differs."""

    status = 404
    type = "UnscriptedError"


class UnrecordedError(RequestError):
    """404: no recording answers this request, or the answer would rest on what was never recorded."""

    status = 404
    type = "UnrecordedError"


class GenerationError(RequestError):
    """The script, or a custom logits processor, failed while it answered."""

    status = 500
    type = "InternalServerError"


class UnsupportedError(RequestError):
    """The model can't do what this route is for."""

    status = 501
    type = "NotImplementedError"
