"""docs/playback.md: its commands run in its order, and what it says comes out."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from servers import BIGRAM, stop, stub

from stubserver.cli import make_parser
from stubserver.config.settings import Settings, flag_name
from stubserver.playback.cassette import read_cassette
from stubserver.playback.names import cassette_for_test

DOCS = (Path(__file__).parents[2] / "docs" / "playback.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", DOCS, re.S) for line in block.splitlines()]
PYTHON, PYTEST = re.findall(r"```python\n(.*?)```", DOCS, re.S)


def run_all(upstream: str) -> Iterator[tuple[str, str]]:
    """(command, what it said), command by command in the working directory; a server runs until the next one."""
    with ExitStack() as running:
        process, url = None, ""
        for line in COMMANDS:
            here = line.replace("http://gpu-box:8000", upstream).replace("models/bigram512", str(BIGRAM))
            words = shlex.split(
                here.replace("$API_KEY", "sk-0123456789abcdefghij").replace("http://127.0.0.1:8000", url)
            )
            if words[:2] in (["stubserver", "record"], ["stubserver", "serve"]):
                if process is not None:
                    yield "stopped", stop(process)
                process, url = running.enter_context(stub(*words[1:]))
                continue
            if words[0] in ("stubserver", "pytest"):
                words = [sys.executable, "-m", *words]
            done = subprocess.run(words, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, (line, done)
            yield " ".join(line.split()[:3]), done.stdout


def test_the_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("test_labels.py").write_text(PYTEST)
    with stub("serve", str(BIGRAM / "script.yaml")) as (_, upstream):
        said = list(run_all(upstream))
        recorded, log, played = (text for _, text in said[:3])
        assert json.loads(recorded)["choices"][0]["text"] == " nword71"
        assert re.fullmatch(r"recorded 1 exchange, 1\.\d kB; last: POST /v1/completions 200 in \d\.\d\d s\n", log)
        assert played == recorded
        by_name = dict(said)
        assert "exchanges can be read" in by_name["stubserver cassette check"]
        assert "0 replies differ" in by_name["stubserver cassette verify"]
        assert "1 rules, 2 steps, 6 recorded values" in by_name["stubserver cassette to-script"]
        assert "x-stub-recorded: exact" in by_name["curl -i http://127.0.0.1:8000/v1/completions"]
        assert b"sk-0123" not in Path("answers.jsonl").read_bytes()

        assert "1 passed" in by_name["pytest --stub-record once"]
        assert "1 passed" in by_name["pytest"]
        assert len(read_cassette(Path("cassettes/test_labels/test_labels.jsonl")).exchanges) == 1
        exec(PYTHON.replace("http://gpu-box:8000", upstream), {})


def test_the_python_way(tmp_path: Path) -> None:
    """Recorded the first time, played the second, without the upstream."""
    import httpx

    from stubserver.testing import StubServer

    cassette = cassette_for_test(tmp_path / "test_labels.py", "test_one[a/b: c]")
    assert cassette == tmp_path / "cassettes" / "test_labels" / "test_one[a-b-c].jsonl"
    body = {"model": "bigram", "prompt": "Answer:", "max_tokens": 1, "temperature": 0}
    replies = []
    with stub("serve", str(BIGRAM / "script.yaml")) as (_, upstream):
        settings = {"cassette": str(cassette), "record_mode": "once", "upstream": upstream}
        with StubServer(**settings) as server:
            replies.append(httpx.post(f"{server.base_url}/completions", json=body).content)
    with StubServer(**settings) as server:
        replies.append(httpx.post(f"{server.base_url}/completions", json=body).content)
    assert replies[0] == replies[1]
    assert len(read_cassette(cassette).exchanges) == 1


def test_every_setting_of_playback_is_in_the_docs() -> None:
    names = [name for name in Settings.model_fields if name.startswith("cassette")]
    for name in [*names, "record_mode", "upstream", "unrecorded"]:
        assert f"{flag_name(name)}" in DOCS, name


def test_every_command_is_in_the_docs() -> None:
    [commands] = [action for action in make_parser()._actions if action.dest == "command"]
    assert isinstance(commands.choices, dict)
    [cassette] = [action for action in commands.choices["cassette"]._actions if action.dest == "cassette_command"]
    for name in cassette.choices or ():
        assert re.search(rf"stubserver\scassette {name} ", DOCS), name
