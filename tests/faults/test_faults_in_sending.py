"""Faults in how a reply is sent: content type, errors inside, [DONE], framing, latency."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import openai
import pytest
from fault_server import REQUEST, TOKENS, Running

from stubserver.dialects.vllm.wire.codec import WIRE
from stubserver.faults.keys import LatencyKeys
from stubserver.faults.stages import Piece, Wait, delaying


def pieces(server: Running, *faults: dict[str, Any], stream: bool = True) -> list[bytes]:
    """The chunks of a reply, as the server wrote them."""
    headers = {"X-Stub-Faults": json.dumps(faults)}
    body = {**REQUEST, "stream": stream}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, headers=headers) as reply:
        return list(reply.iter_raw())


def texts(stream: list[Any]) -> list[str]:
    return [event.choices[0].text for event in stream]


@pytest.mark.parametrize("stream", [False, True])
def test_content_type(server: Running, stream: bool) -> None:
    with server.client({"kind": "content_type"}) as client:
        raw = client.completions.with_raw_response.create(**REQUEST, stream=stream)
        assert raw.headers["content-type"] == "text/plain"
    reply = server.post({"kind": "content_type", "value": "text/html"}, stream=stream)
    assert reply.headers["content-type"] == "text/html"
    assert reply.text.startswith("data: " if stream else "{")


@pytest.mark.parametrize("count", [0, 2, 3, 9])
def test_error_event(server: Running, count: int) -> None:
    fault = {"kind": "error_event", "after_events": count, "message": "out of memory"}
    with server.client(fault) as client:
        stream = client.completions.create(**REQUEST, stream=True)
        assert [next(stream).choices[0].text for _ in range(min(count, 3))] == TOKENS[:count]
        with pytest.raises(openai.APIError, match="out of memory"):
            next(stream)
    assert pieces(server, fault)[-1] == b"data: [DONE]\n\n"


def test_error_event_of_a_full_reply(server: Running) -> None:
    reply = server.post({"kind": "error_event"})
    assert (reply.status_code, list(reply.json())) == (200, ["error"])
    assert reply.json()["error"]["type"] == "InternalServerError"
    assert server.complete({"kind": "error_event"}).choices is None


def test_no_done(server: Running) -> None:
    assert pieces(server)[-1] == b"data: [DONE]\n\n"
    assert b"[DONE]" not in b"".join(pieces(server, {"kind": "no_done"}))
    assert texts(server.complete({"kind": "no_done"}, stream=True)) == TOKENS


def test_framing_coalesce(server: Running) -> None:
    fault = {"kind": "framing", "coalesce": 2}
    assert [piece.count(b"\n\n") for piece in pieces(server, fault)] == [2, 2]
    assert [piece.count(b"\n\n") for piece in pieces(server, {**fault, "coalesce": 3})] == [3, 1]
    assert texts(server.complete(fault, stream=True)) == TOKENS


def test_framing_coalesced_events_go_out_before_a_close(server: Running) -> None:
    faults = {"kind": "framing", "coalesce": 10}, {"kind": "close", "after_events": 2}
    assert pieces_until_closed(server, *faults).count(b"\n\n") == 2


def pieces_until_closed(server: Running, *faults: dict[str, Any]) -> bytes:
    received = b""
    headers = {"X-Stub-Faults": json.dumps(faults)}
    body = {**REQUEST, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, headers=headers) as reply:
        try:
            for piece in reply.iter_raw():
                received += piece
        except httpx.RemoteProtocolError:
            return received
    raise AssertionError("not closed")


@pytest.mark.parametrize("size", [1, 3, 50])
def test_framing_split(server: Running, size: int) -> None:
    fault = {"kind": "framing", "split": size}
    cut = pieces(server, fault)
    assert max(map(len, cut)) == size
    assert b"".join(cut).count(b"\n\n") == 4
    assert texts(server.complete(fault, stream=True)) == TOKENS


def test_framing_split_cuts_characters(server: Running) -> None:
    cut = pieces(server, {"kind": "framing", "split": 1})
    first = cut.index("é".encode()[:1])
    assert cut[first : first + 2] == [b"\xc3", b"\xa9"]


def test_framing_split_of_a_full_reply(server: Running) -> None:
    fault = {"kind": "framing", "split": 7}
    cut = pieces(server, fault, stream=False)
    assert json.loads(b"".join(cut))["choices"][0]["text"] == " A é B"
    assert server.complete(fault).choices[0].text == " A é B"


def test_framing_no_space(server: Running) -> None:
    fault = {"kind": "framing", "no_space": True}
    assert [piece[:6] for piece in pieces(server, fault)] == [b"data:{"] * 3 + [b"data:["]
    assert texts(server.complete(fault, stream=True)) == TOKENS


def test_framing_crlf(server: Running) -> None:
    fault = {"kind": "framing", "crlf": True}
    assert all(piece.endswith(b"\r\n\r\n") for piece in pieces(server, fault))
    assert texts(server.complete(fault, stream=True)) == TOKENS


def test_framing_comments(server: Running) -> None:
    fault = {"kind": "framing", "comments": True}
    assert all(piece.startswith(b": a comment\n\ndata: ") for piece in pieces(server, fault))
    assert texts(server.complete(fault, stream=True)) == TOKENS


def test_latency_of_a_stream(server: Running) -> None:
    with server.client({"kind": "latency", "first": 0.2, "between": 0.1}) as client:
        start = time.monotonic()
        times = []
        for _ in client.completions.create(**REQUEST, stream=True):
            times.append(time.monotonic() - start)
    assert times[0] >= 0.2
    assert times[1] >= 0.3
    assert times[2] >= 0.4


def test_latency_lets_the_headers_of_a_stream_out_at_once(server: Running) -> None:
    headers = {"X-Stub-Faults": '[{"kind": "latency", "first": 30}]'}
    body = {**REQUEST, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, headers=headers, timeout=5) as reply:
        assert reply.status_code == 200


def test_latency_of_a_full_reply_is_that_of_its_tokens(server: Running) -> None:
    start = time.monotonic()
    server.complete({"kind": "latency", "first": 0.1, "between": 0.1})
    assert time.monotonic() - start >= 0.3


def test_latency_befalls_other_faults_too(server: Running) -> None:
    start = time.monotonic()
    reply = server.post({"kind": "latency", "first": 0.2}, {"kind": "status", "status": 503})
    assert reply.status_code == 503
    assert time.monotonic() - start >= 0.2


def test_latency_has_the_same_jitter_in_every_run() -> None:
    def waits(turn: int, seed: int) -> list[float]:
        fault = LatencyKeys.model_validate({"kind": "latency", "first": 1, "jitter": 0.5, "seed": seed})
        stage = delaying(fault, turn, WIRE)
        items = [item for number in range(3) for item in stage(Piece(number, b""))]
        return [item.seconds for item in items if isinstance(item, Wait)]

    assert waits(0, seed=7) == waits(0, seed=7)
    assert len({tuple(waits(turn, seed)) for turn in (0, 1) for seed in (7, 8)}) == 4
    first, *later = waits(0, seed=7)
    assert 1 <= first <= 1.5
    assert all(0 <= wait <= 0.5 for wait in later)
