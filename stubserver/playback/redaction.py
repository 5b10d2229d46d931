"""Secrets, taken out of an exchange before anything of it touches the disk.

Four nets, each for what slips through the others: only harmless request headers are kept at all; fields and query
parameters go by their name; the secrets found so are looked for everywhere else (an error message may quote a key); and
texts go by the look of well-known keys and by the user's own patterns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from stubserver.errors import SettingsError
from stubserver.playback.exchange import Exchange, Headers, RecordedEvent, Reply, Request
from stubserver.serving.framing import EVENTS

REDACTED = "REDACTED"

SHORT = 64
"""Characters of a text that is looked through once, and known from then on: names, media types, paths."""

KEPT_REQUEST_HEADERS = frozenset({"accept", "content-type"})

_SECRET_HEADER = re.compile(
    "auth|cookie|api-?key|secret|password|token$|organi[sz]ation|project|session|credential|signature"
)


@lru_cache(maxsize=1024)
def is_secret_header(name: str) -> bool:
    """Whether the value of a header, named in lower case, is secret, or tells whose it is.

    Of replies, these headers are left out; the others are kept.
    """
    return name != "www-authenticate" and _SECRET_HEADER.search(name) is not None


FIELDS = (
    *("api_key", "apikey", "api-key", "x-api-key", "authorization", "password", "passwd"),
    *("access_token", "refresh_token", "id_token", "auth_token", "bearer_token"),
    *("secret", "client_secret", "secret_key", "access_key", "private_key"),
    *("organization_id", "org_id", "openai_organization"),
)
"""Names whose values are secret, in bodies and queries, in capitals or not."""

QUERY_FIELDS = frozenset({*FIELDS, "key", "token", "sig", "signature", "organization", "code"})
REQUEST_FIELDS = frozenset({*FIELDS, "organization"})

MIN_SECRET = 8
"""Shorter secrets ("EMPTY", "none") aren't looked for elsewhere: they would be found in any text."""

_NAMES = "|".join(map(re.escape, FIELDS))
_PATTERNS = (
    rf'(?i)(?P<keep>"(?:{_NAMES})"\s*:\s*")(?:[^"\\]|\\.)+',
    rf"(?i)(?P<keep>\b(?:{_NAMES})=)[^&\s\"'\\]+",
    r"(?i)(?P<keep>\bbearer\s+)(?:(?=[^\s\d]*\d)[\w.~+/=-]{8,}|[\w.~+/=-]{20,})",
    r"\b(?:sk|pk|rk)-(?:(?=[A-Za-z_-]*\d)[\w-]{16,}|[\w-]*\w{20,})",
    r"\borg-[A-Za-z0-9]{16,}",
    r"\b(?:hf|gsk|xai|r8)_[A-Za-z0-9]{20,}",
    r"\bgh[pousr]_[A-Za-z0-9]{30,}",
    r"\bAIza[\w-]{35}",
    r"\bAKIA[A-Z0-9]{16}\b",
    r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}",
)
"""What keys look like: with a digit or longer than words where they could be prose. Of a group `keep` the rest goes."""


