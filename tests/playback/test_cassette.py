"""The file: what survives a kill, a full disk and a second recorder, and what is refused."""

from __future__ import annotations

import json
import re
import resource
import signal
import time
from pathlib import Path

import httpx
import pytest
from exchanges import cassette, compact, full, request, stream
from servers import BIGRAM, always, recorder, reply, stop, stub, upstream

from stubserver.cli import main
from stubserver.playback.cassette import CassetteWriter, make_header, read_cassette
from stubserver.playback.errors import CassetteError
from stubserver.testing import StubServer

ONE, TWO, THREE = (full(request(prompt=prompt), {"text": prompt}) for prompt in ("one", "two", "three"))
JSON_HEADER = "Content-Type: application/json"


def ask(url: str, prompt: str) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", json={"prompt": prompt}, timeout=30)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    events = stream(request(prompt="s", stream=True), b"data: 1\n\n", b"data: [DONE]\n\n", step=0.5)
    path = Path(cassette(tmp_path / "c.jsonl", ONE, events, url="http://there"))
    found = read_cassette(path)
    assert (found.header, found.exchanges) == ({"cassette": 1, "upstream": {"url": "http://there"}}, (ONE, events))
    with path.open(encoding="utf-8") as lines:
        assert [list(json.loads(line)) for line in lines] == [["cassette", "upstream"], *[["request", "reply"]] * 2]


def test_a_truncated_last_line_costs_only_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(cassette(tmp_path / "c.jsonl", ONE, TWO, THREE))
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    found = read_cassette(path)
    assert found.exchanges == (ONE, TWO)
    assert main(["cassette", "check", str(path)]) == 1
    assert f"the last line isn't whole ({found.unfinished} bytes)" in capsys.readouterr().out
    writer = CassetteWriter(path)
    writer.append(THREE)
    writer.close()
    assert path.read_bytes() == whole


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = Path(cassette(tmp_path / "c.jsonl", ONE, TWO))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b'{"request": {"method": "GET"}}\n' + lines[2])
    with pytest.raises(CassetteError, match=r"c\.jsonl:2: this is no exchange: 'path' is missing"):
        read_cassette(path)
    path.write_bytes(lines[0] + b"{\n" + lines[2])
    with pytest.raises(CassetteError, match=r"c\.jsonl:2: this is no exchange: Expecting"):
        read_cassette(path)


