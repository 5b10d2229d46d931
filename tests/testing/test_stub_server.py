"""StubServer and Stub: what a test says in Python, and what a real client gets over a real socket."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from math import exp, log
from typing import Any

import httpx
import pytest

from stubserver.errors import ConfigError, NotFoundError, ScriptError, SettingsError
from stubserver.testing import Stub, StubServer

COMPLETION = {"max_tokens": 1, "temperature": 0}
HTTP = httpx.Client()
"""One for all tests: a new one takes longer than a new server."""


@pytest.fixture(scope="module")
def server() -> Iterator[StubServer]:
    with StubServer() as server:
        yield server


@pytest.fixture
def stub(server: StubServer) -> StubServer:
    server.reset()
    return server


def complete(stub: StubServer, prompt: str, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    body = {**COMPLETION, "prompt": prompt, **fields}
    return HTTP.post(f"{stub.base_url}/completions", json=body, headers=headers).json()


def text(stub: StubServer, prompt: str, headers: dict[str, str] | None = None, **fields: Any) -> str:
    choice: str = complete(stub, prompt, headers, **fields)["choices"][0]["text"]
    return choice


# The server


def test_stop_closes_the_port() -> None:
    stub = StubServer().start()
    port = int(stub.url.rpartition(":")[2])
    with httpx.Client() as idle:
        assert idle.get(f"{stub.url}/health").status_code == 200
        stub.stop()  # also with a connection that is kept alive
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port)).close()
    assert not any(thread.name.endswith(f":{port}") for thread in threading.enumerate())


def test_it_can_be_started_again_and_started_twice() -> None:
    stub = StubServer()
    assert stub.start() is stub.start()
    stub.stop()
    stub.stop()
    with stub:
        assert text(stub, "Answer:", logit_bias={}) == " The"


def test_without_start_the_url_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"isn't running: use `with StubServer\(\) as stub:`"):
        _ = StubServer().url


def test_a_port_that_is_taken(server: StubServer) -> None:
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(SettingsError, match=f"can't listen on 127.0.0.1:{port}"):
        StubServer(port=port).start()


def test_stop_ends_requests_that_hang() -> None:
    with StubServer() as stub, ThreadPoolExecutor(1) as pool:
        stub.on(prompt="Hang").text(" A").fault("hang")
        asked = pool.submit(complete, stub, "Hang")
        while not stub.requests:
            time.sleep(0.001)
        started = time.perf_counter()
        stub.stop()
        assert time.perf_counter() - started < 1
        with pytest.raises(httpx.HTTPError):
            asked.result(timeout=5)


def test_it_is_quiet(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    with caplog.at_level(logging.INFO), StubServer() as stub:
        complete(stub, "Answer:")
    assert [record for record in caplog.records if record.name.startswith(("uvicorn", "stubserver"))] == []
    assert capfd.readouterr() == ("", "")


def test_addresses_key_and_model(server: StubServer) -> None:
    assert server.url.startswith("http://127.0.0.1:")
    assert server.base_url == f"{server.url}/v1"
    assert (server.model, server.api_key) == ("stub", "EMPTY")
    with StubServer(api_key=["one", "two"], served_model_name="mine") as stub:
        assert (stub.model, stub.api_key) == ("mine", "one")
        headers = {"authorization": f"Bearer {stub.api_key}"}
        assert HTTP.get(f"{stub.base_url}/models", headers=headers).json()["data"][0]["id"] == "mine"
        assert HTTP.get(f"{stub.base_url}/models").status_code == 401


def test_many_clients_at_once(stub: StubServer) -> None:
    stub.default("random")
    prompts = [f"prompt {number}" for number in range(50)]
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda prompt: text(stub, prompt), prompts))
    assert texts == [text(stub, prompt) for prompt in prompts]
    assert len(stub.assert_requested(path="/v1/completions")) == 100


def test_tokenizer_path_is_what_transformers_loads() -> None:
    transformers = pytest.importorskip("transformers")
    stub = Stub({"vocab": [" blue-green"], "default": "random"})
    tokenizer = transformers.AutoTokenizer.from_pretrained(stub.tokenizer_path)
    served = stub.app.state.server.served.models[0].tokenizer
    assert tokenizer.encode("Answer: blue-green") == served.encode("Answer: blue-green")
    assert len(tokenizer.encode(" blue-green")) == 1
    assert stub.tokenizer_path == stub.tokenizer_path


# What it says


def test_logits_are_those_that_were_said(stub: StubServer) -> None:
    stub.on(prompt="Answer:").logits({" A": 2.0, " B": 1.0, " The": 5.0}, rest=-10)
    logprobs = complete(stub, "Answer:", logprobs=2)["choices"][0]["logprobs"]["top_logprobs"][0]
    vocab_size = stub.app.state.server.served.models[0].vocab_size
    total = log(exp(2) + exp(1) + exp(5) + (vocab_size - 3) * exp(-10))
    assert logprobs == {" The": pytest.approx(5 - total, abs=1e-5), " A": pytest.approx(2 - total, abs=1e-5)}


def test_each_kind_of_step(stub: StubServer) -> None:
    stub.on(prompt="p").probs({" A": 0.75, " B": 0.25}).logprobs({" B": 0.0}).text(" The").tokens([" A", " B"])
    assert text(stub, "p", max_tokens=9) == " A B The A B"
    values = complete(stub, "p", max_tokens=2, logprobs=1)["choices"][0]["logprobs"]["token_logprobs"]
    assert values == [pytest.approx(log(0.75), abs=1e-6), 0.0]


@pytest.mark.parametrize(("then", "expected"), [("eos", " B"), ("repeat", " B B B")])
def test_then(stub: StubServer, then: Any, expected: str) -> None:
    stub.on(prompt="p").text(" B").then(then)
    assert text(stub, "p", max_tokens=3) == expected


def test_conditions(stub: StubServer) -> None:
    stub.on(prompt={"contains": "weather"}, header={"x-a": "1"}).text(" A")
    stub.on(prompt={"contains": "weather"}, field={"seed": 7}).text(" B")
    stub.on().text(" The")
    assert text(stub, "the weather", {"x-a": "1"}) == " A"
    assert text(stub, "the weather", seed=7) == " B"
    assert text(stub, "the weather") == " The"


def test_message() -> None:
    """As with vLLM, it takes the parsers and the request's tools."""
    parsers = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
    tools = [{"type": "function", "function": {"name": "get_weather"}}]
    body = {"messages": [{"role": "user", "content": "Paris?"}], "max_tokens": 200, "tools": tools}
    with StubServer(**parsers) as stub:
        stub.on(field={"messages[-1].content": "Paris?"}).message(
            content="Let me see.", reasoning="Hm.", tool_calls=[{"name": "get_weather", "arguments": {"city": "Paris"}}]
        )
        (choice,) = HTTP.post(f"{stub.base_url}/chat/completions", json=body).json()["choices"]
    assert (choice["message"]["content"], choice["message"]["reasoning"]) == ("Let me see.", "Hm.")
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("get_weather", '{"city": "Paris"}')


