"""Playing back, seen from the app: boundaries, pace, misses, conversion, and what passes by."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from exchanges import cassette, compact, full, request, stream
from starlette.testclient import TestClient

from stubserver.app import create_app
from stubserver.errors import SettingsError
from stubserver.playback.exchange import Exchange, Request

EVENTS = [
    b'data: {"a":1}\n\n',
    b": comment\n\n",
    b'data: {"a":\ndata: 2}\r\n\r\n',
    b"data: [DONE]\n\n",
    b"data: cut off",
]
ASKED = request(prompt="x", stream=True)


def client(tmp_path: Path, *exchanges: Exchange, **settings: Any) -> TestClient:
    upstream = settings.pop("recorded", {})
    return TestClient(create_app(cassette=cassette(tmp_path / "c.jsonl", *exchanges, **upstream), **settings))


def post(app: TestClient, asked: Request) -> Any:
    return app.post(asked.path, content=asked.body, headers={"content-type": "application/json"})


async def messages(app: TestClient, asked: Request) -> list[dict[str, Any]]:
    """What the app sends, message by message."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": asked.body}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": asked.method, "path": asked.path, "query_string": b"", "headers": []}
    await app.app(scope, receive, send)  # type: ignore[arg-type]
    return sent


async def test_events_have_their_recorded_boundaries(tmp_path: Path) -> None:
    start, *bodies = await messages(client(tmp_path, stream(ASKED, *EVENTS, step=5.0)), ASKED)
    assert start["status"] == 200
    assert dict(start["headers"]) == {b"content-type": b"text/event-stream"}
    assert [body["body"] for body in bodies] == [*EVENTS, b""]


