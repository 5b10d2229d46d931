"""Chat beyond the recordings: scripted messages, and what has to hold of every stream."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from stubserver.app import create_app

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
MESSAGE = {
    "reasoning": "I look it up.",
    "content": "Let me see.",
    "tool_calls": [
        {"name": "get_weather", "arguments": {"city": "Paris"}, "id": "call_1"},
        {"name": "get_weather", "arguments": '{"city": "Rome"}'},
    ],
}
USER = [{"role": "user", "content": "Weather?"}]


def client(**settings: Any) -> TestClient:
    script = {"rules": [{"when": {"field": {"messages[-1].content": "Weather?"}}, "message": MESSAGE}]}
    parsers = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
    return TestClient(create_app(script, **{**parsers, **settings}))


def ask(server: TestClient, **body: Any) -> dict[str, Any]:
    reply = server.post("/v1/chat/completions", json={"messages": USER, "temperature": 0, **body})
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def events(server: TestClient, **body: Any) -> list[dict[str, Any]]:
    reply = server.post("/v1/chat/completions", json={"messages": USER, "temperature": 0, "stream": True, **body})
    lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_full_reply_has_the_scripted_message() -> None:
    choice = ask(client(), tools=TOOLS)["choices"][0]
    second = choice["message"]["tool_calls"][1].pop("id")
    assert second.startswith("chatcmpl-tool-")
    assert choice["message"] == {
        "role": "assistant",
        "content": "Let me see.",
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}},
            {"type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}},
        ],
        "reasoning": "I look it up.",
    }
    assert choice["finish_reason"] == "tool_calls"


def test_a_stream_has_vllms_deltas_and_adds_up_to_the_message() -> None:
    """The shapes are those that vLLM 0.32.0 sent with the hermes tool parser and the qwen3 reasoning parser."""
    sent = events(client(), tools=TOOLS)
    deltas = [event["choices"][0]["delta"] for event in sent]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("reasoning") or "" for delta in deltas) == "I look it up."
    assert "".join(delta.get("content") or "" for delta in deltas) == "Let me see."
    calls = [(delta["content"], call) for delta in deltas for call in delta.get("tool_calls", ())]
    assert calls[0] == (
        None,
        {"id": "call_1", "type": "function", "index": 0, "function": {"name": "get_weather"}},
    )
    assert all(content is None for content, _ in calls)
    arguments = {0: "", 1: ""}
    for _, call in calls:
        arguments[call["index"]] += call["function"].get("arguments", "")
    assert arguments == {0: '{"city": "Paris"}', 1: '{"city": "Rome"}'}
    last = sent[-1]["choices"][0]
    assert (last["delta"], last["finish_reason"], last["stop_reason"]) == ({}, "tool_calls", None)
    assert "system_fingerprint" in sent[-1]
    assert all(delta or event is sent[-1] for delta, event in zip(deltas, sent, strict=True))


def test_markup_tokens_are_events_only_where_they_have_something_to_show() -> None:
    """As in vLLM: a token that the parser takes away is sent if logprobs or token ids were asked for."""
    with_logprobs = events(client(), tools=TOOLS, logprobs=True, stream_options={"include_usage": True})
    entries = [
        entry
        for event in with_logprobs
        for choice in event["choices"]
        if choice["logprobs"]
        for entry in choice["logprobs"]["content"]
    ]
    assert len(entries) == with_logprobs[-1]["usage"]["completion_tokens"]
    assert any(choice["delta"] == {} for event in with_logprobs for choice in event["choices"])


def test_usage_counts_the_tokens_of_the_reasoning() -> None:
    server = client()
    reply = ask(server, tools=TOOLS)
    tokens = server.post("/tokenize", json={"prompt": "I look it up."}).json()["count"]
    assert reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": tokens}
    assert ask(client(reasoning_parser=""), tools=TOOLS)["usage"]["completion_tokens_details"] is None


def test_reasoning_can_be_left_out() -> None:
    assert ask(client(), tools=TOOLS, include_reasoning=False)["choices"][0]["message"]["reasoning"] is None


def test_a_named_tool_ends_by_stop() -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    assert ask(client(), tools=TOOLS, tool_choice=choice)["choices"][0]["finish_reason"] == "stop"


def test_completions_show_the_markup() -> None:
    server = TestClient(create_app({"rules": [{"message": MESSAGE}]}))
    text = server.post("/v1/completions", json={"prompt": "x", "max_tokens": 200, "temperature": 0}).json()
    assert text["choices"][0]["text"] == (
        "<think>I look it up.</think>Let me see."
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
    )


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": 7},
        {"max_tokens": 40, "logprobs": True, "top_logprobs": 3},
        {"max_tokens": 40, "temperature": 1, "seed": 3, "n": 3, "logprobs": True, "top_logprobs": 1},
        {"max_tokens": 40, "stop": ["it"], "logprobs": True},
        {"max_tokens": 12, "allowed_token_ids": [300, 301, 302], "return_token_ids": True},
    ],
)
def test_a_stream_adds_up_to_the_full_reply(body: dict[str, Any]) -> None:
    server = client()
    full = ask(server, **body)
    streamed: dict[int, dict[str, Any]] = {}
    for event in events(server, **body):
        for choice in event["choices"]:
            kept = streamed.setdefault(choice["index"], {"content": "", "reasoning": "", "logprobs": [], "ids": []})
            for key in ("content", "reasoning"):
                kept[key] += choice["delta"].get(key) or ""
            kept["logprobs"] += (choice["logprobs"] or {"content": []})["content"]
            kept["ids"] += choice.get("token_ids") or []
            kept["end"] = (choice["finish_reason"], choice.get("stop_reason"))
    assert len(streamed) == len(full["choices"])
    for choice in full["choices"]:
        kept = streamed[choice["index"]]
        assert (choice["message"]["content"] or "") == kept["content"]
        assert (choice["message"]["reasoning"] or "") == kept["reasoning"]
        assert (choice["logprobs"] or {"content": []})["content"] == kept["logprobs"]
        assert (choice["token_ids"] or []) == kept["ids"]
        assert (choice["finish_reason"], choice["stop_reason"]) == kept["end"]


def test_a_template_of_the_request_needs_trust() -> None:
    body = {"chat_template": "{{ messages[0]['content'] }}!", "return_prompt_text": True}
    assert ask(client(trust_request_chat_template=True), **body)["prompt_text"] == "Weather?!"


def test_a_tokenizer_without_a_template_says_so() -> None:
    server = TestClient(create_app("fixtures/scripts/t6.yaml"))
    reply = server.post("/v1/chat/completions", json={"messages": USER})
    assert reply.status_code == 400
    assert "chat template" in reply.json()["error"]["message"]


def test_a_template_that_refuses_its_messages_is_a_400() -> None:
    body = {"chat_template": "{{ raise_exception('Roles must alternate') }}"}
    reply = client(trust_request_chat_template=True).post("/v1/chat/completions", json={"messages": USER, **body})
    assert (reply.status_code, reply.json()["error"]["message"]) == (400, "Roles must alternate")


@pytest.mark.parametrize("template", ["{{ ''.__class__.__mro__ }}", "{% for i in range(10**9) %}{% endfor %}", "{% x"])
def test_a_template_can_do_no_harm(template: str) -> None:
    body = {"chat_template": template}
    reply = client(trust_request_chat_template=True).post("/v1/chat/completions", json={"messages": USER, **body})
    assert reply.status_code == 400