def test_a_newer_version_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"cassette": 2, "upstream": {}}\n{"new": "things"}\n')
    assert main(["serve", "--cassette", str(path), "--port", "0"]) == 2
    message = "c.jsonl:1: the cassette is of version 2, and this stubserver reads up to 1: pip install --upgrade"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory; `stubserver record` makes a cassette"),
        ("interactions: []\n", "this is no cassette: its first line has to be like"),
        ("[]\n", "`stubserver cassette convert` reads vcrpy, HAR and JSONL recordings"),
        ('{"cassette": true}\n', "this is no cassette"),
    ],
)
def test_what_is_no_cassette(
    content: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.jsonl"
    if content is not None:
        path.write_text(content)
    assert main(["serve", "--cassette", str(path), "--port", "0"]) == 2
    assert said in capsys.readouterr().err


def test_a_second_writer_is_kept_off(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    first = CassetteWriter(path)
    with pytest.raises(CassetteError, match="another process is recording to this cassette"):
        CassetteWriter(path)
    first.write_header(make_header({}))
    first.close()
    CassetteWriter(path).close()
    assert path.exists()


def test_a_writer_that_wrote_nothing_leaves_nothing(tmp_path: Path) -> None:
    CassetteWriter(tmp_path / "c.jsonl").close()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_cassette_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no newline at the end")
    assert main(["record", "--upstream", "http://127.0.0.1:1", "--cassette", str(path), "--port", "0"]) == 2
    assert "notes.txt:1: this is no cassette" in capsys.readouterr().err
    assert path.read_text() == "no newline at the end"


def test_a_header_that_was_cut_off_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"cassette": 1, "upst')
    with upstream(always(b"{}", JSON_HEADER)) as url, recorder(url, path) as (proxy, _):
        ask(proxy, "one")
    assert len(read_cassette(path).exchanges) == 1


def test_a_cassette_may_be_written_over_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.touch()
    assert len(read_cassette(Path(cassette(path, ONE))).exchanges) == 1


def test_two_recorders_on_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--upstream", "http://127.0.0.1:1", "--cassette", str(tmp_path / "c.jsonl")]
    with stub("record", *flags) as (process, _):
        assert main(["record", *flags, "--port", "0"]) == 2
        assert "c.jsonl: another process is recording to this cassette" in capsys.readouterr().err
        stop(process)
    assert list(tmp_path.iterdir()) == []


def test_kill_in_the_middle_of_recording(tmp_path: Path) -> None:
    """The exchange in flight is lost, those before it aren't, and the next recorder goes on."""
    path = tmp_path / "c.jsonl"

    def answer(received: bytes, connection: object) -> None:
        if b"slow" in received:
            connection.sendall(reply(b"{}" * 1000, JSON_HEADER)[:500])  # type: ignore[attr-defined]
            time.sleep(30)
        connection.sendall(reply(b"{}", JSON_HEADER))  # type: ignore[attr-defined]

    with upstream(answer) as url:
        with stub("record", "--upstream", url, "--cassette", str(path)) as (process, proxy):
            for prompt in ("one", "two"):
                ask(proxy, prompt)
            with httpx.stream("POST", f"{proxy}/v1/completions", json={"prompt": "slow"}) as response:
                assert response.status_code == 200
                process.send_signal(signal.SIGKILL)
                process.wait(timeout=10)
        assert [each.request.body for each in read_cassette(path).exchanges] == [
            b'{"prompt":"one"}',
            b'{"prompt":"two"}',
        ]
        flags = ["--upstream", url, "--cassette", str(path), "--record-mode", "new_episodes"]
        with stub("record", *flags) as (process, proxy):
            ask(proxy, "one")  # played
            ask(proxy, "three")
            stop(process)
    assert [each.request.body[11:14] for each in read_cassette(path).exchanges] == [b"one", b"two", b"thr"]


def test_a_full_disk(tmp_path: Path) -> None:
    """The exchange that doesn't fit isn't recorded, and said so; the client gets its reply, the file stays whole."""
    path = tmp_path / "c.jsonl"
    limit = 5000

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    def answer(received: bytes, connection: object) -> None:
        size = int(received.rpartition(b'"prompt":"')[2].strip(b'"}') or 1)
        connection.sendall(reply(compact({"text": "x" * size}), JSON_HEADER))  # type: ignore[attr-defined]

    with (
        upstream(answer) as url,
        stub("record", "--upstream", url, "--cassette", str(path), preexec_fn=small_files) as (
            process,
            proxy,
        ),
    ):
        sizes = (1000, 9000, 1001)
        replies = [ask(proxy, str(size)).json()["text"] for size in sizes]
        said = stop(process)
    assert [len(text) for text in replies] == [*sizes]
    assert "NOT recorded: POST /v1/completions: File too large" in said
    assert re.findall(r"recorded (\d) exchange", said) == ["1", "2"]
    found = read_cassette(path)
    assert [len(exchange.reply.body) - len('{"text":""}') for exchange in found.exchanges] == [1000, 1001]
    assert found.unfinished == 0


def test_start_over_puts_the_old_recordings_aside(tmp_path: Path) -> None:
    path = Path(cassette(tmp_path / "c.jsonl", ONE))
    writer = CassetteWriter(path)
    writer.start_over()
    with pytest.raises(CassetteError, match="another process is recording"):
        CassetteWriter(path)
    writer.write_header(make_header({}))
    writer.append(TWO)
    writer.close()
    assert read_cassette(path).exchanges == (TWO,)
    assert read_cassette(tmp_path / "c.jsonl~").exchanges == (ONE,)


def test_record_modes(tmp_path: Path) -> None:
    """`once` leaves a cassette as it is, `new_episodes` adds, `all` asks for everything anew, `none` asks for nothing."""
    path = tmp_path / "c.jsonl"
    body = b'{"now":1}'
    with upstream(lambda received, connection: connection.sendall(reply(body, JSON_HEADER))) as url:

        def statuses(mode: str, *prompts: str) -> list[object]:
            with recorder(url, path, record_mode=mode) as (proxy, _):
                found = [ask(proxy, prompt).json() for prompt in prompts]
            return ["miss" if "error" in each else each["now"] for each in found]

        assert statuses("once", "a", "a") == [1, 1]
        body = b'{"now":2}'
        assert statuses("once", "a", "b") == [1, "miss"]
        assert statuses("new_episodes", "a", "b", "b") == [1, 2, 2]
        body = b'{"now":3}'
        assert statuses("none", "a", "b", "c") == [1, 2, "miss"]
        assert len(read_cassette(path).exchanges) == 4
        assert statuses("all", "a") == [3]
        assert [exchange.reply.body for exchange in read_cassette(path).exchanges] == [b'{"now":3}']


def test_a_mode_without_its_settings_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "c.jsonl")
    for arguments, said in (
        (["record", "--upstream", "http://127.0.0.1:1"], "--cassette is missing"),
        (["record", "--cassette", path], "--upstream is missing"),
        (["record", "--cassette", path, "--upstream", "127.0.0.1:8000"], "--upstream: has to be a URL like"),
        (["serve", "--record-mode", "all"], "--record-mode and --cassette-on-miss need a --cassette"),
        (["serve", "--cassette", path, "--cassette-pace", "slow"], "--cassette-pace: Input should be a valid number"),
    ):
        assert main([*arguments, "--port", "0"]) == 2
        assert said in capsys.readouterr().err


def test_show_and_stats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = stream(request("/v1/chat/completions", messages=[{"content": "Hi"}]), b"data: 1\n\n", b"data: [DONE]\n\n")
    path = cassette(tmp_path / "c.jsonl", ONE, events, url="http://there", version={"version": "0.32.0"})
    assert main(["cassette", "show", path]) == 0
    about, one, two = capsys.readouterr().out.splitlines()
    assert about == f"{path}: recorded from http://there, version 0.32.0"
    assert one == "1: POST /v1/completions → 200 in 0.000 s, 14 bytes: 'one'"
    assert two == "2: POST /v1/chat/completions → 200 in 0.000 s, 2 events, 23 bytes: 'Hi'"
    assert main(["cassette", "stats", path]) == 0
    said = capsys.readouterr().out
    assert f"2 exchanges, 1 of them streams; {Path(path).stat().st_size} bytes" in said
    assert "     1 POST /v1/completions → 200" in said
    assert main(["cassette", "show", path, "--full"]) == 0
    assert '   {"text":"one"}' in capsys.readouterr().out


def test_what_the_recorded_server_says_of_itself(tmp_path: Path) -> None:
    """url, version and models of the upstream stand in the first line; its health is passed on, not recorded."""
    path = tmp_path / "c.jsonl"
    with StubServer(BIGRAM / "script.yaml") as server, recorder(server.base_url, path) as (proxy, _):
        url = server.url
        assert ask(proxy, "Answer:").status_code == 200
        assert httpx.get(f"{proxy}/health").status_code == 200
    found = read_cassette(path)
    assert len(found.exchanges) == 1
    assert found.upstream["url"] == url
    assert found.upstream["version"] == {"version": "0.32.0"}
    [model] = found.upstream["models"]["data"]
    assert (model["id"], model["max_model_len"]) == ("bigram", 512)


def test_an_upstream_that_says_nothing_of_itself(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    with upstream(always(b"no", status="404 Not Found")) as url, recorder(url, path) as (proxy, _):
        assert ask(proxy, "x").text == "no"
    assert read_cassette(path).header == {"cassette": 1, "upstream": {"url": url}}
