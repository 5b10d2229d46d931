"""Chat templates: which arguments reach them, and what they get of a content."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from stubserver.app import create_app
from stubserver.tokenizer.chat_template import read_template

SERVER = TestClient(create_app("fixtures/bigram512/script.yaml", trust_request_chat_template=True))
USER = [{"role": "user", "content": "Hi"}]


def ask(template: str, messages: Any = USER, **body: Any) -> Any:
    fields = {"messages": messages, "max_tokens": 1, "temperature": 0, "return_prompt_text": True, **body}
    reply = SERVER.post("/v1/chat/completions", json={**fields, "chat_template": template}).json()
    return reply["prompt_text"] if "prompt_text" in reply else reply["error"]["message"]


@pytest.mark.parametrize(
    ("template", "takes_parts"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{% for m in messages %}{% for p in m['content'] %}{{ p.text }}{% endfor %}{% endfor %}", True),
        ("{% set all = messages[1:] %}{% for m in all %}{% for p in m.content %}x{% endfor %}{% endfor %}", True),
        (
            "{% macro f(c) %}{% for p in c %}x{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.content) }}{% endfor %}",
            True,
        ),
        (
            "{% macro f(c) %}{% for p in c %}x{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.role) }}{% endfor %}",
            False,
        ),
        ("{% for p in content %}x{% endfor %}", True),
        ("{% for", False),
    ],
)
def test_a_template_that_goes_through_the_parts_gets_them(template: str, takes_parts: bool) -> None:
    assert read_template(template).takes_parts is takes_parts


def test_the_parts_as_it_gets_them() -> None:
    template = "{% for m in messages %}{% for p in m.content %}{{ p }}{% endfor %}{% endfor %}"
    parts = [{"type": "text", "text": "P", "mine": 1}]
    assert ask(template, [{"role": "user", "content": parts}]) == "{'type': 'text', 'text': 'P', 'mine': 1}"
    assert ask(template) == "{'type': 'text', 'text': 'Hi'}"


def test_generation_marks_show_nothing() -> None:
    assert ask("{% generation %}a{% endgeneration %}b") == "ab"


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ({"chat_template_kwargs": {"x": 1}}, "1"),
        # The request's own fields win.
        ({"reasoning_effort": "high", "chat_template_kwargs": {"x": 2, "reasoning_effort": "low"}}, "2high"),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, ""),
        ({"chat_template_kwargs": {"unknown": 1}}, ""),
    ],
)
def test_arguments(body: dict[str, Any], shown: str) -> None:
    assert ask("{{ x }}{{ reasoning_effort }}{{ '' if add_generation_prompt else 'none' }}.", **body) == f"{shown}."


def test_arguments_that_collide() -> None:
    for name, words in (
        ("conversation", "safe_apply_chat_template() got multiple values for argument 'conversation'"),
        (
            "self",
            "maybe_make_thread_pool.<locals>.TokenizerPool.apply_chat_template() got multiple values for argument 'self'",
        ),
    ):
        assert ask("x", chat_template_kwargs={name: 1}) == words


def test_continuing_needs_the_content_in_the_template_and_the_prompt() -> None:
    cont = {"continue_final_message": True, "add_generation_prompt": False}
    assert ask("{% for m in messages %}[{{ m.content }}]{% endfor %}", **cont) == "[Hi"
    assert (
        ask("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}", [{"role": "user", "content": "Hi "}], **cont)
        == "[Hi"
    )
    assert ask("x", **cont) == (
        'continue_final_message is set to "content" but this is not an accepted field in the chat_template'
    )
    assert ask("{{ content }}x", **cont).startswith(
        "continue_final_message is set but the final message does not appear in the chat"
    )
    assert ask("x", continue_final_message=True).startswith("continue_final_message and add_generation_prompt are not")


def test_tools_as_a_template_gets_them() -> None:
    tools = [{"type": "function", "function": {"name": "f", "extra": 1}}]
    assert ask("{{ tools | tojson }}", tools=tools, tool_choice="none") == (
        '[{"type": "function", "function": {"name": "f", "description": null, "parameters": null}}]'
    )


def test_an_empty_template_needs_trust_too() -> None:
    server = TestClient(create_app("fixtures/bigram512/script.yaml"))
    reply = server.post("/v1/chat/completions", json={"messages": USER, "chat_template": ""})
    assert "--trust-request-chat-template is not set" in reply.json()["error"]["message"]


def test_a_prompt_without_tokens() -> None:
    assert ask("{{ x }}") == "The decoder prompt cannot be empty"