def test_fault_of_a_rule_and_of_the_server(stub: StubServer) -> None:
    stub.on(prompt="p").fault("status", status=429, times=1).text(" A")
    assert complete(stub, "p")["error"]["code"] == 429
    assert text(stub, "p") == " A"
    stub.faults({"kind": "status", "status": 503})
    assert complete(stub, "other")["error"]["code"] == 503
    stub.faults()
    assert "choices" in complete(stub, "other")


def test_rules_are_tried_in_order_before_those_of_the_script() -> None:
    script = {"rules": [{"when": {"prompt": "p"}, "steps": [{"text": " The"}]}], "default": {"logits": {}, "rest": 0}}
    with StubServer(script) as stub:
        assert text(stub, "p") == " The"
        stub.on(prompt="p", header={"x-a": "1"}).text(" A")
        stub.on(prompt="p").text(" B")
        assert (text(stub, "p", {"x-a": "1"}), text(stub, "p")) == (" A", " B")
        stub.reset()
        assert text(stub, "p") == " The"


def test_rules_go_before_a_table_and_a_function() -> None:
    for script in ("fixtures/bigram512/script.yaml", lambda context: ({" Yes": 9.0}, 0.0)):
        stub = StubServer(script, tokenizer="fixtures/bigram512")
        with stub:
            before = text(stub, "The sky is")
            stub.on(prompt="The sky is").text(" red")
            assert text(stub, "The sky is") == " red"
            assert text(stub, "The sky") != " red"
            stub.reset()
            assert text(stub, "The sky is") == before


def test_an_echoed_prompt_is_scored_by_added_rules_too(stub: StubServer) -> None:
    stub.on(prompt="Answer:").probs({" A": 0.75, " B": 0.25})
    logprobs = complete(stub, "Answer: A", echo=True, logprobs=0, max_tokens=0)["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"][-1] == pytest.approx(log(0.75), abs=1e-6)


