"""Which headers carry secrets: what is written down for later leaves their values out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

Headers = list[tuple[bytes, bytes]]

_SECRET = re.compile(rb"authorization|api-?key|cookie|secret|token|password", re.IGNORECASE)


@lru_cache(maxsize=1024)
def is_secret(name: bytes) -> bool:
    """Whether a header of this name may carry a credential: Authorization, Cookie, X-Api-Key and the like."""
    return _SECRET.search(name) is not None


def without_secrets(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers that carry none."""
    return [header for header in headers if not is_secret(header[0])]


def decoded(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The headers as texts, their names in lower case."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}
