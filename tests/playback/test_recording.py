"""Recorded from another stub process, played back by a third: byte for byte, event for event, and real clients agree."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exchanges import compact
from servers import BIGRAM, stop, stub

from stubserver.cli import main

HEADERS = "Content-Type: application/json\r\nAuthorization: Bearer none\r\nAccept-Encoding: gzip\r\nConnection: close"
GREEDY = {"model": "bigram", "prompt": "Answer:", "temperature": 0}
CHAT = {"model": "bigram", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 4}
LABELS = [276, 327, 328, 329]

REQUESTS: dict[str, tuple[str, str, Any]] = {
    "models": ("GET", "/v1/models", None),
    "version": ("GET", "/version", None),
    "completion": ("POST", "/v1/completions", {**GREEDY, "max_tokens": 3, "logprobs": 3}),
    "labels": ("POST", "/v1/completions", {**GREEDY, "max_tokens": 1, "logprobs": 4, "allowed_token_ids": LABELS}),
    "echo": ("POST", "/v1/completions", {**GREEDY, "max_tokens": 1, "logprobs": 1, "echo": True}),
    "drawn": ("POST", "/v1/completions", {**GREEDY, "temperature": 1, "max_tokens": 9, "n": 3}),
    "stream": ("POST", "/v1/completions", {**GREEDY, "max_tokens": 5, "logprobs": 2, "stream": True}),
    "chat": ("POST", "/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 3}),
    "chat stream": (
        "POST",
        "/v1/chat/completions",
        {**CHAT, "stream": True, "stream_options": {"include_usage": True}},
    ),
    "refused": ("POST", "/v1/completions", {**GREEDY, "logprobs": 21}),
    "unknown model": ("POST", "/v1/completions", {**GREEDY, "model": "nope"}),
    "unknown path": ("POST", "/v1/nowhere", {}),
    "wrong method": ("GET", "/v1/completions", None),
    "tokenize": ("POST", "/tokenize", {"model": "bigram", "prompt": "The sky is"}),
}


def ask(url: str, method: str, path: str, body: Any) -> tuple[str, dict[str, str], list[bytes]]:
    """(status line, headers, the body in the pieces of its transfer encoding), as they are on the wire."""
    host, port = url.removeprefix("http://").split(":")
    content = b"" if body is None else compact(body)
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(content)}\r\n{HEADERS}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(head.encode() + content)
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    head_received, _, rest = received.partition(b"\r\n\r\n")
    status, *lines = head_received.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    del headers["date"]
    return status, headers, list(_chunks(rest)) if "transfer-encoding" in headers else [rest]


def _chunks(data: bytes) -> Iterator[bytes]:
    while data:
        size, _, data = data.partition(b"\r\n")
        yield data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]


Replies = dict[str, tuple[str, dict[str, str], list[bytes]]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Replies, str]]:
    """(cassette, what the recorder's client got, URL of the upstream, which goes on running)."""
    path = str(tmp_path_factory.mktemp("cassettes") / "c.jsonl")
    with stub("serve", str(BIGRAM / "script.yaml"), "--logprobs-mode", "raw_logprobs") as (_, upstream):
        with stub("record", "--upstream", f"{upstream}/v1", "--cassette", path) as (process, proxy):
            replies = {name: ask(proxy, *request) for name, request in REQUESTS.items()}
            for client in (_sdk_answers, _lm_eval_answers):
                client(proxy)
            stop(process)
        yield path, replies, upstream


@pytest.fixture(scope="module")
def replay(recorded: tuple[str, Replies, str]) -> Iterator[str]:
    """The URL of a server that has nothing but the cassette."""
    with stub("serve", "--cassette", recorded[0]) as (_, url):
        yield url


@pytest.mark.parametrize("name", REQUESTS)
def test_played_as_recorded(name: str, recorded: tuple[str, Replies, str], replay: str) -> None:
    status, headers, pieces = ask(replay, *REQUESTS[name])
    recorded_status, recorded_headers, recorded_pieces = recorded[1][name]
    assert (status, headers) == (recorded_status, recorded_headers)
    assert b"".join(pieces) == b"".join(recorded_pieces)
    if "stream" in name:
        # Each event is a piece of its own.
        assert [piece[:6] + piece[-2:] for piece in pieces] == [b"data: \n\n"] * (len(pieces) - 1) + [b""]
        assert len(pieces) > 5


def test_the_proxy_changes_nothing(recorded: tuple[str, Replies, str]) -> None:
    """Against the upstream itself: the errors, whose bytes don't vary from one request to the next."""
    _, replies, upstream = recorded
    for name in ("refused", "unknown model", "unknown path", "wrong method", "tokenize", "version"):
        assert ask(upstream, *REQUESTS[name]) == replies[name]


def test_the_upstream_has_not_drifted(recorded: tuple[str, Replies, str], capsys: pytest.CaptureFixture[str]) -> None:
    """All of it but the drawn tokens, whose request has no seed."""
    path, _, upstream = recorded
    main(["cassette", "verify", path, "--upstream", upstream])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines[:-1] if not line.startswith("6 POST ")] == []
    assert lines[-1].endswith(("0 replies differ", "1 replies differ"))


