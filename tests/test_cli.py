"""The command: what it prints, which settings win, how it refuses and how it stops."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from contextlib import AbstractContextManager, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from processes import MODULE, started, url_in

from stubserver import __version__, server
from stubserver.cli import as_vllm_writes, main
from stubserver.config import vllm_flags
from stubserver.config.settings import Settings, flag_name
from stubserver.errors import SettingsError

BIGRAM = Path(__file__).parents[1] / "fixtures" / "bigram512" / "script.yaml"
CONSOLE_SCRIPT = (str(Path(sys.executable).with_name("stubserver")),)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("STUBSERVER_")]:
        monkeypatch.delenv(name)


def running(*arguments: str, command: tuple[str, ...] = MODULE) -> AbstractContextManager[tuple[Any, str]]:
    """(process, its first line) of `serve` on a free port."""
    return started("serve", *arguments, command=command)


def get(line: str, path: str) -> Any:
    """The JSON at this path of the server that printed this line."""
    with urlopen(url_in(line) + path, timeout=10) as reply:
        return json.load(reply)


def served_names(line: str) -> list[str]:
    return [model["id"] for model in get(line, "/v1/models")["data"]]


def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """What `serve` says on stderr as it exits with status 2 without having opened a port."""
    monkeypatch.setattr(server, "bind", lambda host, port: pytest.fail("the port was opened"))
    assert main(["serve", "--port", "0", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


@pytest.mark.parametrize("command", [MODULE, CONSOLE_SCRIPT], ids=["python -m stubserver", "stubserver"])
def test_ready_line_says_url_model_tokenizer_mode_and_script(command: tuple[str, ...]) -> None:
    with running(str(BIGRAM), "--logprobs-mode", "processed_logits", command=command) as (_, line):
        expected = (
            r"stubserver ready at http://127\.0\.0\.1:\d+: model bigram, "
            rf"tokenizer {re.escape(str(BIGRAM.parent))} \(512 tokens\), "
            rf"processed_logits, script {re.escape(str(BIGRAM))}\n"
        )
        assert re.fullmatch(expected, line)
        assert served_names(line) == ["bigram"]


def test_without_a_script_it_serves_the_demo() -> None:
    with running() as (_, line):
        assert re.search(r"model stub, tokenizer builtin \(4096 tokens\), raw_logprobs, script demo$", line)
        assert served_names(line) == ["stub"]


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_with_status_0_and_without_a_word(stop: signal.Signals) -> None:
    with running() as (process, _):
        process.send_signal(stop)
        assert process.communicate(timeout=20) == ("", "")
        assert process.returncode == 0


def test_flags_beat_environment_beats_file_beats_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text("served_model_name: from-file\nmax_model_len: 101\ndefault: random\n")
    monkeypatch.setenv("STUBSERVER_SERVED_MODEL_NAME", "from-environment,alias")
    monkeypatch.setenv("STUBSERVER_MAX_MODEL_LEN", "102")
    with running(str(script), "--served-model-name", "from-flag", "second") as (_, line):
        models = get(line, "/v1/models")["data"]
    assert [model["id"] for model in models] == ["from-flag", "second"]
    assert {model["max_model_len"] for model in models} == {102}


def test_environment_beats_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text("served_model_name: from-file\nmax_model_len: 101\ndefault: random\n")
    monkeypatch.setenv("STUBSERVER_SERVED_MODEL_NAME", "from-environment,alias")
    with running(str(script)) as (_, line):
        models = get(line, "/v1/models")["data"]
    assert [model["id"] for model in models] == ["from-environment", "alias"]
    assert {model["max_model_len"] for model in models} == {101}


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", "--help"])
    assert caught.value.code == 0
    # argparse breaks lines at spaces and after hyphens.
    text = "".join(capsys.readouterr().out.split())
    for name, field in Settings.model_fields.items():
        assert flag_name(name) in text
        assert field.description is not None
        assert field.description.replace(" ", "") in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert (caught.value.code, capsys.readouterr().out) == (0, f"stubserver {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--max-logprobs", "many"], "--max-logprobs: Input should be a valid integer"),
        (["--max-logprobs", "-2"], "--max-logprobs: Input should be greater than or equal to -1"),
        (["--port", "65536"], "--port: Input should be less than or equal to 65535"),
        (["--logprobs-mode", "cooked"], "--logprobs-mode: Input should be 'raw_logprobs'"),
        (["--override-generation-config", "{"], "--override-generation-config: "),
        (["--logits-processors", "nowhere:Class"], "--logits-processors: "),
        (["--tokenizer", "nowhere"], "tokenizer 'nowhere': no such file"),
        (["nowhere.yaml"], "nowhere.yaml: there is no such file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_flag_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    assert refused(capsys, monkeypatch, *arguments).startswith(f"stubserver: {said}")


def test_a_bad_environment_variable_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUBSERVER_MAX_MODEL_LEN", "long")
    said = refused(capsys, monkeypatch)
    assert said.startswith("stubserver: STUBSERVER_MAX_MODEL_LEN: Input should be a valid integer")
    assert "'long'" in said


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("max_logprob: 3\ndefault: random\n", "script.yaml:1: max_logprob"),
        ("default: random\nmax_logprobs: many\n", "script.yaml:2: max_logprobs"),
        ('rules:\n  - steps:\n      - logits: {" no such token": 1}\n', "script.yaml:3: rules[0].steps[0].logits"),
    ],
    ids=["unknown key", "bad value", "not a token"],
)
def test_a_bad_script_key_is_refused_with_its_place(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, place: str
) -> None:
    (tmp_path / "script.yaml").write_text(text)
    assert place in refused(capsys, monkeypatch, str(tmp_path / "script.yaml"))


@pytest.mark.parametrize("flag", ["--nonsense", "--max-logprob"])
def test_an_unknown_or_abbreviated_flag_is_refused(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", flag, "3", "--port", "99999"])
    assert caught.value.code == 2
    assert f"unrecognized arguments: {flag}\n" in capsys.readouterr().err


def test_a_port_in_use_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with closing(server.bind("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"stubserver: can't listen on 127.0.0.1:{port}: Address already in use")


def test_an_address_of_another_machine_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    # 192.0.2.0/24 is reserved for documentation: no machine has it.
    assert main(["serve", "--host", "192.0.2.1", "--port", "0"]) == 2
    assert "can't listen on 192.0.2.1:0" in capsys.readouterr().err


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_ipv6_addresses_are_bracketed_in_the_url() -> None:
    try:
        server.bind("::1", 0).close()
    except SettingsError as error:
        pytest.skip(str(error))
    with running("--host", "::1") as (_, line):
        assert re.match(r"stubserver ready at http://\[::1\]:\d+: ", line)
        assert served_names(line) == ["stub"]


@pytest.mark.parametrize("path", ["/v1/completions", "/health", "/nope"])
def test_websockets_are_refused(path: str) -> None:
    upgrade = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        "sec-websocket-version": "13",
    }
    with running() as (_, line):
        connection = HTTPConnection(url_in(line).removeprefix("http://"), timeout=10)
        connection.request("GET", path, headers=upgrade)
        reply = connection.getresponse()
        assert (reply.status, reply.read(), reply.headers["connection"]) == (403, b"", "close")


PIDS = """
import os
from pathlib import Path

