"""What goes wrong with cassettes: before the server starts, and while it answers."""

from __future__ import annotations

from stubserver.errors import ConfigError


class CassetteError(ConfigError):
    """A cassette can't be read, written or imported. The message says which file, which line and what to do."""
