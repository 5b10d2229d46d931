"""A second kind of server, in one file outside of the package: whatever stands around endpoints works on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import exp, log
from pathlib import Path
from typing import Any

import httpx
import pytest
from tally import TALLY

from stubserver.app import create_app
from stubserver.config.settings import resolve_settings
from stubserver.playback.player import RecordingApp, open_player
from stubserver.server import bind
from stubserver.testing import StubServer
from stubserver.testing.server import _ThreadServer

A, B = " A", " B"
ROW = {"logits": {A: 2.0, B: 1.0, " C": 0.5, " The": 5.0}, "rest": -20}
SCRIPT = {
    "rules": [{"name": "letters", "when": {"prompt": "Answer:"}, "steps": [ROW, {"logits": {B: 3.0}, "rest": 0}]}]
}
SUM = exp(2.0) + exp(1.0)


@pytest.fixture
def server() -> Iterator[StubServer]:
    with StubServer(SCRIPT, dialect=TALLY) as server:
        server.allow_faults_without_effect()
        yield server


def ask(server: StubServer | str, **fields: Any) -> httpx.Response:
    url = server if isinstance(server, str) else server.url
    return httpx.post(f"{url}/complete", json={"text": "Answer:", **fields}, timeout=30)


def ids(server: StubServer) -> list[int]:
    tokenizer = server.app.state.server.served.models[0].tokenizer
    return [tokenizer.one_token(text) for text in (A, B)]


def events(content: str) -> list[Any]:
    return [json.loads(event.removeprefix("data: ")) for event in content.split("\n\n") if event]


def test_its_values_are_those_of_the_engine(server: StubServer) -> None:
    reply = ask(server, best=2, only=ids(server)).json()
    assert reply["said"] == A
    (step,) = reply["steps"]
    assert step["best"] == [[A, pytest.approx(2 - log(SUM), abs=1e-6)], [B, pytest.approx(1 - log(SUM), abs=1e-6)]]


def test_its_streams_say_all_so_far_and_just_end(server: StubServer) -> None:
    content = ask(server, max=2, stream=True).text
    assert [event["said"] for event in events(content)] == [" The", " The B"]
    assert "DONE" not in content


@pytest.mark.parametrize(
    ("fields", "status", "why"),
    [
        ({"text": "Question:"}, 410, "No rule answers this request. The nearest is "),
        ({"max": 0}, 422, "The body isn't of the endpoint's schema"),
    ],
)
def test_its_errors_are_its_own(server: StubServer, fields: dict[str, Any], status: int, why: str) -> None:
    reply = ask(server, **fields)
    assert reply.status_code == status
    assert reply.json()["ok"] is False
    assert reply.json()["why"].startswith(why)


def test_what_fails_in_a_stream_is_its_last_event(server: StubServer) -> None:
    said = events(ask(server, max=5000, stream=True, text="Answer: " * 4000).text)
    assert [set(event) for event in said] == [{"ok", "why"}]


def test_there_is_nothing_of_vllm(server: StubServer) -> None:
    assert httpx.post(f"{server.url}/v1/completions", json={"prompt": "a"}).status_code == 404
    assert httpx.get(f"{server.url}/openapi.json").json()["paths"].keys() >= {"/complete", "/stub/reset"}
    assert httpx.get(f"{server.url}/stub/requests").status_code == 200


def test_the_journal_knows_its_steps_labels_and_events(server: StubServer) -> None:
    ask(server, best=2, only=ids(server), stream=True)
    entry = server.last
    assert entry.rule == '"letters" (rules[0])'
    assert [step.token for step in entry.steps] == [A]
    assert entry.label(A).processed_logprob == pytest.approx(2 - log(SUM), abs=1e-6)
    assert [event.data["said"] for event in entry.events] == [A]
    assert server.assert_requested(path="/complete", body={"best": 2}) == [entry]


@pytest.mark.parametrize("stream", [False, True])
def test_assertions_read_its_values(server: StubServer, stream: bool) -> None:
    ask(server, best=2, only=ids(server), stream=stream)
    server.assert_labels_returned([A, B])
    with pytest.raises(AssertionError, match=r'no value for " C"; the reply has " A" '):
        server.assert_labels_returned([" C"])
    ask(server, best=1, only=ids(server), stream=stream)
    with pytest.raises(AssertionError, match='no value for " B"'):
        server.assert_labels_returned([A, B])


def best(reply: httpx.Response) -> list[list[Any]]:
    documents = events(reply.text) if "event-stream" in reply.headers["content-type"] else [json.loads(reply.text)]
    return documents[0]["steps"][0]["best"]


@pytest.mark.parametrize("stream", [False, True])
def test_drop_label(server: StubServer, stream: bool) -> None:
    server.faults({"kind": "drop_label", "label": A})
    assert [token for token, _ in best(ask(server, best=2, only=ids(server), stream=stream))] == [B]
    server.faults({"kind": "drop_label", "label": ids(server)[0]})
    assert [token for token, _ in best(ask(server, best=2, only=ids(server), stream=stream))] == [B]


@pytest.mark.parametrize("stream", [False, True])
def test_nan(server: StubServer, stream: bool) -> None:
    server.faults({"kind": "nan", "token": B})
    found = dict(best(ask(server, best=2, only=ids(server), stream=stream)))
    assert found[A] == pytest.approx(2 - log(SUM), abs=1e-6)
    assert found[B] != found[B]


def test_close(server: StubServer) -> None:
    server.faults({"kind": "close", "after_events": 1})
    with httpx.stream("POST", f"{server.url}/complete", json={"text": "Answer:", "max": 2, "stream": True}) as reply:
        pieces = reply.iter_text()
        assert events(next(pieces))[0]["said"] == " The"
        with pytest.raises(httpx.RemoteProtocolError):
            next(pieces)


def test_an_error_inside_is_its_own(server: StubServer) -> None:
    server.faults({"kind": "error_event", "message": "broken", "after_events": 1})
    assert events(ask(server, max=2, stream=True).text)[1] == {"ok": False, "why": "broken"}


def test_no_done_finds_nothing_to_change_and_says_so(server: StubServer) -> None:
    server.faults({"kind": "no_done"})
    ask(server, max=2, stream=True)
    (effect,) = server.last.describe()["faults"]
    assert (effect["fault"], effect["changed"]) == ({"kind": "no_done"}, False)


def test_explain(server: StubServer) -> None:
    found = server.explain({"text": "Answer:", "only": ids(server)}, top=2)
    assert (found["endpoint"], found["prompts"][0]["rule"]) == ("/complete", '"letters" (rules[0])')
    assert [each["token"] for each in found["prompts"][0]["raw"]] == [" The", A]
    assert [each["token"] for each in found["prompts"][0]["processed"]] == [A, B]


@pytest.mark.parametrize("stream", [False, True])
def test_recording_and_playback(server: StubServer, tmp_path: Path, stream: bool) -> None:
    path = tmp_path / "tally.jsonl"
    flags = {"upstream": server.url, "cassette": str(path), "record_mode": "once"}
    player = open_player(resolve_settings(flags, {}, {}), TALLY.wire)
    assert player is not None
    recorder = _ThreadServer(RecordingApp(player), bind("127.0.0.1", 0))
    recorder.start()
    said = ask(recorder.url, best=2, max=2, stream=stream)
    recorder.stop()
    player.close()
    with StubServer(dialect=TALLY, cassette=str(path)) as played:
        again = ask(played, best=2, max=2, stream=stream)
        missed = ask(played, best=3, max=2, stream=stream)
        entry = played.requests[0]
        assert [event.data for event in entry.events] == (events(said.text) if stream else [])
    assert (again.status_code, again.content) == (said.status_code, said.content)
    assert (missed.status_code, missed.json()["ok"]) == (410, False)
    assert "best was 2, now 3" in missed.json()["why"]


def test_the_package_does_not_know_of_it() -> None:
    assert create_app(SCRIPT).state.server.dialect.name == "vllm"