class Redaction:
    """What is secret; `patterns` are the user's own regular expressions. Raises SettingsError for one that is none."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._patterns = [re.compile(pattern) for pattern in _PATTERNS] + [_compile(pattern) for pattern in patterns]
        self._match_again = lru_cache(maxsize=4096)(self._match)

    def request(self, request: Request, secrets: Sequence[str]) -> Request:
        """The request without secrets."""
        return replace(
            request,
            path=self.text(request.path, secrets),
            query=self._query(request.query, secrets),
            headers=tuple(
                (name, self.text(value, secrets)) for name, value in request.headers if name in KEPT_REQUEST_HEADERS
            ),
            body=self._body(request.body, secrets, REQUEST_FIELDS),
        )

    def exchange(self, exchange: Exchange) -> Exchange:
        """The exchange without secrets."""
        request, reply = exchange.request, exchange.reply
        secrets = secrets_of(request) + spellings(_header_values(reply.headers))
        return Exchange(self.request(request, secrets), self._reply(reply, secrets))

    def text(self, text: str, secrets: Iterable[str] = ()) -> str:
        """A text without secrets."""
        for secret in secrets:
            text = text.replace(secret, REDACTED)
        return self._match_again(text) if len(text) <= SHORT else self._match(text)

    def _match(self, text: str) -> str:
        for pattern in self._patterns:
            text = pattern.sub(_keep_name, text)
        return text

    def value(self, value: Any, secrets: Sequence[str] = (), fields: Iterable[str] = FIELDS) -> Any:
        """A JSON value without secrets, at any depth."""
        if isinstance(value, str):
            return self.text(value, secrets)
        if isinstance(value, list):
            return [self.value(part, secrets, fields) for part in value]
        if isinstance(value, dict):
            return {
                self.text(key, secrets): REDACTED
                if key.lower() in fields and _holds_secret(part)
                else self.value(part, secrets, fields)
                for key, part in value.items()
            }
        return value

    def _reply(self, reply: Reply, secrets: Sequence[str]) -> Reply:
        headers = tuple(
            (name, self.text(value, secrets)) for name, value in reply.headers if not is_secret_header(name)
        )
        events = reply.events
        if events is not None:
            events = tuple(RecordedEvent(event.at, self._event(event.data, secrets)) for event in events)
        return replace(reply, headers=headers, body=self._body(reply.body, secrets, FIELDS), events=events)

    def _event(self, data: bytes, secrets: Sequence[str]) -> bytes:
        """What it says as a body, and the whole of it as a text, for what its other lines say."""
        content = EVENTS.read(data)
        cleaned = self._body(content, secrets, FIELDS)
        return self._bytes(data if cleaned == content else EVENTS.rewrite(data, cleaned), secrets)

    def _body(self, body: bytes, secrets: Sequence[str], fields: Iterable[str]) -> bytes:
        """The body; its bytes change only where there is a secret in it.

        As a JSON value, which sees through escapes, and then as a text, for what a JSON reader drops (double keys).
        """
        try:
            value = json.loads(body)
            cleaned = self.value(value, secrets, fields)
            if cleaned != value:
                body = json.dumps(cleaned, ensure_ascii=False, separators=(",", ":")).encode()
        except (ValueError, RecursionError):
            pass
        return self._bytes(body, secrets)

    def _bytes(self, body: bytes, secrets: Sequence[str]) -> bytes:
        """The bytes as a text without secrets; they change only where there is one."""
        # Latin-1 takes every byte to a character and back.
        encoding = "utf-8" if _is_utf8(body) else "latin-1"
        text = body.decode(encoding)
        cleaned_text = self.text(text, secrets)
        return body if cleaned_text == text else cleaned_text.encode(encoding)

    def _query(self, query: str, secrets: Sequence[str]) -> str:
        pairs = parse_qsl(query, keep_blank_values=True)
        cleaned = [
            (name, REDACTED if name.lower() in QUERY_FIELDS and value else self.text(value, secrets))
            for name, value in pairs
        ]
        return self.text(query if cleaned == pairs else urlencode(cleaned), secrets)


def secrets_of(request: Request) -> tuple[str, ...]:
    """The secret values that a request names, in its headers, query and body; see `spellings`."""
    query = parse_qsl(request.query, keep_blank_values=True)
    named = {value for name, value in query if name.lower() in QUERY_FIELDS}
    with suppress(ValueError, RecursionError):
        named.update(_named_values(json.loads(request.body or b"null")))
    return spellings(named | _header_values(request.headers))


def spellings(secrets: Iterable[str]) -> tuple[str, ...]:
    """The secrets in every spelling that a URL or a JSON text may have, longest first; short ones are left out."""
    known = {known for secret in secrets for known in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1])}
    return tuple(sorted((secret for secret in known if len(secret) >= MIN_SECRET), key=lambda each: (-len(each), each)))


def _header_values(headers: Headers) -> set[str]:
    values: set[str] = set()
    for name, value in headers:
        if name == "set-cookie":
            values.add(value.partition(";")[0].partition("=")[2])
        elif name == "cookie":
            values.update(pair.partition("=")[2].strip() for pair in value.split(";"))
        elif is_secret_header(name):
            values.update([value, *value.split()])  # "Bearer KEY": the key alone too
    return values


def _named_values(value: Any) -> Iterator[str]:
    """What a body's secret fields hold."""
    if isinstance(value, list):
        for part in value:
            yield from _named_values(part)
    elif isinstance(value, dict):
        for key, part in value.items():
            if key.lower() in REQUEST_FIELDS and _holds_secret(part):
                yield from map(str, part if isinstance(part, list) else [part])
            else:
                yield from _named_values(part)


def _holds_secret(value: Any) -> bool:
    """A text, a whole number or a list with some.

    An object of such a name (a JSON schema's `password`) is looked into; a fraction is a token's logprob.
    """
    if isinstance(value, list):
        return any(map(_holds_secret, value))
    return value != "" and isinstance(value, str | int) and not isinstance(value, bool)


def _keep_name(match: re.Match[str]) -> str:
    return str(match.groupdict().get("keep") or "") + REDACTED


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise SettingsError(f"--cassette-redact: {pattern!r} is no regular expression: {error}") from None


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
