"""The differential tester, without the real server: what it asks, what it keeps, what it says."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import run
from bodies import KINDS, ROUTES, make_request
from oracle import FIXTURE, make_model
from starlette.testclient import TestClient

from stubserver.app import create_app


def test_a_number_of_a_seed_is_always_the_same_request() -> None:
    series = [make_request(1, number) for number in range(300)]
    assert series == [make_request(1, number) for number in range(300)]
    assert series != [make_request(2, number) for number in range(300)]
    for each in series:
        json.dumps(each.request)


def test_all_routes_and_kinds_are_asked() -> None:
    series = [make_request(1, number) for number in range(3000)]
    assert {each.request["path"] for each in series} >= set(ROUTES)
    counts = Counter(each.kind for each in series)
    for kind, weight in KINDS.items():
        assert counts[kind] == pytest.approx(3000 * weight / 100, rel=0.3)


def test_the_model_is_the_table(tmp_path: Path) -> None:
    """By hand: embedding × head, for the norm of the one layer that adds nothing leaves a unit vector × √V as it is."""
    make_model(tmp_path)
    raw = (tmp_path / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]

    def tensor(name: str) -> np.ndarray:
        start, end = header[name]["data_offsets"]
        return np.frombuffer(data[start:end], "<f4").reshape(header[name]["shape"])

    table = np.load(FIXTURE / "logits.npz")["table"]
    logits = tensor("model.embed_tokens.weight").astype(np.float64) @ tensor("lm_head.weight").T
    assert np.abs(logits - table).max() < 1e-5
    assert all(not tensor(name).any() for name in header if "proj" in name)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """What a real server would have said to 60 requests, were it ours; one of them differs, one killed it."""
    setup = {**run.SETUPS["raw_logprobs"], "served_model_name": ["bigram"], "model_runner": "v1"}
    app = create_app(FIXTURE / "script.yaml", **setup, embeddings_endpoint=False, control="off")
    server = TestClient(app, raise_server_exceptions=False, follow_redirects=False)
    lines = []
    for number in range(0, 60, len(run.SETUPS)):
        asked = make_request(7, number).request
        raw = asked.get("raw", json.dumps(asked["body"]) if "body" in asked else None)
        headers = {"content-type": "application/json", **asked.get("headers", {})} if raw is not None else {}
        reply = server.request(asked["method"], asked["path"], content=raw, headers=headers or asked.get("headers"))
        said: dict[str, Any] = {"text": reply.text}
        if reply.headers.get("content-type", "").startswith("application/json") and reply.text:
            said = {"body": reply.json()}
        elif "event-stream" in reply.headers.get("content-type", ""):
            events = [each.removeprefix("data: ") for each in reply.text.split("\n\n") if each]
            said = {"events": [each if each == "[DONE]" else json.loads(each) for each in events]}
        status = reply.status_code if number else 418
        kind = reply.headers.get("content-type", "")
        lines.append(
            {"number": number, "asked": run.digest(asked), "response": {"status": status, "content_type": kind, **said}}
        )
    lines[1] = {"number": lines[1]["number"], "asked": lines[1]["asked"], "died": "ConnectionResetError"}
    (tmp_path / "seed7-raw_logprobs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def test_kept_replies_are_compared_without_a_server(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = kept / "table.md"
    arguments = ["--compare", "--seed", "7", "--count", "60", "--setups", "raw_logprobs"]
    assert run.main([*arguments, "--work", str(kept), "--table", str(table)]) == 0
    text = table.read_text(encoding="utf-8")
    assert text.startswith("14 exchanges of seed 7, in 1 set-ups.")
    assert "| all | 14 | 13 | 92.85 |" in text
    assert "status: recorded 418, ours" in capsys.readouterr().out


def test_an_installation_is_needed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments in ([], ["--oracle", str(tmp_path)]):
        with pytest.raises(SystemExit):
            run.main(arguments)
        assert "--oracle has to be an installation with bin/vllm in it" in capsys.readouterr().err
