"""The proxy: what passes it, when, and what becomes of replies and clients that break off."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest
from servers import always, recorder, replay, reply, upstream

from stubserver.playback.cassette import read_cassette

SSE = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
BODY = b'{"choices":[{"text":"hello"}]}'


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def test_a_stream_passes_event_by_event_and_its_times_are_kept(tmp_path: Path) -> None:
    """The second event isn't sent before the client has the first."""
    path, arrived = tmp_path / "c.jsonl", threading.Event()

    def answer(received: bytes, connection: socket.socket) -> None:
        connection.sendall(SSE.encode() + b"\r\n" + chunk(b"data: 1\n\n"))
        assert arrived.wait(20)
        time.sleep(0.2)
        connection.sendall(chunk(b"data: 2\n\ndata: [DO") + chunk(b"NE]\n\n") + b"0\r\n\r\n")

    with (
        upstream(answer) as url,
        recorder(url, path) as (proxy, _),
        httpx.stream("POST", f"{proxy}/v1/completions", json={"stream": True}, timeout=30) as response,
    ):
        pieces = response.iter_raw()
        assert next(pieces) == b"data: 1\n\n"
        arrived.set()
        assert b"".join(pieces) == b"data: 2\n\ndata: [DONE]\n\n"
    [exchange] = read_cassette(path).exchanges
    assert exchange.reply.events is not None
    assert [event.data for event in exchange.reply.events] == [b"data: 1\n\n", b"data: 2\n\n", b"data: [DONE]\n\n"]
    first, second, third = (event.at for event in exchange.reply.events)
    assert 0 < first < first + 0.2 <= second <= third


def test_a_client_that_goes_away_is_gone_upstream_too(tmp_path: Path) -> None:
    path, gone = tmp_path / "c.jsonl", threading.Event()

    def answer(received: bytes, connection: socket.socket) -> None:
        connection.sendall(SSE.encode() + b"\r\n" + chunk(b"data: 1\n\n"))
        connection.settimeout(20)
        if connection.recv(1) == b"":
            gone.set()

    with upstream(answer) as url, recorder(url, path) as (proxy, said):
        with httpx.stream("POST", f"{proxy}/v1/completions", json={"stream": True}) as response:
            assert next(response.iter_raw()) == b"data: 1\n\n"
        assert gone.wait(10)
    assert said == ["NOT recorded: POST /v1/completions: the reply broke off"]
    assert not path.exists()


def test_a_client_that_waits_for_headers_is_gone_upstream_too(tmp_path: Path) -> None:
    gone = threading.Event()

    def answer(received: bytes, connection: socket.socket) -> None:
        connection.settimeout(20)
        if connection.recv(1) == b"":
            gone.set()

    with upstream(answer) as url, recorder(url, tmp_path / "c") as (proxy, _):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{proxy}/v1/completions", json={}, timeout=0.5)
        assert gone.wait(10)


def test_an_upstream_that_breaks_off(tmp_path: Path) -> None:
    """The client's connection breaks too, and half a reply isn't recorded."""
    path = tmp_path / "c.jsonl"

    def answer(received: bytes, connection: socket.socket) -> None:
        connection.sendall(reply(BODY, "Content-Type: application/json")[:-5])

    with upstream(answer) as url, recorder(url, path) as (proxy, said), pytest.raises(httpx.RemoteProtocolError):
        httpx.post(f"{proxy}/v1/completions", json={})
    assert said == ["NOT recorded: POST /v1/completions: the reply broke off"]
    assert not path.exists()


def test_an_upstream_that_is_not_there(tmp_path: Path) -> None:
    with recorder("http://127.0.0.1:1", tmp_path / "c.jsonl") as (proxy, _):
        response = httpx.post(f"{proxy}/v1/completions", json={})
    assert response.status_code == 502
    error = response.json()["error"]
    assert error["message"].startswith("Can't reach http://127.0.0.1:1: ")
    assert (error["type"], error["code"]) == ("BadGatewayError", 502)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("status", ["500 Internal Server Error", "429 Too Many Requests", "204 No Content"])
