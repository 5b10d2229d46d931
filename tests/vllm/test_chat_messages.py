"""Messages: which shapes are taken, what is said of the others, and what the template gets of them.

The error texts are recorded (fixtures/vllm-0.32.0-edges); the prompts follow from the template of bigram512, which writes
`<|im_start|>role\\ncontent<|im_end|>\\n` for each message.
"""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from stubserver.app import create_app
from stubserver.dialects.vllm.chat.conversation import read_conversation, without_developers

SERVER = TestClient(create_app("fixtures/bigram512/script.yaml"))

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def ask(messages: Any, **body: Any) -> Any:
    fields = {"messages": messages, "max_tokens": 1, "temperature": 0, "return_prompt_text": True, **body}
    return SERVER.post("/v1/chat/completions", json=fields).json()


def prompt(*messages: Any, **body: Any) -> str:
    reply = ask(list(messages), **body)
    assert "prompt_text" in reply, reply
    return str(reply["prompt_text"]).removesuffix("<|im_start|>assistant\n")


def error(messages: Any, **body: Any) -> dict[str, Any]:
    return dict(ask(messages, **body)["error"])


@pytest.mark.parametrize(
    ("message", "count"),
    [
        # A branch of the union each: what it lacks, and both ways in which its content is wrong.
        ({"role": "user", "content": 5}, 22),
        ({"role": "user", "content": None}, 19),
        ({"content": "x"}, 11),
        (None, 8),
    ],
)
def test_a_message_of_no_shape_is_told_of_by_every_shape(message: Any, count: int) -> None:
    told = error([message])
    assert told["type"] == "Bad Request"
    assert told["message"].startswith(f"{count} validation errors:\n")
    assert told["param"].startswith("body.messages.0.ChatCompletionDeveloperMessageParam")


def test_parts_are_checked_when_they_are_read() -> None:
    told = error([{"role": "system", "content": [{"type": "input_text", "text": "x"}]}])
    assert (told["type"], told["param"]) == ("BadRequestError", None)
    assert told["message"].startswith("1 validation error for ValidatorIterator\n0.type\n  Input should be 'text'")


@pytest.mark.parametrize(
    ("messages", "words"),
    [(5, "'int' object is not iterable"), (True, "'bool' object is not iterable")],
)
def test_messages_that_are_no_list(messages: Any, words: str) -> None:
    assert error(messages)["message"] == words


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "image_url", "image_url": {"url": "http://x"}}, "bigram is not a multimodal model"),
        ({"type": "image_embeds", "image_embeds": "x"}, "The model is not multimodal."),
        (
            {"type": "prompt_embeds", "data": "x"},
            "You must set `--enable-prompt-embeds` to input `prompt_embeds` (parameter=prompt_embeds)",
        ),
    ],
)
def test_parts_that_are_no_text(part: dict[str, Any], words: str) -> None:
    assert error([{"role": "critic", "content": [part]}])["message"] == words


def test_texts_of_parts_are_joined_and_empty_ones_vanish() -> None:
    parts = [{"type": "text", "text": text} for text in ("a", "", "b")]
    assert prompt({"role": "user", "content": parts}) == "<|im_start|>user\na\nb<|im_end|>\n"
    kinds = [{"type": "thinking", "thinking": "t"}, {"type": "input_text", "text": "i"}, "s"]
    assert prompt({"role": "critic", "content": kinds}) == "<|im_start|>critic\nt\ni\ns<|im_end|>\n"


def test_content_null_is_empty() -> None:
    assert prompt({"role": "assistant", "content": None, "tool_calls": [CALL]}) == "<|im_start|>assistant\n<|im_end|>\n"


def test_developers_are_the_system_which_comes_first() -> None:
    messages = [{"role": role, "content": text} for role, text in (("user", "u"), ("developer", "d"), ("system", "s"))]
    assert prompt(*messages) == "<|im_start|>system\nd\n\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"
    # Without a developer the system stays where it is.
    assert prompt(messages[0], messages[2]).startswith("<|im_start|>user")


def test_a_developer_alone_and_first_keeps_its_name() -> None:
    shown = without_developers([{"role": "developer", "content": "d", "name": "bob", "tools": None}])
    assert shown == [{"role": "system", "content": "d", "name": "bob"}]


@pytest.mark.parametrize(
    ("arguments", "read"), [('{"a": 1}', {"a": 1}), ("", {}), ("5", {}), ("[]", {}), ("{nope", {})]
)
def test_arguments_of_calls_are_objects(arguments: str, read: dict[str, Any]) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    (message,) = read_conversation([{"role": "assistant", "tool_calls": [call]}], "m", takes_parts=False)
    assert message["tool_calls"][0]["function"]["arguments"] == read
    assert call["function"]["arguments"] == arguments, "the request is left as it came"


def test_calls_that_are_none() -> None:
    told = error([{"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f"}}]}])
    assert told["message"].startswith(
        "3 validation errors:\n  {'type': 'missing', 'loc': 'body.0.ChatCompletionMessageFunctionToolCallParam.function'"
    )
    assert error([{"role": "assistant", "tool_calls": 5}])["message"] == "'int' object is not iterable"


def test_tokenize_takes_the_same_messages() -> None:
    body = {"messages": [{"role": "developer", "content": [{"type": "text", "text": "Hi"}]}]}
    tokens = SERVER.post("/tokenize", json=body).json()["tokens"]
    assert tokens == ask(body["messages"], return_token_ids=True)["prompt_token_ids"]


def test_errors_come_in_the_order_of_the_fields() -> None:
    told = error("x", tools=[{}], stop=5)
    assert [line.split("'loc': '")[1].split("'")[0] for line in told["message"].split("\n")[1:]] == [
        "body.messages",
        "body.stop",
        "body.stop",
        "body.tools.0.function",
    ]


def test_a_batch_checks_each_conversation_as_a_request() -> None:
    body = {"messages": [[{"role": "user", "content": "A"}]], "max_tokens": 1}
    told = SERVER.post("/v1/chat/completions/batch", json={**body, "tools": 1}).json()["error"]
    assert told["message"].startswith("1 validation error for ChatCompletionRequest\ntools\n")
    told = SERVER.post("/v1/chat/completions/batch", json={**body, "best_of": "a"}).json()["error"]
    assert told["param"] == "body.best_of"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        (
            "tools",
            [1],
            [
                "1 validation error for ChatCompletionRequest",
                "tools.0",
                "  Input should be a valid dictionary or instance of ChatCompletionToolsParam "
                "[type=model_type, input_value=1, input_type=int]",
            ],
        ),
        (
            "response_format",
            "1",
            [
                "3 validation errors for ChatCompletionRequest",
                "response_format.function-wrap[__log_extra_fields__()]",
                "  Input should be a valid dictionary or instance of ResponseFormat "
                "[type=model_type, input_value='1', input_type=str]",
            ],
        ),
    ],
)
def test_a_batch_names_vllms_types(field: str, value: Any, said: list[str]) -> None:
    """As the real server's: asked by `make parity`, seeds 1 and 2."""
    body = {"messages": [[{"role": "user", "content": "A"}]], field: value}
    told = SERVER.post("/v1/chat/completions/batch", json=body).json()["error"]["message"]
    assert told.splitlines()[:3] == said
