"""Which recording answers: canonical bodies, ignored fields, repeats, and what a miss says."""

from __future__ import annotations

import gzip
from dataclasses import replace
from typing import Any

import pytest
from exchanges import JSON, full, request

from stubserver.config.settings import Settings
from stubserver.playback.exchange import Exchange, Request
from stubserver.playback.matching import Library, Repeat
from stubserver.playback.redaction import Redaction

BODY = b'{"prompt":"x","temperature":0,"max_tokens":1,"stop":["a","b"]}'
ASKED = Request("POST", "/v1/completions", headers=JSON, body=BODY)


def library(*exchanges: Exchange, repeat: Repeat = "last", ignored: tuple[str, ...] | None = None) -> Library:
    default = Settings.model_fields["cassette_ignore"].default
    return Library(exchanges, default if ignored is None else ignored, Redaction(), repeat)


def asked(body: bytes, **changes: Any) -> Request:
    return replace(ASKED, body=body, **changes)


@pytest.mark.parametrize(
    "body",
    [
        BODY,
        b'{"stop":["a","b"],"max_tokens":1,"temperature":0.0,"prompt":"x"}',
        b'{ "prompt": "\\u0078", "temperature": 0e5, "max_tokens": 1.0, "stop": ["a", "b"] }',
        b'{"prompt":"x","temperature":-0.0,"max_tokens":1,"stop":["a","b"],"user":"me","request_id":"7"}',
    ],
)
def test_the_same_request_in_another_spelling(body: bytes) -> None:
    exchange = full(ASKED, {})
    assert library(exchange).find(asked(body)) is exchange


@pytest.mark.parametrize(
    ("body", "difference"),
    [
        (BODY.replace(b'"a","b"', b'"b","a"'), 'stop[0] was "a", now "b"; stop[1] was "b", now "a"'),
        (BODY.replace(b'"max_tokens":1', b'"max_tokens":"1"'), 'max_tokens was 1, now "1"'),
        (BODY.replace(b'"max_tokens":1', b'"max_tokens":true'), "max_tokens was 1, now true"),
        (BODY.replace(b'"temperature":0,', b""), "temperature was 0, now it is not there"),
        (BODY.replace(b"{", b'{"n":1,', 1), "n was not there, now 1"),
        (BODY.replace(b'["a","b"]', b'["a"]'), 'stop was ["a", "b"], now ["a"]'),
        (b"{", f'the body was "{BODY.decode()}"'),
    ],
)
def test_a_miss_says_what_differs(body: bytes, difference: str) -> None:
    found = library(full(request(prompt="far", n=9), {}), full(ASKED, {}))
    assert found.find(asked(body)) is None
    message = found.explain_miss(asked(body))
    if body != b"{":
        assert "The nearest is request 2 of the cassette: " in message
        assert difference in message


def test_a_miss_of_another_path_says_which_paths_there_are() -> None:
    message = library(full(ASKED, {})).explain_miss(request("/v1/chat/completions"))
    assert message == "No recording answers POST /v1/chat/completions: recorded is POST /v1/completions."


def test_a_miss_of_an_empty_cassette() -> None:
    assert library().explain_miss(ASKED) == "No recording answers POST /v1/completions: recorded is nothing."


@pytest.mark.parametrize(("repeat", "expected"), [("last", "abcccc"), ("loop", "abcabc"), ("error", "abc...")])
def test_repeats(repeat: Repeat, expected: str) -> None:
    played = library(*(full(ASKED, letter) for letter in "abc"), repeat=repeat)
    for _ in range(2):
        found = [played.find(ASKED) for _ in range(6)]
        assert "".join(exchange.reply.body.decode()[1] if exchange else "." for exchange in found) == expected
        played.rewind()
    assert library(full(ASKED, 1), full(ASKED, 2)).explain_miss(ASKED) == (
        "POST /v1/completions was recorded twice, and has been played as often."
    )


def test_ignored_fields_can_be_chosen() -> None:
    exchange = full(request(prompt="x", stream_options={"include_usage": True, "other": 1}), {})
    other = request(prompt="x", stream_options={"include_usage": False, "other": 1}, user="me")
    assert library(exchange).find(other) is None
    assert library(exchange, ignored=("stream_options.include_usage", "user")).find(other) is exchange
    assert library(exchange, ignored=("stream_options.include_usage",)).find(other) is None


def test_a_compressed_body_is_the_same_request() -> None:
    exchange = full(ASKED, {})
    packed = asked(gzip.compress(BODY), headers=(*JSON, ("content-encoding", "gzip")))
    assert library(exchange).find(packed) is exchange


def test_a_secret_that_the_recorder_took_out_is_taken_out_of_what_is_asked() -> None:
    with_key = request(prompt="x", api_key="sk-one-one-one-one-one")
    recorded = Redaction().exchange(full(with_key, {}))
    assert library(recorded).find(request(prompt="x", api_key="another")) is recorded


def test_query_parameters_count_in_any_order() -> None:
    exchange = full(replace(ASKED, query="a=1&b=2"), {})
    assert library(exchange).find(replace(ASKED, query="b=2&a=1")) is exchange
    assert "the query was 'a=1&b=2', now 'a=2'" in library(exchange).explain_miss(replace(ASKED, query="a=2"))
