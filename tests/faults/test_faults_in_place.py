"""Faults instead of a reply, as clients see them: status, hang, close, readiness, dead engine."""

from __future__ import annotations

import socket
import time

import httpx
import openai
import pytest
from fault_server import DROPPED, REQUEST, SILENT, TOKENS, Running, serving

from stubserver.app import create_app
from stubserver.errors import ConnectionClosedError

FULL_AND_STREAM = pytest.mark.parametrize("stream", [False, True], ids=["full", "stream"])


def raw_reply(server: Running, fault: str, *, stream: bool = False) -> bytes:
    """Everything that the server sends until it closes the connection."""
    body = b'{"prompt": "Answer:", "max_tokens": 3, "temperature": 0, "stream": %s}' % (b"true" if stream else b"false")
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-Stub-Faults: [{fault}]\r\n"
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=10) as connection:
        connection.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        received = b""
        while part := connection.recv(65536):
            received += part
        return received


@FULL_AND_STREAM
def test_status(server: Running, stream: bool) -> None:
    with pytest.raises(openai.RateLimitError) as caught:
        server.complete({"kind": "status", "status": 429, "headers": {"Retry-After": 3}}, stream=stream)
    error = caught.value
    assert (error.status_code, error.response.headers["retry-after"]) == (429, "3")
    message = "Too Many Requests: a fault that was set on stubserver"
    assert error.body == {"message": message, "type": "Too Many Requests", "param": None, "code": 429}


def test_status_with_a_body(server: Running) -> None:
    reply = server.post({"kind": "status", "status": 502, "body": "<html>Bad gateway</html>"})
    assert (reply.status_code, reply.text) == (502, "<html>Bad gateway</html>")
    assert reply.headers["content-type"].startswith("text/plain")
    flat = {"object": "error", "message": "busy", "code": 503}
    reply = server.post({"kind": "status", "status": 503, "body": flat})
    assert (reply.status_code, reply.json()) == (503, flat)
    reply = server.post({"kind": "status", "status": 599, "message": "own words"})
    assert reply.json()["error"] == {"message": "own words", "type": "Unknown", "param": None, "code": 599}
    assert server.post({"kind": "status", "status": 204}).content == b""


def test_status_twice_then_fine_is_what_retries_are_for(server: Running) -> None:
    server.state.faults.replace([{"kind": "status", "status": 429, "headers": {"Retry-After": 0.01}, "times": 2}])
    assert server.complete(retries=2).choices[0].text == " A é B"
    assert server.complete().choices[0].text == " A é B"


@FULL_AND_STREAM
def test_hang(server: Running, stream: bool) -> None:
    with pytest.raises(openai.APITimeoutError):
        server.complete({"kind": "hang"}, stream=stream, timeout=0.2)


def test_hang_after_events(server: Running) -> None:
    with server.client({"kind": "hang", "after_events": 2}, timeout=0.5) as client:
        stream = client.completions.create(**REQUEST, stream=True)
        assert [next(stream).choices[0].text for _ in range(2)] == [" A", " é"]
        with pytest.raises(SILENT):
            next(stream)


def test_hang_of_a_full_reply_can_come_after_the_headers(server: Running) -> None:
    faults = {"X-Stub-Faults": '[{"kind": "hang", "after_events": 0}]'}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=REQUEST, headers=faults, timeout=0.3) as reply:
        assert reply.status_code == 200
        with pytest.raises(httpx.ReadTimeout):
            reply.read()


def test_after_a_hang_the_server_is_idle(server: Running) -> None:
    with pytest.raises(openai.APITimeoutError):
        server.complete({"kind": "hang", "after_events": 1}, timeout=0.2)
    deadline = time.monotonic() + 5
    while server.state.served.in_flight and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.state.served.in_flight == 0


@FULL_AND_STREAM
def test_close(server: Running, stream: bool) -> None:
    with pytest.raises(openai.APIConnectionError):
        server.complete({"kind": "close"}, stream=stream)
    with pytest.raises(httpx.RemoteProtocolError, match="Server disconnected without sending a response"):
        server.post({"kind": "close"}, stream=stream)
    assert raw_reply(server, '{"kind": "close", "at": "before_reply"}', stream=stream) == b""