def test_a_mistake_is_raised_where_it_is_made_and_leaves_the_rule_as_it_was(stub: StubServer) -> None:
    rule = stub.on(prompt="p").text(" A")
    with pytest.raises(ScriptError, match=r"on\(prompt='p'\): .*\" bleu\" is 3 tokens, not one: \" b\" \(301\)"):
        rule.logits({" bleu": 1.0}, rest=0)
    with pytest.raises(ScriptError, match="4095 tokens aren't listed"):
        rule.logits({" A": 1.0})
    with pytest.raises(ScriptError, match="unknown key; did you mean 'contains'"):
        stub.on(prompt={"contain": "p"}).text(" A")
    assert text(stub, "p", max_tokens=5) == " A"


def test_default(stub: StubServer) -> None:
    stub.default("error")
    assert complete(stub, "anything")["error"]["type"] == "UnscriptedError"
    stub.default({"logits": {" B": 1}, "rest": 0})
    assert text(stub, "anything") == " B"
    stub.on(prompt="p").text(" A")
    stub.default("random")
    assert text(stub, "p") == " A"
    with pytest.raises(ConfigError, match="has to be error, random, or a step"):
        stub.default("nothing")


def test_load(stub: StubServer) -> None:
    stub.on(prompt="p").text(" A")
    stub.load({"rules": [{"steps": [{"text": " B"}]}]})
    assert text(stub, "p") == " B"
    stub.on(prompt="q").text(" The")
    assert (text(stub, "p"), text(stub, "q")) == (" B", " The")
    stub.reset()
    assert text(stub, "Answer:") == " The"  # the demo's


def test_several_models() -> None:
    models = [{"served_model_name": "one"}, {"served_model_name": "two"}]
    with StubServer({"rules": [], "models": models}) as stub:
        stub.on(prompt="p").text(" A")
        stub.on(prompt="p", model="two").text(" B")
        assert [text(stub, "p", model=model) for model in ("one", "two")] == [" A", " B"]
        with pytest.raises(NotFoundError, match="There is no model 'three'; served are one, two"):
            stub.on(model="three")


def test_explain_needs_no_server(stub: StubServer) -> None:
    stub.on(prompt="p", header={"x-a": "1"}, name="mine").logits({" A": 2.0}, rest=0)
    (prompt,) = stub.explain({"prompt": "p"}, headers={"X-A": "1"}, top=1)["prompts"]
    assert (prompt["rule"], prompt["raw"][0]["token"], prompt["raw"][0]["logit"]) == ("mine", " A", 2.0)
    assert stub.requests == []


# What it was asked


def test_requests_and_last(stub: StubServer) -> None:
    with pytest.raises(LookupError, match="there was no request yet"):
        _ = stub.last
    stub.on(prompt="p").text(" A")
    complete(stub, "p")
    complete(stub, "q")
    assert [entry.body["prompt"] for entry in stub.requests] == ["p", "q"]
    assert (stub.requests[0].rule, stub.last.rule) == ("on(prompt='p')", None)


def test_assert_requested(stub: StubServer) -> None:
    complete(stub, "p", seed=1, stream_options=None, stop=["a", "b"])
    complete(stub, "q", seed=2)
    (entry,) = stub.assert_requested(times=1, path="/v1/completions", body={"seed": 1.0, "stop": ["a", "b"]})
    assert entry.body["prompt"] == "p"
    assert len(stub.assert_requested(body={"max_tokens": 1})) == 2
    stub.assert_requested(times=0, path="/v1/chat/completions")
    with pytest.raises(AssertionError) as failed:
        stub.assert_requested(times=2, body={"seed": 1})
    lines = str(failed.value).splitlines()
    assert lines[0] == 'expected requests: 2 with body {"seed": 1}; got 1, of 2 in all'
    assert lines[1].startswith('  <1: POST /v1/completions → 200> {"max_tokens": 1')
    with pytest.raises(AssertionError, match="expected requests: at least 1 with path /x; got 0, of 2 in all"):
        stub.assert_requested(path="/x")


def test_assert_logprobs_mode(stub: StubServer) -> None:
    complete(stub, "p", logprobs=1)
    stub.assert_logprobs_mode("raw_logprobs")
    with pytest.raises(AssertionError, match="expected processed_logprobs, but 'stub' reports raw_logprobs"):
        stub.assert_logprobs_mode("processed_logprobs")
    complete(stub, "p")
    with pytest.raises(AssertionError, match="the request asked for no logprobs"):
        stub.assert_logprobs_mode("raw_logprobs")
    HTTP.get(f"{stub.base_url}/models")
    with pytest.raises(AssertionError, match="a request that generates something; the last one was <3: GET"):
        stub.assert_logprobs_mode("raw_logprobs")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_token_ids", [False, True])
