"""The journal: requests and replies as they went, and what the engine knows of them."""

from __future__ import annotations

import asyncio
from math import exp, inf, log
from typing import Any

import httpx
import pytest

from stubserver.app import create_app
from stubserver.dialects.vllm.wire.codec import WIRE
from stubserver.headers import is_secret
from stubserver.journal import entry as entry_module
from stubserver.journal import journal as journal_module
from stubserver.journal.entry import StreamEvent
from stubserver.journal.journal import Journal
from stubserver.journal.middleware import JournalMiddleware
from stubserver.testing import Stub

LABELS = {" A": 2.0, " B": 1.0, " The": 5.0}
REST = -10.0


@pytest.fixture
def stub() -> Stub:
    stub = Stub({"rules": [{"name": "other", "when": {"prompt": "Other"}, "steps": []}]}, max_logprobs=5)
    stub.on(prompt="Answer:").logits(LABELS, rest=REST)
    return stub


def ask(
    stub: Stub, path: str = "/v1/completions", headers: dict[str, str] | None = None, **body: Any
) -> httpx.Response:
    async def post() -> httpx.Response:
        async with stub.async_client() as client:
            return await client.post(path, json=body, headers=headers)

    return asyncio.run(post())


def token_id(stub: Stub, text: str) -> int:
    return stub.app.state.server.served.models[0].tokenizer.one_token(text)


def test_request_and_full_reply(stub: Stub) -> None:
    reply = ask(stub, prompt="Answer:", max_tokens=1, headers={"X-Tenant": "a"})
    (entry,) = stub.requests
    assert (entry.number, entry.method, entry.path, entry.status) == (1, "POST", "/v1/completions", 200)
    assert entry.body == {"prompt": "Answer:", "max_tokens": 1}
    assert entry.headers["x-tenant"] == "a"
    assert entry.reply == reply.json()
    assert entry.events == []
    assert entry.seconds is not None
    assert entry.seconds > 0
    assert (entry.failure, entry.truncated) == (None, False)


def test_stream_has_events_with_times(stub: Stub) -> None:
    stub.on(prompt="Three").text(" A B The")
    reply = ask(stub, prompt="Three", max_tokens=3, stream=True)
    entry = stub.last
    assert entry.reply is None
    assert reply.text == "".join(f"data: {each}\n\n" for each in _raw_events(reply.text))
    *chunks, done = [event.data for event in entry.events]
    assert done == "[DONE]"
    assert [chunk["choices"][0]["text"] for chunk in chunks] == [" A", " B", " The"]
    times = [event.seconds for event in entry.events]
    assert times == sorted(times)
    assert times[-1] <= (entry.seconds or 0)


def _raw_events(text: str) -> list[str]:
    return [part.removeprefix("data: ") for part in text.split("\n\n")[:-1]]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_events_are_read_whatever_their_framing(newline: str, size: int) -> None:
    events = [": comment", 'data:{"a": "é"}', "data: [DONE]"]
    data = "".join(event + 2 * newline for event in events).encode()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for start in range(0, len(data), size):
            await send({"type": "http.response.body", "body": data[start : start + size], "more_body": True})
        await send({"type": "http.response.body"})

    (entry,) = _journal_of(app).entries()
    assert [event.data for event in entry.events] == [{"a": "é"}, "[DONE]"]
    assert all(isinstance(event, StreamEvent) for event in entry.events)


