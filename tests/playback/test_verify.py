"""Drift: what a server answers differently today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from exchanges import cassette, compact, full, request, stream
from servers import always, reply, upstream

from stubserver.cli import main
from stubserver.dialects.vllm.wire.codec import WIRE
from stubserver.playback.exchange import Exchange
from stubserver.playback.verify import drift

RECORDED = {"id": "cmpl-1", "created": 7, "choices": [{"text": "x", "logprob": -1.5, "old": None}]}


@pytest.mark.parametrize(
    ("now", "lines"),
    [
        (RECORDED, []),
        ({**RECORDED, "id": "cmpl-2", "created": 8}, []),
        ({**RECORDED, "id": "other-2"}, ['id was "cmpl-1", now "other-2"']),
        ({**RECORDED, "created": "8"}, ['created was 7, now "8"']),
        ({**RECORDED, "new": 1}, ["new is new (1)"]),
        (
            {key: RECORDED[key] for key in ("id", "created")},
            ["choices has gone (it was " + json.dumps(RECORDED["choices"]) + ")"],
        ),
        (
            {**RECORDED, "choices": [{"text": "x", "logprob": -1.50005, "old": None}]},
            [],
        ),
        (
            {**RECORDED, "choices": [{"text": "y", "logprob": -1.6, "old": 0}]},
            [
                'choices[0].text was "x", now "y"',
                "choices[0].logprob was -1.5, now -1.6",
                "choices[0].old was null, now 0",
            ],
        ),
        ({**RECORDED, "choices": []}, ["choices had 1 items, now 0"]),
    ],
)
def test_drift(now: Any, lines: list[str]) -> None:
    assert list(drift(RECORDED, now, 1e-4, WIRE.fresh_fields)) == lines


def verify(path: str, url: str, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, list[str]]:
    status = main(["cassette", "verify", path, "--upstream", url, *flags])
    return status, capsys.readouterr().out.splitlines()


def verified(
    tmp_path: Path, exchange: Exchange, now: bytes, kind: str, capsys: Any, *flags: str
) -> tuple[int, list[str]]:
    path = cassette(tmp_path / "c.jsonl", exchange)
    with upstream(always(now, f"Content-Type: {kind}")) as url:
        return verify(path, url, capsys, *flags)


def test_a_reply_is_held_against_todays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exchange = full(request(prompt="x"), {"value": 1.0})
    json_type = "application/json"
    assert verified(tmp_path, exchange, b'{"value":1.0}', json_type, capsys) == (
        0,
        ["1 requests sent again, 0 replies differ"],
    )
    status, lines = verified(tmp_path, exchange, b'{"value":1.01}', json_type, capsys)
    assert (status, lines[0]) == (1, "1 POST /v1/completions: value was 1.0, now 1.01")
    assert verified(tmp_path, exchange, b'{"value":1.01}', json_type, capsys, "--tolerance", "0.1")[0] == 0


def test_events_are_compared_choice_by_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which choice comes first is chance."""
    events = [b"data: " + compact({"choices": [{"index": index}]}) + b"\n\n" for index in (0, 1)]
    exchange = stream(request(stream=True), *events, b"data: [DONE]\n\n")
    now = b"".join([*reversed(events), b"data: [DONE]\n\n"])
    assert verified(tmp_path, exchange, now, "text/event-stream", capsys)[0] == 0
    status, lines = verified(tmp_path, exchange, events[0] + b"data: [DONE]\n\n", "text/event-stream", capsys)
    assert status == 1
    assert lines[0].startswith("1 POST /v1/completions: choice 1 has gone")
    status, lines = verified(tmp_path, exchange, b"{}", "application/json", capsys)
    assert lines[0] == "1 POST /v1/completions: it was a stream, now it is none"


def test_the_key_is_given_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[bytes] = []

    def answer(received: bytes, connection: Any) -> None:
        asked.append(received)
        connection.sendall(reply(b"{}", "Content-Type: application/json"))

    path = cassette(tmp_path / "c.jsonl", full(request(prompt="x"), {}))
    with upstream(answer) as url:
        assert verify(path, url, capsys, "--api-key", "secret")[0] == 0
    assert b"authorization: Bearer secret\r\n" in asked[0]
    assert asked[0].endswith(b'{"prompt":"x"}')


def test_a_server_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = cassette(tmp_path / "c.jsonl", full(request(prompt="x"), {}))
    status, lines = verify(path, "http://127.0.0.1:1", capsys)
    assert status == 1
    assert lines[0].startswith("1 POST /v1/completions: Can't reach http://127.0.0.1:1")