def test_assert_labels_returned(stub: StubServer, stream: bool, as_token_ids: bool) -> None:
    stub.on(prompt="p").logits({" A": 2.0, " B": 1.0, " The": 5.0}, rest=-10)
    a = stub.app.state.server.served.models[0].tokenizer.one_token(" A")
    complete_body = {**COMPLETION, "prompt": "p", "logprobs": 2, "stream": stream}
    HTTP.post(f"{stub.base_url}/completions", json={**complete_body, "return_tokens_as_token_ids": as_token_ids})
    stub.assert_labels_returned([" A", " The"])
    stub.assert_labels_returned([a])
    with pytest.raises(AssertionError) as failed:
        stub.assert_labels_returned([" A", " B", " Maybe"])
    assert str(failed.value).startswith('choice 0, position 0: no value for " B", " Maybe"; the reply has "')
    assert str(failed.value).endswith("(-3.067). It was asked for 2 logprobs, in mode raw_logprobs")
    with pytest.raises(AssertionError, match="choice 0 has no logprobs at position 1, only 1 of them"):
        stub.assert_labels_returned([" A"], position=1)


@pytest.mark.parametrize("stream", [False, True])
def test_assert_labels_returned_by_a_chat(stub: StubServer, stream: bool) -> None:
    stub.on().logits({" A": 2.0, " B": 1.0}, rest=-10)
    body = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 2, "max_tokens": 1}
    HTTP.post(f"{stub.base_url}/chat/completions", json={**body, "stream": stream})
    stub.assert_labels_returned([" A", " B"])
    with pytest.raises(AssertionError, match='no value for " The"'):
        stub.assert_labels_returned([" The"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{}, {"output_mode": "text"}])
@pytest.mark.parametrize("as_token_ids", [False, True])
def test_assert_labels_returned_by_token_ids(stream: bool, fields: dict[str, Any], as_token_ids: bool) -> None:
    with StubServer(enable_scale_out=True, return_tokens_as_token_ids=as_token_ids) as stub:
        stub.on().logits({" A": 2.0, " B": 1.0}, rest=-10)
        a = stub.app.state.server.served.models[0].tokenizer.one_token(" A")
        body = {"token_ids": [5], "sampling_params": {"logprobs": 2, "max_tokens": 1}, "stream": stream, **fields}
        HTTP.post(f"{stub.url}/inference/v1/generate", json=body)
        stub.assert_labels_returned([" A", " B", a])
        with pytest.raises(AssertionError, match=r'no value for " The".*It was asked for 2 logprobs'):
            stub.assert_labels_returned([" The"])


def test_assert_labels_returned_by_a_batch_of_chats(stub: StubServer) -> None:
    stub.on().logits({" A": 2.0, " B": 1.0}, rest=-10)
    stub.on(prompt={"contains": "y"}).text(" The")
    messages = [[{"role": "user", "content": content}] for content in "xy"]
    body = {"messages": messages, "logprobs": True, "top_logprobs": 2, "max_tokens": 1}
    assert len(HTTP.post(f"{stub.base_url}/chat/completions/batch", json=body).json()["choices"]) == 2
    stub.assert_labels_returned([" A", " B"])
    with pytest.raises(AssertionError, match='no value for " The"'):
        stub.assert_labels_returned([" The"])


def test_assert_labels_returned_sees_what_a_fault_took_away(stub: StubServer) -> None:
    stub.on(prompt="p").logits({" A": 2.0, " B": 1.0}, rest=-10).fault("logprobs", value=None)
    complete(stub, "p", logprobs=2)
    with pytest.raises(AssertionError, match="choice 0 has no logprobs at position 0, only 0 of them"):
        stub.assert_labels_returned([" A"])


def test_without_a_journal_its_readers_say_so() -> None:
    with pytest.raises(SettingsError, match="keeps no journal: it was made with journal=False"):
        _ = Stub(journal=False).requests


# Without a socket


async def test_in_process_by_httpx() -> None:
    stub = Stub(logprobs_mode="processed_logprobs")
    stub.on(prompt="p").text(" A")
    async with stub.async_client() as client:
        reply = await client.post("/v1/completions", json={**COMPLETION, "prompt": "p", "logprobs": 1})
        assert (await client.get("/stub/requests")).status_code == 200
    assert reply.json()["choices"][0]["text"] == " A"
    stub.assert_logprobs_mode("processed_logprobs")


async def test_in_process_by_httpx2() -> None:
    import httpx2

    stub = Stub()
    stub.on(prompt="p").text(" A")
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(stub.app), base_url="http://stub") as client:
        reply = await client.post("/v1/completions", json={**COMPLETION, "prompt": "p"})
    assert reply.json()["choices"][0]["text"] == " A"