@FULL_AND_STREAM
def test_close_mid_headers(server: Running, stream: bool) -> None:
    with pytest.raises(openai.APIConnectionError):
        server.complete({"kind": "close", "at": "mid_headers"}, stream=stream)
    received = raw_reply(server, '{"kind": "close", "at": "mid_headers"}', stream=stream)
    assert received == b"HTTP/1.1 200 OK\r\ncontent-type: applica"


@pytest.mark.parametrize("events", [0, 1, 3, 9])
def test_close_after_events(server: Running, events: int) -> None:
    with server.client({"kind": "close", "after_events": events}) as client:
        reply = client.completions.create(**REQUEST, stream=True)
        assert [next(reply).choices[0].text for _ in range(min(events, 3))] == TOKENS[:events]
        with pytest.raises(DROPPED):
            next(reply)
    stream = raw_reply(server, f'{{"kind": "close", "after_events": {events}}}', stream=True)
    assert stream.startswith(b"HTTP/1.1 200 OK\r\n")
    assert stream.count(b"data: {") == min(events, 3)
    assert b"[DONE]" not in stream


def test_close_mid_event(server: Running) -> None:
    received = raw_reply(server, '{"kind": "close", "mid_event": 1}', stream=True)
    assert received.count(b"data: {") == 2
    assert received.count(b"\n\n") == 1
    assert not received.endswith(b"0\r\n\r\n")


def test_close_in_a_full_reply(server: Running) -> None:
    head, _, body = raw_reply(server, '{"kind": "close", "after_events": 0}').partition(b"\r\n\r\n")
    assert (head.split(b"\r\n")[0], body) == (b"HTTP/1.1 200 OK", b"")
    head, _, body = raw_reply(server, '{"kind": "close", "mid_event": 0}').partition(b"\r\n\r\n")
    length = next(int(line.split(b": ")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
    assert len(body) == length // 2
    with pytest.raises(openai.APIConnectionError):
        server.complete({"kind": "close", "mid_event": 0})


def test_close_leaves_the_server_alive_and_quiet(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    for fault in ({}, {"at": "mid_headers"}, {"after_events": 1}, {"mid_event": 0}):
        with pytest.raises(DROPPED):
            server.complete({"kind": "close", **fault}, stream=True)
    assert server.complete().choices[0].text == " A é B"
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("fault", ['{"kind": "close"}', '{"kind": "close", "mid_event": 0}'])
async def test_close_in_process_raises(fault: str) -> None:
    transport = httpx.ASGITransport(create_app())
    async with httpx.AsyncClient(transport=transport, base_url="http://stub") as client:
        with pytest.raises(ConnectionClosedError) as caught:
            await client.post("/v1/completions", json={"prompt": "x"}, headers={"X-Stub-Faults": f"[{fault}]"})
    assert isinstance(caught.value, ConnectionResetError)


def test_readiness(server: Running) -> None:
    server.state.faults.replace([{"kind": "readiness", "seconds": 0.4}])
    start = time.monotonic()
    assert httpx.get(f"{server.url}/health").status_code == 503
    assert httpx.get(f"{server.url}/v1/models").status_code == 503
    with pytest.raises(openai.InternalServerError):
        server.complete(stream=True)
    while httpx.get(f"{server.url}/health").status_code != 200:
        time.sleep(0.02)
    assert 0.4 <= time.monotonic() - start < 5
    assert server.complete().choices[0].text == " A é B"


def test_dead_engine(server: Running) -> None:
    server.state.faults.replace([{"kind": "dead_engine", "when": {"field": {"stop": "poison"}}}])
    assert server.complete().choices[0].text == " A é B"
    for fields in ({"stop": "poison"}, {}, {"stream": True}):
        with pytest.raises(openai.InternalServerError) as caught:
            server.complete(**fields)
        assert (caught.value.status_code, caught.value.body["type"]) == (500, "InternalServerError")
        assert caught.value.body["message"].startswith("EngineCore encountered an issue.")
    assert httpx.get(f"{server.url}/v1/models").status_code == 500
    health = httpx.get(f"{server.url}/health")
    assert (health.status_code, health.content) == (503, b"")
    server.state.faults.reset()
    assert server.complete().choices[0].text == " A é B"


def test_dead_engine_on_a_rule() -> None:
    rule = {"when": {"prompt": "die"}, "steps": [], "faults": [{"kind": "dead_engine"}]}
    with serving({"rules": [rule], "default": "random"}) as server:
        assert server.complete().choices
        for prompt in ("die", "Answer:"):
            with pytest.raises(openai.InternalServerError):
                server.complete(prompt=prompt)