@pytest.mark.parametrize(
    ("pace", "step", "seconds"),
    [("instant", 50, 0), (0, 50, 0), ("recorded", 0.2, 0.4), (0.5, 0.2, 0.2), ("2", 0.2, 0.8), (0.001, 50, 0.1)],
)
def test_pace(pace: Any, step: float, seconds: float, tmp_path: Path) -> None:
    """Three events, `step` seconds apart."""
    app = client(tmp_path, stream(ASKED, b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n", step=step), cassette_pace=pace)
    started = time.perf_counter()
    assert post(app, ASKED).content == b"data: 1\n\ndata: 2\n\ndata: 3\n\n"
    assert seconds <= time.perf_counter() - started < seconds + 20


def test_a_miss_is_a_404_that_names_the_nearest_recording(tmp_path: Path) -> None:
    app = client(tmp_path, full(request(prompt="x", n=1), {}))
    reply = post(app, request(prompt="y", n=1))
    assert reply.status_code == 404
    assert reply.json()["error"] == {
        "message": 'No recording answers POST /v1/completions. The nearest is request 1 of the cassette: prompt was "x", '
        f'now "y". ({tmp_path / "c.jsonl"}; --record-mode new_episodes records it; --cassette-on-miss script lets the '
        "script answer)",
        "type": "UnrecordedError",
        "param": None,
        "code": 404,
    }


def test_repeats_and_reset(tmp_path: Path) -> None:
    asked = request(prompt="x")
    app = client(tmp_path, full(asked, 1), full(asked, 2), cassette_repeat="error")
    assert [post(app, asked).status_code for _ in range(3)] == [200, 200, 404]
    app.app.state.server.reset()  # type: ignore[attr-defined]
    assert post(app, asked).json() == 1


def test_what_the_server_says_of_itself_is_its_own(tmp_path: Path) -> None:
    health = Exchange(Request("GET", "/health"), full(request(), {"recorded": True}).reply)
    app = client(tmp_path, health)
    assert (app.get("/health").status_code, app.get("/health").content) == (200, b"")
    assert "# HELP" in app.get("/metrics").text


def test_models_and_version_are_the_recorded_servers(tmp_path: Path) -> None:
    recorded = {"version": {"version": "9.9"}, "models": {"object": "list", "data": [{"id": "llama"}]}}
    app = client(tmp_path, recorded=recorded)
    assert app.get("/version").json() == recorded["version"]
    assert app.get("/v1/models").json() == recorded["models"]


def test_an_api_key_guards_a_cassette_too(tmp_path: Path) -> None:
    asked = request(prompt="x")
    app = client(tmp_path, full(asked, {}), api_key="secret")
    assert post(app, asked).status_code == 401
    assert app.post(asked.path, content=asked.body, headers={"authorization": "Bearer secret"}).status_code == 200


def test_settings_that_do_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="need a --cassette"):
        create_app(record_mode="all", upstream="http://127.0.0.1:1")
    with pytest.raises(SettingsError, match="--upstream is missing"):
        create_app(cassette=cassette(tmp_path / "c.jsonl"), cassette_on_miss="upstream")


# Conversion -----------------------------------------------------------------------------------------------------------

COMPLETION = {
    "id": "cmpl-1",
    "object": "text_completion",
    "choices": [{"index": 0, "text": "ab", "logprobs": {"tokens": ["a", "b"]}, "finish_reason": "stop"}],
    "usage": {"total_tokens": 3},
}


def chunks(*parts: dict[str, Any], kind: str = "text_completion", **last: Any) -> Sequence[bytes]:
    events = [{"id": "cmpl-1", "object": kind, "choices": [part]} for part in parts]
    events += [{"id": "cmpl-1", "object": kind, "choices": [], **last}] if last else []
    return [*(b"data: " + compact(event) + b"\n\n" for event in events), b"data: [DONE]\n\n"]


PARTS = (
    {"index": 0, "text": "a", "logprobs": {"tokens": ["a"]}, "finish_reason": None},
    {"index": 0, "text": "b", "logprobs": {"tokens": ["b"]}, "finish_reason": "stop"},
)


def test_conversion_has_to_be_asked_for(tmp_path: Path) -> None:
    assert post(client(tmp_path, full(request(prompt="x"), COMPLETION)), ASKED).status_code == 404


def test_a_full_reply_from_a_stream(tmp_path: Path) -> None:
    asked = request(prompt="x", stream=True, stream_options={"include_usage": True})
    app = client(tmp_path, stream(asked, *chunks(*PARTS, usage={"total_tokens": 3})), cassette_convert=True)
    reply = post(app, request(prompt="x"))
    assert reply.json() == COMPLETION
    assert (reply.headers["content-type"], reply.headers["x-stub-converted"]) == ("application/json", "stream")
    assert "x-stub-converted" not in post(app, asked).headers


def test_each_conversion_is_its_own(tmp_path: Path) -> None:
    """None of them is taken for another one."""
    prompts = [str(number) for number in range(20)]
    parts = [{**PARTS[1], "text": prompt} for prompt in prompts]
    recorded = [stream(request(prompt=part["text"], stream=True), *chunks(part)) for part in parts]
    app = client(tmp_path, *recorded, cassette_convert=True)
    replies = [post(app, request(prompt=prompt)).json() for prompt in prompts * 2]
    assert [reply["choices"][0]["text"] for reply in replies] == prompts * 2


def test_usage_that_was_not_recorded_is_null(tmp_path: Path) -> None:
    app = client(tmp_path, stream(ASKED, *chunks(*PARTS)), cassette_convert=True)
    assert post(app, request(prompt="x")).json() == {**COMPLETION, "usage": None}


def test_a_stream_from_a_full_reply(tmp_path: Path) -> None:
    app = client(tmp_path, full(request(prompt="x"), COMPLETION), cassette_convert=True)
    asked = request(prompt="x", stream=True, stream_options={"include_usage": True})
    reply = post(app, asked)
    assert reply.headers["x-stub-converted"] == "full"
    one, usage, done, rest = reply.text.split("\n\n")
    head = {"id": "cmpl-1", "object": "text_completion"}
    assert json.loads(one.removeprefix("data: ")) == {**head, "choices": COMPLETION["choices"]}
    assert json.loads(usage.removeprefix("data: ")) == {**head, "choices": [], "usage": {"total_tokens": 3}}
    assert (done, rest) == ("data: [DONE]", "")
    assert len(post(app, ASKED).text.split("\n\n")) == 3  # without usage


def test_a_chat_in_both_directions(tmp_path: Path) -> None:
    """Content and the arguments of two tool calls, in pieces."""
    first = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a'}}
    second = {"index": 1, "id": "call_2", "type": "function", "function": {"name": "g", "arguments": "{}"}}
    parts = (
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None},
        {"index": 0, "delta": {"content": "Hi"}, "finish_reason": None},
        {"index": 0, "delta": {"content": "!", "tool_calls": [first]}, "finish_reason": None},
        {"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": '":1}'}}]}, "finish_reason": None},
        {"index": 0, "delta": {"tool_calls": [second]}, "finish_reason": "tool_calls"},
    )
    asked = request("/v1/chat/completions", messages=[], stream=True)
    app = client(tmp_path, stream(asked, *chunks(*parts, kind="chat.completion.chunk")), cassette_convert=True)
    plain = request("/v1/chat/completions", messages=[])
    reply = post(app, plain).json()
    calls = [
        {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
        {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]
    assert reply["object"] == "chat.completion"
    [choice] = reply["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hi!", "tool_calls": calls}
    assert choice["finish_reason"] == "tool_calls"

    app = client(tmp_path, full(plain, reply), cassette_convert=True)
    event = json.loads(post(app, asked).text.split("\n\n")[0].removeprefix("data: "))
    assert event["object"] == "chat.completion.chunk"
    [part] = event["choices"]
    assert part["delta"]["tool_calls"] == [{"index": index, **call} for index, call in enumerate(calls)]
