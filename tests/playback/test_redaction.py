"""Secrets: none of them is in the bytes on disk, whichever way it came."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from exchanges import JSON, cassette, full, request
from servers import recorder, upstream

from stubserver.cli import main
from stubserver.errors import SettingsError
from stubserver.playback.exchange import Exchange, RecordedEvent, Reply, Request
from stubserver.playback.redaction import REDACTED, Redaction, secrets_of

BEARER = "tok/secret+one=="
SECRETS = {
    "bearer": BEARER,
    "api-key": "azure-key-0123456789",
    "cookie": "cookie-value-abcdef",
    "organisation": "org-ABCDEFGHIJKLMNOPQRST",
    "project": "proj_secret_project",
    "query": "query-secret-9876",
    "body": "body-secret-4711",
    "nested": "nested-secret-42",
    "number": "31415926535",
    "look": "sk-proj-abcdefghijklmnopqrstuvwxyz",
    "custom": "EMPLOYEE-7731",
    "reply cookie": "reply-cookie-xyz",
}


def test_no_secret_touches_the_disk(tmp_path: Path) -> None:
    """The upstream quotes everything it got, in a reply and in a stream."""

    def echo(received: bytes, connection: object) -> None:
        quoted = received.decode("latin-1")
        body = json.dumps({"error": {"message": quoted, "api_key": SECRETS["body"]}}).encode()
        kind = "application/json"
        if b'"stream"' in received:
            body, kind = (
                b"data: " + json.dumps(quoted).encode() + b"\n\ndata: plain " + BEARER.encode() + b"\n\n",
                "text/event-stream",
            )
        head = (
            f"HTTP/1.1 401 Unauthorized\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            f"Set-Cookie: s={SECRETS['reply cookie']}; Path=/\r\nOpenAI-Organization: {SECRETS['organisation']}\r\n"
            f"X-Request-Id: kept\r\nX-Echo: {BEARER}\r\nConnection: close\r\n\r\n"
        )
        connection.sendall(head.encode() + body)  # type: ignore[attr-defined]

    headers = {
        "Authorization": f"Bearer {BEARER}",
        "api-key": SECRETS["api-key"],
        "Cookie": f"a=1; session={SECRETS['cookie']}",
        "OpenAI-Organization": SECRETS["organisation"],
        "OpenAI-Project": SECRETS["project"],
    }
    body = {
        "prompt": f"my key is {SECRETS['look']}, I am {SECRETS['custom']}",
        "api_key": SECRETS["body"],
        "extra": [{"Password": SECRETS["nested"], "client_secret": int(SECRETS["number"])}],
        "arguments": json.dumps({"api_key": SECRETS["nested"]}),
    }
    path = tmp_path / "c.jsonl"
    patterns = [r"EMPLOYEE-\d+"]
    with upstream(echo) as url, recorder(url, path, cassette_redact=patterns) as (proxy, said):
        for extra in ({}, {"stream": True}):
            got = httpx.post(f"{proxy}/v1/completions?key={SECRETS['query']}", json=body | extra, headers=headers)
            assert got.status_code == 401
            assert BEARER in got.text  # the client gets everything
        malformed = b'{"api_key": "body-secret-4711", '
        httpx.post(f"{proxy}/v1/completions", content=malformed, headers=headers)
    disk = path.read_bytes()
    assert disk.count(b"\n") == 4
    for name, secret in SECRETS.items():
        spellings = {secret, secret.replace("/", "%2F"), json.dumps(secret)[1:-1]}
        assert not any(spelling.encode() in disk for spelling in spellings), name
        assert secret not in "".join(said), name
    assert b'"x-request-id": "kept"' in disk
    assert main(["cassette", "check", str(path), "--cassette-redact", *patterns]) == 0


def test_short_header_values_are_not_looked_for_elsewhere() -> None:
    headers = (("authorization", "Bearer EMPTY"),)
    assert secrets_of(Request("POST", "/", headers=headers)) == ("Bearer%20EMPTY", "Bearer EMPTY")
    kept = Redaction().exchange(Exchange(Request("POST", "/", "", headers, b'{"prompt":"EMPTY"}'), Reply(200)))
    assert kept.request.body == b'{"prompt":"EMPTY"}'


def test_bytes_change_only_where_a_secret_is() -> None:
    body = b'{ "a" : 1.50, "token": "x", "permission": [{"organization": "*"}], "usage": {"total_tokens": 3} }'
    exchange = Exchange(Request("GET", "/v1/models"), Reply(200, JSON, body, encoding="gzip"))
    assert Redaction().exchange(exchange) == exchange


@pytest.mark.parametrize(
    "value",
    [
        {"properties": {"password": {"type": "string", "minLength": 8}}},
        {"top_logprobs": [{"secret": -1.25, "password": -9999.0}]},
        {"text": "The bearer certificates of sk-learn-compatible-things are secret: password, api_key."},
    ],
)
def test_what_only_looks_like_a_secret_is_kept(value: Any) -> None:
    assert Redaction().value(value) == value


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("Authorization: Bearer abcdefg8", "Authorization: Bearer REDACTED"),
        ("key sk-proj-Ab3defghijklmnop!", "key REDACTED!"),
        ("?api_key=short&x=1", "?api_key=REDACTED&x=1"),
        ('{"a": "{\\"password\\": 1}", "password" : "a\\"b"}', '{"a": "{\\"password\\": 1}", "password" : "REDACTED"}'),
        ("hf_abcdefghijklmnopqrst1", "REDACTED"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSMeKKF2QT4", "REDACTED"),
    ],
)
def test_what_looks_like_a_secret_goes(text: str, cleaned: str) -> None:
    assert Redaction().text(text) == cleaned


def test_a_stream_is_cleaned_event_by_event() -> None:
    events = (RecordedEvent(0, b'data: {"password":"abc"}\n\n'), RecordedEvent(1, b"data: [DONE]\n\n"))
    found = Redaction().exchange(Exchange(request(), Reply(200, events=events))).reply.events
    assert found == (RecordedEvent(0, b'data: {"password":"REDACTED"}\n\n'), events[1])


@pytest.mark.parametrize(
    ("event", "cleaned"),
    [
        (b": sk-0123456789abcdefghij\n\n", b": REDACTED\n\n"),
        (b'event: x\r\ndata:{"password":"abc"}\r\n\r\n', b'event: x\r\ndata: {"password":"REDACTED"}\r\n\r\n'),
        (b"id: sk-0123456789abcdefghij\ndata: 1\ndata: 2\n\n", b"id: REDACTED\ndata: 1\ndata: 2\n\n"),
        (b'data: {"a":1,\ndata: "password":"abc"}\n\n', b'data: {"a":1,"password":"REDACTED"}\n\n'),
        (b"data:1\r\r", b"data:1\r\r"),
    ],
)
def test_every_line_of_an_event_is_cleaned(event: bytes, cleaned: bytes) -> None:
    exchange = Exchange(request(), Reply(200, events=(RecordedEvent(0, event),)))
    assert Redaction().exchange(exchange).reply.events == (RecordedEvent(0, cleaned),)


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"--cassette-redact: '\(' is no regular expression"):
        Redaction(["("])


def test_check_finds_and_redact_takes_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.jsonl"
    cassette(
        path, full(request(prompt="fine"), {}), full(request(prompt="sk-0123456789abcdefghij"), {}), url="http://x"
    )
    assert main(["cassette", "check", str(path)]) == 1
    assert "exchange 2 (POST /v1/completions) holds a secret" in capsys.readouterr().out
    assert main(["cassette", "redact", str(path)]) == 0
    assert "secrets taken out of 1 of 2 exchanges" in capsys.readouterr().out
    assert (b"sk-0123" in path.read_bytes(), REDACTED.encode() in path.read_bytes()) == (False, True)
    assert main(["cassette", "check", str(path)]) == 0
