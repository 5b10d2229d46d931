"""What goes wrong with cassettes: before the server starts, and while it answers."""

from __future__ import annotations

from stubserver.errors import ConfigError, RequestError


class CassetteError(ConfigError):
    """A cassette can't be read, written or imported. The message says which file, which line and what to do."""


class UnrecordedError(RequestError):
    """404: no recording answers this request, or the answer would rest on what was never recorded."""

    status = 404
    type = "UnrecordedError"


class UpstreamError(RequestError):
    """502: the server that is recorded can't be reached."""

    status = 502
    type = "BadGatewayError"
