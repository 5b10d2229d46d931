"""Recordings of other tools become cassettes that play."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
import yaml
from exchanges import cassette, full, request
from servers import FIXTURES
from starlette.testclient import TestClient

from stubserver.app import create_app
from stubserver.cli import main
from stubserver.playback.cassette import read_cassette
from stubserver.playback.importers import import_recording

URL = "https://api.example.com/v1/completions?api_key=sk-0123456789abcdefghij"
BODY = '{"prompt": "x"}'
REPLY = '{"text":"y"}'
EVENTS = 'data: {"a":1}\n\ndata: [DONE]\n\n'


def convert(tmp_path: Path, name: str, content: str) -> Path:
    source, output = tmp_path / name, tmp_path / "c.jsonl"
    source.write_text(content, encoding="utf-8")
    assert main(["cassette", "convert", str(source), "--output", str(output)]) == 0
    assert b"sk-0123456789" not in output.read_bytes()
    return output


def play(path: Path, body: str, query: str = "?api_key=other") -> Any:
    app = TestClient(create_app(cassette=str(path)))
    return app.post(f"/v1/completions{query}", content=body, headers={"content-type": "application/json"})


def vcr(body: Any, **headers: list[str]) -> dict[str, Any]:
    asked = {
        "method": "POST",
        "uri": URL,
        "body": BODY,
        "headers": {"Authorization": ["Bearer sk-0123456789abcdefghij"]},
    }
    answered = {
        "status": {"code": 200, "message": "OK"},
        "headers": {"Content-Type": ["application/json"], "Transfer-Encoding": ["chunked"], **headers},
        "body": {"string": body},
    }
    return {"interactions": [{"request": asked, "response": answered}], "version": 1}


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (REPLY, {}),
        (REPLY.encode(), {}),
        (gzip.compress(REPLY.encode()), {"Content-Encoding": ["gzip"]}),
        (REPLY, {"Content-Encoding": ["gzip"]}),  # decode_compressed_response leaves the header behind
    ],
    ids=["text", "bytes", "gzip", "decoded"],
)
def test_vcrpy(body: Any, headers: dict[str, list[str]], tmp_path: Path) -> None:
    path = convert(tmp_path, "vcr.yaml", yaml.safe_dump(vcr(body, **headers)))
    assert play(path, '{"prompt":"x"}').json() == {"text": "y"}
    assert read_cassette(path).upstream == {"url": "https://api.example.com"}


def test_vcrpy_as_json_and_with_a_stream(tmp_path: Path) -> None:
    recorded = vcr(EVENTS)
    recorded["interactions"][0]["response"]["headers"]["Content-Type"] = ["text/event-stream; charset=utf-8"]
    path = convert(tmp_path, "vcr.json", json.dumps(recorded, indent=1))
    assert play(path, BODY).text == EVENTS
    events = read_cassette(path).exchanges[0].reply.events
    assert events is not None
    assert len(events) == 2


def test_har(tmp_path: Path) -> None:
    def entry(content: dict[str, Any], prompt: str) -> dict[str, Any]:
        headers = [
            {"name": ":method", "value": "POST"},
            {"name": "Authorization", "value": "Bearer sk-0123456789abcdefghij"},
        ]
        asked = {"method": "POST", "url": URL, "headers": headers, "postData": {"text": json.dumps({"prompt": prompt})}}
        answered = {
            "status": 200,
            "headers": [{"name": "content-type", "value": "application/json"}],
            "content": content,
        }
        return {"request": asked, "response": answered, "timings": {"wait": 250}}

    entries = [entry({"text": REPLY}, "x"), entry({"text": b64encode(b"\xff").decode(), "encoding": "base64"}, "z")]
    path = convert(tmp_path, "session.har", json.dumps({"log": {"entries": entries}}))
    assert play(path, BODY).json() == {"text": "y"}
    assert play(path, '{"prompt": "z"}').content == b"\xff"
    assert read_cassette(path).exchanges[0].reply.seconds == 0.25


def test_every_recorded_exchange_of_vllm_plays(tmp_path: Path) -> None:
    """The JSONL that the conformance tests use: each exchange gives its status and its JSON again."""
    source = FIXTURES / "vllm-0.32.0" / "raw_logprobs.jsonl"
    header, *lines = map(json.loads, source.read_text(encoding="utf-8").splitlines())
    found = read_cassette(convert(tmp_path, "raw.jsonl", source.read_text(encoding="utf-8")))
    assert found.upstream == {"version": {"version": "0.32.0"}, "settings": header["server"]}
    assert len(found.exchanges) == len(lines)
    for line, exchange in zip(lines, found.exchanges, strict=True):
        recorded = line["response"]
        assert exchange.reply.status == recorded["status"]
        if "events" in recorded:
            events = [event.data.decode()[6:-2] for event in exchange.reply.events or ()]
            assert [event if event == "[DONE]" else json.loads(event) for event in events] == recorded["events"]
        elif "body" in recorded:
            assert json.loads(exchange.reply.body) == recorded["body"]


def test_a_cassette_is_a_recording_too(tmp_path: Path) -> None:
    path = Path(cassette(tmp_path / "own.jsonl", full(request(prompt="x"), {}), url="http://x"))
    assert import_recording(path).exchanges == read_cassette(path).exchanges


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a: 1\n", "is neither a vcrpy cassette, nor a HAR file, nor JSONL"),
        ("interactions:\n- request: {}\n  response: {}\n", "can't be read as a recording: 'method' is missing"),
        ("interactions: [!!python/object:os.system {}]\n", "can't be read as a recording: could not determine"),
        ("{", "can't be read as a recording"),
    ],
)
def test_what_is_no_recording(content: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "x.yaml"
    source.write_text(content)
    assert main(["cassette", "convert", str(source), "--output", str(tmp_path / "c")]) == 2
    assert said in capsys.readouterr().err
