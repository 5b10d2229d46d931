"""Parsers: what they make of a text, whole and in pieces; what follows from them for logprobs and constraints."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from stubserver.app import create_app
from stubserver.dialects.vllm.chat.hermes import HermesStream, read_calls
from stubserver.dialects.vllm.chat.reasoning import PARSERS, ReasoningStream
from stubserver.dialects.vllm.chat.segments import CallIds
from stubserver.engine.waiting import Waiting

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
USER = [{"role": "user", "content": "Hi"}]
HERMES = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}


def said(text: str, **settings: Any) -> TestClient:
    steps = {"rules": [{"steps": [{"text": text}]}]}
    return TestClient(create_app(steps, **settings))


def choice(server: TestClient, **body: Any) -> dict[str, Any]:
    reply = server.post("/v1/chat/completions", json={"messages": USER, "temperature": 0, "max_tokens": 200, **body})
    assert reply.status_code == 200, reply.text
    return dict(reply.json()["choices"][0])


@pytest.mark.parametrize(
    ("name", "text", "split"),
    [
        ("qwen3", "<think>r</think>c", ("r", "c")),
        ("qwen3", "r</think>c", ("r", "c")),
        ("qwen3", "only", ("only", None)),
        ("qwen3", f"r{CALL}", ("r", CALL)),
        ("deepseek_r1", "r</think>\n\nc", ("r", "\n\nc")),
        ("deepseek_r1", f"r{CALL}", (f"r{CALL}", None)),
    ],
)
def test_reasoning_ends_where_the_parser_says(name: str, text: str, split: tuple[str | None, str | None]) -> None:
    parser = PARSERS[name]
    assert parser.split(text) == split
    stream, reasoning, content = ReasoningStream(parser), "", None
    for number, letter in enumerate(text):
        if content is None:
            more, content = stream.feed(letter, 1, finished=number == len(text) - 1)
            reasoning += more
        else:
            content += letter
    assert (reasoning or None, content or None) == split


def test_what_may_be_a_mark_is_held_back() -> None:
    stream = ReasoningStream(PARSERS["qwen3"])
    assert stream.feed("a</th", 1) == ("a", None)
    assert stream.feed("at", 1) == ("</that", None)
    assert stream.tokens == 2


def test_calls_of_a_whole_text() -> None:
    content, calls = read_calls(f"x{CALL}{CALL}", CallIds(()))
    assert (content, [(call.name, call.arguments) for call in calls]) == ("x", [("f", '{"a": 1}')] * 2)
    # What can't be read is content, all of it.
    assert read_calls("<tool_call>{", CallIds(())) == ("<tool_call>{", [])


def test_calls_of_a_stream_add_up() -> None:
    text, stream = f"x{CALL}", HermesStream(CallIds(()))
    deltas = [stream.feed(letter, finished=place == len(text) - 1) for place, letter in enumerate(text)]
    told = [delta for delta in deltas if delta]
    assert "".join(delta.content or "" for delta in told) == "x"
    pieces = [call for delta in told for call in delta.tool_calls]
    assert pieces[0].name == "f"
    assert json.loads("".join(piece.arguments or "" for piece in pieces)) == {"a": 1}


def test_calls_are_taken_out_where_the_server_would() -> None:
    server = said(f"x{CALL}", **HERMES)
    auto = choice(server, tools=TOOLS)
    assert (auto["message"]["content"], len(auto["message"]["tool_calls"]), auto["finish_reason"]) == (
        "x",
        1,
        "tool_calls",
    )
    for body in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        left = choice(server, **body)
        assert (left["message"]["content"], left["finish_reason"]) == (f"x{CALL}", "stop")
        assert "tool_calls" not in left["message"]
    assert choice(said(f"x{CALL}"))["message"]["content"] == f"x{CALL}"


@pytest.mark.parametrize("wanted", ["required", {"type": "function", "function": {"name": "f"}}])
def test_a_forced_call_is_a_grammar(wanted: Any) -> None:
    """The script would say something else; its likeliest tokens that go on with a call are taken."""
    server = TestClient(create_app("fixtures/bigram512/script.yaml", **HERMES))
    begun = choice(server, tools=TOOLS, tool_choice=wanted, max_tokens=12)
    assert begun["message"]["content"].startswith(("<tool_call>{", "<tool_call>\n{"))


def test_a_scripted_message_keeps_its_markup_without_parsers() -> None:
    script = {"rules": [{"message": {"reasoning": "r", "content": "c"}}]}
    assert choice(TestClient(create_app(script)))["message"]["content"] == "<think>r</think>c"
    for name in ("qwen3", "deepseek_r1", "any other"):
        message = choice(TestClient(create_app(script, reasoning_parser=name)))["message"]
        assert (message["reasoning"], message["content"]) == ("r", "c"), name


def test_hidden_reasoning_hides_what_would_tell_of_it() -> None:
    hidden = choice(said("r</think>c", reasoning_parser="qwen3"), include_reasoning=False, logprobs=True)
    assert (hidden["message"]["reasoning"], hidden["message"]["content"], hidden["logprobs"]) == (None, "c", None)
    # Without a parser there is nothing to hide.
    assert choice(said("c"), include_reasoning=False, logprobs=True)["logprobs"] is not None


def test_a_template_told_not_to_think_gets_content() -> None:
    server = said("c", reasoning_parser="qwen3")
    assert choice(server)["message"]["content"] is None
    assert choice(server, chat_template_kwargs={"enable_thinking": False})["message"]["content"] == "c"
    assert choice(server, reasoning_effort="none")["message"]["content"] == "c"


def test_constraints_wait_for_the_end_of_reasoning() -> None:
    """bigram512 has no token `</think>`: the wait has no end; without reasoning there is none."""
    constrained: dict[str, Any] = {"structured_outputs": {"choice": ["A"]}, "max_tokens": 2}
    server = TestClient(create_app("fixtures/bigram512/script.yaml", reasoning_parser="qwen3"))
    free = choice(server, max_tokens=2)["message"]["reasoning"]
    assert choice(server, **constrained)["message"]["reasoning"] == free
    assert choice(server, **constrained, include_reasoning=False)["message"]["content"] is None
    assert choice(server, **constrained, chat_template_kwargs={"enable_thinking": False})["message"]["content"] == "A"


@pytest.mark.parametrize(
    ("prompt", "is_open"), [([5], True), ([2], False), ([2, 5], False), ([2, 1], True), ([2, 3, 5], True)]
)
def test_what_a_prompt_leaves_open(prompt: list[int], is_open: bool) -> None:
    waiting = Waiting(ends=frozenset({2}), starts=frozenset({1}), bounds=frozenset({3}))
    assert waiting.is_open(prompt) is is_open
