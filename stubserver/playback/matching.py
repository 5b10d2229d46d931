"""Which recording answers a request: by method, path and canonical body; repeats in the order of the recording."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from stubserver.memory import Memo
from stubserver.playback.canonical import canonical_body, canonical_query, differences, shown
from stubserver.playback.encodings import unpack
from stubserver.playback.exchange import Exchange, Request
from stubserver.playback.redaction import Redaction, is_secret_header, secrets_of

Repeat = Literal["last", "loop", "error"]

MAX_SHOWN = 6
"""Differences that a miss lists."""

MAX_KNOWN = 8192
"""Spellings of requests whose key is kept, so that a repeated one costs a look-up."""

MAX_KNOWN_BYTES = 4096
"""The longest body that is kept so."""

Key = tuple[str, str, str]
"""(method and path, canonical query, canonical body)."""


class Library:
    """The recorded exchanges, by what was asked.

    ignored: fields that don't count. repeat: what follows the last recording of a request: the last one again, the
    first one, or nothing.
    """

    def __init__(
        self, exchanges: Iterable[Exchange], ignored: Sequence[str], redaction: Redaction, repeat: Repeat
    ) -> None:
        self._ignored = tuple(ignored)
        self._redaction = redaction
        self._repeat = repeat
        self._series: dict[Key, list[Exchange]] = {}
        self._played: dict[Key, int] = {}
        self._known: Memo[tuple[object, ...], Key] = Memo(MAX_KNOWN)
        for exchange in exchanges:
            self._series.setdefault(self._key(exchange.request), []).append(exchange)

    def find(self, request: Request) -> Exchange | None:
        """The recording whose turn it is, or None."""
        key = self._key_of_client(request)
        series = self._series.get(key)
        if series is None:
            return None
        played = self._played.get(key, 0)
        if played >= len(series) and self._repeat == "error":
            return None
        self._played[key] = played + 1
        return series[played % len(series)] if self._repeat == "loop" else series[min(played, len(series) - 1)]

    def rewind(self) -> None:
        """Begin every series again."""
        self._played.clear()

    def explain_miss(self, request: Request) -> str:
        """Why nothing answers this request: the nearest recording, and what differs."""
        key = self._key_of_client(request)
        if key in self._series:
            return f"{request.line} was recorded {_times(len(self._series[key]))}, and has been played as often."
        same = [(number, known) for number, known in enumerate(self._series, 1) if known[0] == key[0]]
        if not same:
            recorded = ", ".join(sorted({known[0] for known in self._series})) or "nothing"
            return f"No recording answers {request.line}: recorded is {recorded}."
        candidates = [(number, list(_differences(known, key))) for number, known in same]
        number, found = min(candidates, key=lambda candidate: len(candidate[1]))
        listed = "; ".join(found[:MAX_SHOWN])
        more = f"; and {len(found) - MAX_SHOWN} more" if len(found) > MAX_SHOWN else ""
        return f"No recording answers {request.line}. The nearest is request {number} of the cassette: {listed}{more}."

    def _key_of_client(self, request: Request) -> Key:
        """The key of a request as it came in: with its secrets, and its body as the client encoded it."""
        spelling = (request.method, request.path, request.query, request.body, *_telling(request))
        key = self._known.find(spelling)
        if key is None:
            encoding = dict(request.headers).get("content-encoding", "")
            plain = replace(request, body=unpack(encoding, request.body))
            key = self._key(self._redaction.request(plain, secrets_of(plain)))
            if len(request.body) <= MAX_KNOWN_BYTES:
                self._known.keep(spelling, key)
        return key

    def _key(self, request: Request) -> Key:
        body = canonical_body(request.body, self._ignored) if request.body else ""
        return f"{request.method} {request.path}", canonical_query(request.query), body


def _differences(known: Key, given: Key) -> Iterator[str]:
    if known[1] != given[1]:
        yield f"the query was {known[1]!r}, now {given[1]!r}"
    (kind, _, left), (other_kind, _, right) = known[2].partition(" "), given[2].partition(" ")
    if kind == other_kind == "json":
        yield from differences(json.loads(left), json.loads(right))
    elif known[2] != given[2]:
        yield f"the body was {shown(left)}, now {shown(right)}"


def _telling(request: Request) -> list[str]:
    """The headers that may change what a request is taken for."""
    return [value for name, value in request.headers if name == "content-encoding" or is_secret_header(name)]


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