Path("pids").open("a").write(f"{os.getpid()}\\n")


def row(context):
    return {f"token_id:{len(context.prompt_token_ids)}": 1.0}, 0.0
"""


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_workers_share_a_port_and_say_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stop: signal.Signals
) -> None:
    (tmp_path / "pids.py").write_text(PIDS)
    monkeypatch.chdir(tmp_path)
    with running("pids.py:row", "--workers", "2") as (process, line):
        own, *workers = map(int, Path("pids").read_text().split())
        assert own == process.pid
        assert len(set(workers)) == 2
        url = url_in(line)
        body = json.dumps({"prompt": [5, 6, 7], "max_tokens": 2, "temperature": 0, "logprobs": 1}).encode()
        request = Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
        replies = [json.load(urlopen(request, timeout=10)) for _ in range(20)]
        assert {json.dumps(reply["choices"]) for reply in replies} == {json.dumps(replies[0]["choices"])}
        with pytest.raises(HTTPError, match="404"):
            get(line, "/stub/requests")
        process.send_signal(stop)
        assert process.communicate(timeout=20) == ("", "")
        assert process.returncode == 0
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--journal"], "--journal (true)"),
        (["--control", "loopback"], "--control (loopback)"),
        (["--cassette", "c.jsonl", "--record-mode", "once", "--upstream", "http://x"], "--record-mode (once)"),
    ],
)
def test_what_is_for_one_process_is_refused_with_several(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flags: list[str], named: str
) -> None:
    assert f"{named} doesn't go with --workers 3" in refused(capsys, monkeypatch, "--workers", "3", *flags)


def flags_of_vllm() -> dict[str, dict[str, Any]]:
    return json.loads((Path(__file__).parent / "vllm_flags.json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def test_every_flag_of_vllm_is_a_setting_or_without_effect_or_refused() -> None:
    """Of `vllm serve` 0.32.0, with the kind of value that it takes there."""
    own = {flag_name(name) for name in Settings.model_fields} | {"--model"}
    groups = {"value": vllm_flags.VALUES, "switch": vllm_flags.SWITCHES, "list": vllm_flags.LISTS}
    theirs = flags_of_vllm()
    for kind, names in groups.items():
        assert {theirs[f"--{name}"]["kind"] for name in names} == {kind}
    known = [f"--{name}" for names in (*groups.values(), vllm_flags.REFUSED) for name in names]
    assert len(known) == len(set(known))
    assert own.isdisjoint(known)
    assert set(theirs) == set(known) | (own & set(theirs))


def test_a_line_of_vllm_serve_works_as_it_is() -> None:
    line = (
        "Qwen/Qwen3-0.6B --tensor-parallel-size 2 -pp=1 --dtype bfloat16 --gpu-memory-utilization=0.9 -O3 "
        "--enable-prefix-caching --no-async-scheduling --max_model_len 2048 --compilation-config.level 3 "
        '--override-generation-config.temperature 0.5 --limit-mm-per-prompt {} --allowed-origins ["*"]'
    )
    with running(*line.split()) as (process, said):
        card = get(said, "/v1/models")["data"][0]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    assert (card["id"], card["max_model_len"]) == ("Qwen/Qwen3-0.6B", 2048)
    (told,) = errors.splitlines()
    assert told.startswith("stubserver: accepted without effect: --")
    for flag in ("tensor-parallel-size", "pipeline-parallel-size", "dtype", "optimization-level", "compilation-config"):
        assert f"--{flag}" in told
    assert "generation-config.temperature" not in told


@pytest.mark.parametrize(
    ("arguments", "model", "script"),
    [
        ([str(BIGRAM)], "bigram", str(BIGRAM)),
        (["meta/llama", "--script", str(BIGRAM)], "meta/llama", str(BIGRAM)),
        (["--model", "meta/llama", str(BIGRAM)], "meta/llama", str(BIGRAM)),
        (["meta/llama:Q4_K"], "meta/llama:Q4_K", "demo"),
        (["meta/llama", "--served-model-name", "short"], "short", "demo"),
        ([str(BIGRAM.parent)], str(BIGRAM.parent), "demo"),
    ],
)
def test_a_model_is_a_name_and_a_script_is_a_script(arguments: list[str], model: str, script: str) -> None:
    with running(*arguments) as (_, line):
        assert served_names(line) == [model]
    assert line.endswith(f"script {script}\n")


@pytest.mark.parametrize("flag", ["--ssl-keyfile", "--lora-modules", "--uds"])
def test_a_flag_that_would_have_an_effect_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    assert refused(capsys, monkeypatch, flag, "x").startswith(f"stubserver: {flag}: vLLM has this flag")


@pytest.mark.parametrize(
    ("flag", "near"), [("--max-logprob", "--max-logprobs"), ("--tensor-paralel-size", "--tensor-parallel-size")]
)
def test_an_unknown_flag_says_what_it_may_have_meant(capsys: pytest.CaptureFixture[str], flag: str, near: str) -> None:
    with pytest.raises(SystemExit):
        main(["serve", flag, "3"])
    assert f"unrecognized arguments: {flag}\ndid you mean {near}?\n" in capsys.readouterr().err


def test_parts_of_an_object_become_one_flag() -> None:
    argv = ["serve", "--a_b.c", "1", "--a-b.d.e=x", "--f_g", "h_i", "--j_k=l_m"]
    assert as_vllm_writes(argv) == [
        *("serve", "--f-g", "h_i", "--j-k=l_m"),
        '--a-b={"c": 1, "d": {"e": "x"}}',
    ]