# Real clients ---------------------------------------------------------------------------------------------------------


def _sdk_answers(url: str) -> list[Any]:
    """What the openai SDK makes of a few requests: replies, a stream, and an error."""
    openai = pytest.importorskip("openai", reason="pip install 'llm-stubserver[clients]'")
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="sk-not-a-real-key-0123456789", max_retries=0, timeout=30)
    found: list[Any] = [client.models.list().data[0].id]
    found.append(client.completions.create(**GREEDY, max_tokens=3, logprobs=3).model_dump())
    found += [event.model_dump() for event in client.completions.create(**GREEDY, max_tokens=3, stream=True)]
    found.append(client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2).model_dump())
    found += [event.model_dump() for event in client.chat.completions.create(**CHAT, stream=True)]
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**GREEDY, max_tokens=1, logprobs=21)
    found.append(caught.value.body)
    return found


def _lm_eval_answers(url: str) -> list[tuple[float, bool]]:
    """loglikelihood of two continuations, as lm-evaluation-harness finds them."""
    pytest.importorskip("lm_eval", reason="pip install 'llm-stubserver[clients]'")
    pytest.importorskip("transformers", reason="pip install 'llm-stubserver[clients]'")
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    model = LocalCompletionsAPI(
        base_url=f"{url}/v1/completions",
        model="bigram",
        tokenizer=str(BIGRAM),
        tokenizer_backend="huggingface",
        max_length=512,
    )
    texts = (" blue", "may")
    requests = [Instance("loglikelihood", {}, ("The sky is", text), number) for number, text in enumerate(texts)]
    answers: list[tuple[float, bool]] = model.loglikelihood(requests)
    return answers


def test_the_openai_sdk_cannot_tell(recorded: tuple[str, Replies, str], replay: str) -> None:
    played, live = _sdk_answers(replay), _sdk_answers(recorded[2])
    assert len(played) == len(live)
    for ours, theirs in zip(played, live, strict=True):
        free = ("id", "created", "system_fingerprint")
        if isinstance(ours, dict):
            assert {key: ours[key] for key in ours if key not in free} == {
                key: theirs[key] for key in theirs if key not in free
            }
        else:
            assert ours == theirs


def test_lm_eval_cannot_tell(recorded: tuple[str, Replies, str], replay: str) -> None:
    """Its values are those of tests/clients/test_lm_eval.py."""
    played = _lm_eval_answers(replay)
    assert played == _lm_eval_answers(recorded[2])
    assert [value for value, _ in played] == pytest.approx([-12.1065, -1.1065], abs=5e-5)


def test_a_script_answers_the_misses(recorded: tuple[str, Replies, str], tmp_path: Path) -> None:
    with stub("serve", str(BIGRAM / "script.yaml"), "--cassette", recorded[0], "--cassette-on-miss", "script") as (
        _,
        url,
    ):
        assert ask(url, *REQUESTS["completion"])[2] == recorded[1]["completion"][2]
        status, _headers, [body] = ask(url, "POST", "/v1/completions", {**GREEDY, "max_tokens": 2, "logprobs": 1})
    assert status == "HTTP/1.1 200 OK"
    assert b'"text":" nword71"' in body


def test_the_upstream_answers_the_misses_unrecorded(recorded: tuple[str, Replies, str]) -> None:
    path, replies, upstream = recorded
    size = Path(path).stat().st_size
    with stub("serve", "--cassette", path, "--cassette-on-miss", "upstream", "--upstream", upstream) as (_, url):
        assert ask(url, *REQUESTS["completion"])[2] == replies["completion"][2]
        assert b'"text":" nword71"' in ask(url, "POST", "/v1/completions", {**GREEDY, "max_tokens": 2})[2][0]
    assert Path(path).stat().st_size == size