def _journal_of(app: Any, journal: Journal | None = None, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Journal:
    """The journal after a request to this app that sends no body."""
    journal = journal or Journal(10)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        pass

    scope = {"type": "http", "method": "GET", "path": "/x", "headers": headers}
    asyncio.run(JournalMiddleware(app, journal, WIRE)(scope, receive, send))
    return journal


def test_rule_and_why_the_others_did_not_match(stub: Stub) -> None:
    stub.on(prompt="Else", header={"x-tenant": "b"}).text(" B")
    ask(stub, prompt="Other", headers={"x-tenant": "a"})
    assert stub.last.rule == '"other" (rules[0])'
    assert stub.last.generations[0].passed_over == {
        "on(prompt='Answer:')": 'prompt differs at character 0: wanted "Answer:", got "Other"',
        "on(prompt='Else', header={'x-tenant': 'b'})": 'prompt differs at character 0: wanted "Else", got "Other"; '
        'header x-tenant differs at character 0: wanted "b", got "a"',
    }


def test_a_request_that_nothing_answers_is_explained_too(stub: Stub) -> None:
    ask(stub, prompt="Nothing")
    assert (stub.last.status, stub.last.rule) == (404, None)
    assert set(stub.last.generations[0].passed_over) == {"on(prompt='Answer:')", '"other" (rules[0])'}


def test_sampled_tokens_and_label_values(stub: Stub) -> None:
    a, b = token_id(stub, " A"), token_id(stub, " B")
    ask(stub, prompt="Answer:", max_tokens=1, temperature=0, allowed_token_ids=[a], logit_bias={str(a): 3, str(b): 1})
    entry = stub.last
    assert [(step.choice, step.position, step.token) for step in entry.steps] == [(0, 0, " A")]
    total = log(sum(map(exp, LABELS.values())) + (entry_vocab(stub) - 3) * exp(REST))
    assert entry.label(" A").raw_logit == 2.0
    assert entry.label(" A").raw_logprob == pytest.approx(2.0 - total, abs=1e-5)
    assert entry.label(" A").processed_logit == 5.0
    assert entry.label(" A").processed_logprob == 0.0
    assert entry.label(b).raw_logprob == pytest.approx(1.0 - total, abs=1e-5)
    assert entry.label(b).processed_logprob == -inf
    described = entry.describe()["generations"][0]["steps"][0]["labels"]
    assert [label["processed_logprob"] for label in described] == [0.0, None]


def entry_vocab(stub: Stub) -> int:
    return stub.app.state.server.served.models[0].vocab_size


def test_every_choice_has_its_steps(stub: Stub) -> None:
    stub.on(prompt="Two").text(" A B")
    ask(stub, prompt="Two", max_tokens=2, n=2)
    expected = [token_id(stub, " A"), token_id(stub, " B")]
    assert stub.last.generations[0].outputs == [expected, expected]
    assert [(step.choice, step.position) for step in stub.last.steps] == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_a_label_that_was_not_named_is_an_error_that_shows_those_that_were(stub: Stub) -> None:
    ask(stub, prompt="Answer:", max_tokens=1, logit_bias={str(token_id(stub, " A")): 1})
    with pytest.raises(LookupError, match=rf"doesn't name ' B'; .* are: ' A' \({token_id(stub, ' A')}\)"):
        stub.last.label(" B")
    with pytest.raises(LookupError, match="no token at position 1: 1 were sampled"):
        stub.last.label(" A", position=1)


SECRET = "sk-very-secret"


@pytest.mark.parametrize(
    "name", ["Authorization", "X-Api-Key", "api-key", "Cookie", "Proxy-Authorization", "x-goog-api-key", "X-Auth-Token"]
)
def test_secrets_never_reach_the_journal(name: str) -> None:
    assert is_secret(name.encode())
    stub = Stub({"rules": [{"when": {"header": {name: "other"}}, "steps": []}]})
    ask(stub, prompt="x", headers={name: SECRET})
    entry = stub.last
    assert name.lower() not in entry.headers
    assert entry.status == 404
    assert "differs (its value isn't shown)" in entry.reply["error"]["message"]
    assert SECRET not in repr(entry.describe())
    assert not any(SECRET in repr(getattr(entry, each, None)) for each in entry.__slots__)


def test_a_cookie_of_the_reply_is_left_out() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"set-cookie", SECRET.encode()), (b"x-a", b"b")]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body"})

    (entry,) = _journal_of(app).entries()
    assert entry.reply_headers == {"x-a": "b"}


def test_only_the_last_requests_are_kept() -> None:
    stub = Stub(journal_size=3)
    for number in range(5):
        ask(stub, prompt=f"prompt {number}", max_tokens=1)
    assert [entry.body["prompt"] for entry in stub.requests] == ["prompt 2", "prompt 3", "prompt 4"]
    assert [entry.number for entry in stub.requests] == [3, 4, 5]
    with pytest.raises(AssertionError, match=r"got 3, of 3 in all \(2 earlier ones are no longer in the journal\)"):
        stub.assert_requested(times=5)


def test_long_bodies_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_module, "MAX_BODY_BYTES", 50)
    stub = Stub()
    ask(stub, prompt="x" * 100, max_tokens=1)
    entry = stub.last
    assert entry.truncated
    assert len(entry.body) == len(entry.reply) == 50
    assert entry.generations[0].prompt == "x" * 50
    assert entry.generations[0].passed_over == {}


def test_the_oldest_rows_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Stub({"default": "random"})
    row_bytes = 4 * entry_vocab(stub)
    monkeypatch.setattr(journal_module, "MAX_ROW_BYTES", 2 * 2 * row_bytes)  # raw and processed of two requests
    for prompt in ("one", "two", "three"):
        ask(stub, prompt=prompt, max_tokens=1, logit_bias={"300": 1})
    one, two, three = stub.requests
    with pytest.raises(LookupError, match="had to make room"):
        one.label(300)
    assert [step.labels for step in one.steps] == [None]
    for entry in (two, three):
        assert entry.label(300).processed_logit == pytest.approx(entry.label(300).raw_logit + 1)


def test_what_ends_a_reply_is_noted() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("out of order")

    journal = Journal(10)
    with pytest.raises(RuntimeError):
        _journal_of(app, journal)
    (entry,) = journal.entries()
    assert (entry.failure, entry.status, entry.seconds) == ("RuntimeError: out of order", None, None)


def test_entries_are_freed_at_once() -> None:
    """No cycles: a journal that is full would otherwise keep the garbage collector busy."""
    import weakref

    stub = Stub(journal_size=1)
    ask(stub, prompt="one", max_tokens=1, logit_bias={"300": 1})
    oldest = weakref.ref(stub.last)
    ask(stub, prompt="two", max_tokens=1)
    assert oldest() is None


def test_off_by_default() -> None:
    app = create_app()
    assert app.state.server.journal is None
    assert not any(each.cls is JournalMiddleware for each in app.user_middleware)
