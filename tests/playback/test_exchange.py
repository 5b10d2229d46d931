"""A line of a cassette gives back the very bytes."""

from __future__ import annotations

import json

import pytest
from exchanges import JSON
from hypothesis import given
from hypothesis import strategies as st

from stubserver.playback.exchange import Exchange, RecordedEvent, Reply, Request, read_exchange, write_exchange

REQUEST = Request("POST", "/v1/completions", "a=1", JSON, b'{"prompt":"x"}')

BODIES = {
    b"": {},
    b'{"a":[1,1.5,-5.778124809265137],"b":null}': {"json": {"a": [1, 1.5, -5.778124809265137], "b": None}},
    '{"text":"é\u2028"}'.encode(): {"json": {"text": "é\u2028"}},
    b'{"a": 1}': {"text": '{"a": 1}'},
    b'{"a":1e-5}': {"text": '{"a":1e-5}'},
    b'{"a":1,"a":2}': {"text": '{"a":1,"a":2}'},
    b'{"a":NaN}': {"text": '{"a":NaN}'},
    b'{"a":"\\ud800"}': {"text": '{"a":"\\ud800"}'},
    b"not json\r\n": {"text": "not json\r\n"},
    b"\xff\x00": {"base64": "/wA="},
}


def through_a_line(exchange: Exchange) -> Exchange:
    line = json.dumps(write_exchange(exchange), ensure_ascii=False)
    assert "\n" not in line
    return read_exchange(json.loads(line))


@pytest.mark.parametrize("body", BODIES)
def test_bodies_are_json_where_that_is_exact(body: bytes) -> None:
    exchange = Exchange(REQUEST, Reply(200, JSON, body, encoding="gzip", seconds=0.25))
    written = write_exchange(exchange)["reply"]
    assert {key: written[key] for key in ("json", "text", "base64") if key in written} == BODIES[body]
    assert through_a_line(exchange) == exchange


def test_keys_stand_in_one_order() -> None:
    written = write_exchange(Exchange(REQUEST, Reply(200, JSON, b"{}")))
    assert list(written) == ["request", "reply"]
    assert list(written["request"]) == ["method", "path", "query", "headers", "json"]
    assert list(written["reply"]) == ["status", "seconds", "headers", "json"]


@given(st.binary(max_size=60))
def test_any_bytes(body: bytes) -> None:
    events = (RecordedEvent(0.5, body), RecordedEvent(1.0, b"data: " + body + b"\n\n"))
    for reply in (Reply(200, JSON, body), Reply(200, JSON, events=events)):
        found = through_a_line(Exchange(REQUEST, reply)).reply
        assert (found.body, found.events) == (reply.body, reply.events)