def test_failures_pass_as_they_are_and_are_recorded(status: str, tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    body = b"" if status.startswith("204") else b"out of order"
    failing = always(body, "Retry-After: 7", "Content-Type: text/plain", status=status)
    with upstream(failing) as url, recorder(url, path) as (proxy, _):
        live = httpx.post(f"{proxy}/v1/completions", json={})
    with replay(path) as played_at:
        played = httpx.post(f"{played_at}/v1/completions", json={})
    for response in (live, played):
        assert (response.status_code, response.content) == (int(status[:3]), body)
        assert (response.headers["retry-after"], response.headers["content-type"]) == ("7", "text/plain")


def test_a_compressed_reply_is_readable_on_disk_and_compressed_again_for_who_takes_it(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    packed = gzip.compress(BODY)
    asked: list[bytes] = []

    def answer(received: bytes, connection: socket.socket) -> None:
        asked.append(received.lower())
        connection.sendall(
            reply(packed, "Content-Encoding: gzip", "Content-Type: application/json", "Vary: Accept-Encoding")
        )

    with (
        upstream(answer) as url,
        recorder(url, path) as (proxy, _),
        httpx.stream(
            "POST", f"{proxy}/v1/completions", json={}, headers={"accept-encoding": "zstd, gzip;q=0.8, br"}
        ) as live,
    ):
        assert b"".join(live.iter_raw()) == packed
        assert live.headers["content-encoding"] == "gzip"
    assert b"accept-encoding: gzip\r\n" in asked[0]  # of what the client takes, only what can be unpacked
    line = json.loads(path.read_text().splitlines()[1])
    assert (line["reply"]["encoding"], line["reply"]["json"]) == ("gzip", json.loads(BODY))
    assert "content-encoding" not in line["reply"]["headers"]
    with replay(path) as played_at:
        for offer, encoding in (("gzip", "gzip"), ("br, gzip;q=0.5", "gzip"), ("identity", None), ("gzip;q=0", None)):
            played = httpx.post(f"{played_at}/v1/completions", json={}, headers={"accept-encoding": offer})
            assert played.content == BODY
            assert played.headers.get("content-encoding") == encoding
            assert int(played.headers["content-length"]) == (
                len(BODY) if encoding is None else played.num_bytes_downloaded
            )


def test_a_compressed_stream(tmp_path: Path) -> None:
    path, events = tmp_path / "c.jsonl", [b'data: {"a":1}\n\n', b"data: [DONE]\n\n"]
    packed = gzip.compress(b"".join(events))

    def answer(received: bytes, connection: socket.socket) -> None:
        connection.sendall(SSE.encode() + b"Content-Encoding: gzip\r\n\r\n" + chunk(packed) + b"0\r\n\r\n")

    with upstream(answer) as url, recorder(url, path) as (proxy, _):
        assert httpx.post(f"{proxy}/v1/completions", json={"stream": True}).content == b"".join(events)
    with replay(path) as played_at:
        for offer in ("gzip", "identity"):
            played = httpx.post(
                f"{played_at}/v1/completions", json={"stream": True}, headers={"accept-encoding": offer}
            )
            assert played.content == b"".join(events)
            assert played.headers.get("content-encoding", "identity") == offer


def test_an_encoding_that_cannot_be_looked_into_is_passed_but_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    packing = always(b"??", "Content-Encoding: br")
    with (
        upstream(packing) as url,
        recorder(url, path) as (proxy, said),
        httpx.stream("POST", f"{proxy}/v1/completions", json={}) as response,
    ):
        assert b"".join(response.iter_raw()) == b"??"
    assert "its content-encoding is 'br'" in said[0]
    assert not path.exists()


def test_a_compressed_request_is_passed_as_it_is_and_recorded_readably(tmp_path: Path) -> None:
    path, bodies = tmp_path / "c.jsonl", []

    def answer(received: bytes, connection: socket.socket) -> None:
        bodies.append(received.partition(b"\r\n\r\n")[2])
        connection.sendall(reply(BODY))

    packed = gzip.compress(b'{"prompt":"x"}')
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    with upstream(answer) as url, recorder(url, path) as (proxy, _):
        httpx.post(f"{proxy}/v1/completions", content=packed, headers=headers)
    assert bodies[0] == packed
    assert read_cassette(path).exchanges[0].request.body == b'{"prompt":"x"}'
    with replay(path) as played_at:
        assert httpx.post(f"{played_at}/v1/completions", content=packed, headers=headers).content == BODY
        assert httpx.post(f"{played_at}/v1/completions", json={"prompt": "x"}).content == BODY


def test_what_goes_upstream(tmp_path: Path) -> None:
    """The path as it was written, the query, the client's own headers, and nothing of the proxy's."""
    heads: list[str] = []

    def answer(received: bytes, connection: socket.socket) -> None:
        heads.append(received.partition(b"\r\n\r\n")[0].decode("latin-1"))
        connection.sendall(reply(b"{}"))

    with upstream(answer) as url, recorder(f"{url}/base/v1/", tmp_path / "c") as (proxy, _):
        own = {"x-own": "1 é".encode("latin-1"), "user-agent": "me", "accept-encoding": "br"}
        httpx.get(f"{proxy}/v1/a%2Fb?q=%C3%A9&r", headers=own)
    line, *headers = heads[0].split("\r\n")
    assert line == "GET /base/v1/a%2Fb?q=%C3%A9&r HTTP/1.1"
    named = {header.partition(":")[0].lower(): header.partition(": ")[2] for header in headers}
    assert {key: named[key] for key in ("x-own", "user-agent", "accept-encoding", "host")} == {
        "x-own": "1 é",
        "user-agent": "me",
        "accept-encoding": "identity",
        "host": url.removeprefix("http://"),
    }
