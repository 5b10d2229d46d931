"""Work that is remembered between requests must never show in an answer."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter
from starlette.testclient import TestClient

from stubserver.app import create_app
from stubserver.dialects.vllm.completions.protocol import CompletionRequest
from stubserver.dialects.vllm.completions.serving import read_prompt
from stubserver.errors import NotFoundError, SchemaError, ValidationError
from stubserver.serving.plans import MAX_PLANS, MAX_SPELLING, Plans


class Plan:
    """Of these fields, as far as the tests are concerned."""

    def __init__(self, fields: CompletionRequest) -> None:
        self.fields = fields


def plans() -> Plans[CompletionRequest, Plan]:
    return Plans(TypeAdapter(CompletionRequest), "prompt", read_prompt, Plan)


def test_requests_that_differ_in_their_prompt_share_a_plan() -> None:
    kept = plans()
    first, prompt = kept.plan({"prompt": "a", "temperature": 0})
    second, other = kept.plan({"prompt": [1, 2], "temperature": 0})
    assert first is second
    assert (prompt, other) == ("a", [1, 2])


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"logprobs": True}, {"logprobs": 1}),
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"temperature": 0}, {"temperature": "0"}),
        ({"stop": "a"}, {"stop": ["a"]}),
        ({"temperature": None}, {}),
    ],
)
def test_fields_count_by_their_exact_spelling(left: dict[str, Any], right: dict[str, Any]) -> None:
    kept = plans()
    assert kept.plan({"prompt": "a", **left})[0] is not kept.plan({"prompt": "a", **right})[0]


def test_infinity_is_no_null() -> None:
    """Both become null in JSON, so a spelling as JSON would mistake one for the other."""
    kept = plans()
    kept.plan({"prompt": "a", "logprobs": None})
    with pytest.raises(SchemaError):
        kept.plan({"prompt": "a", "logprobs": float("inf")})


@pytest.mark.parametrize("prompt", ["", None, [-1], ["a", 1], {"a": 1}, [True], [[1], "a"]])
def test_a_prompt_that_needs_a_check_gets_it(prompt: Any) -> None:
    kept = plans()
    kept.plan({"prompt": "a"})
    try:
        checked = CompletionRequest.model_validate({"prompt": prompt}).prompt
    except Exception:
        with pytest.raises((SchemaError, ValidationError)):
            kept.plan({"prompt": prompt})
    else:
        assert kept.plan({"prompt": prompt})[1] == checked


def test_refused_fields_are_refused_every_time() -> None:
    kept = plans()
    for _ in range(2):
        with pytest.raises(ValidationError):
            kept.plan({"prompt": "a", "logprobs": -2})


def test_plans_are_bounded_in_number_and_size() -> None:
    kept = plans()
    for number in range(3 * MAX_PLANS):
        kept.plan({"prompt": "a", "seed": number})
    kept.plan({"prompt": "a", "user": "x" * MAX_SPELLING})
    assert len(kept._plans) <= MAX_PLANS
    assert all(len(key) <= MAX_SPELLING for key in kept._plans)


def test_what_can_not_be_nested_in_a_key_is_checked_each_time() -> None:
    kept, nested = plans(), {}
    for _ in range(2500):
        nested = {"a": nested}
    first, second = (kept.plan({"prompt": "a", "vllm_xargs": None, "user": "x", "extra": nested})[0] for _ in range(2))
    assert first is not second
    assert not kept._plans


def test_a_plan_that_is_refused_is_refused_every_time() -> None:
    made = []

    def make(fields: CompletionRequest) -> None:
        made.append(fields)
        raise NotFoundError("No such model", parameter="model")

    kept = Plans(TypeAdapter(CompletionRequest), "prompt", read_prompt, make)
    for _ in range(2):
        with pytest.raises(NotFoundError):
            kept.plan({"prompt": "a"})
    assert len(made) == 2


def ask(client: TestClient, **fields: Any) -> Any:
    return client.post("/v1/completions", json={"model": "stub", **fields}).json()


def test_the_room_that_is_left_belongs_to_a_prompts_length() -> None:
    """Each prompt is one of ten tokens and as much as the request asks for where it fits."""
    script = {"rules": [{"steps": [{"tokens": [300]}], "then": "repeat"}]}
    with TestClient(create_app(script, served_model_name=["stub"], max_model_len=10)) as client:
        for length, expected in ((3, 5), (8, 2), (3, 5), (9, 1)):
            reply = ask(client, prompt=[300] * length, max_tokens=5, return_token_ids=True)
            assert reply["choices"][0]["token_ids"] == [300] * expected


def test_another_script_gets_plans_of_its_own() -> None:
    app = create_app({"rules": [{"steps": [{"tokens": [300]}]}], "served_model_name": "stub"})
    with TestClient(app) as client:
        fields = {"prompt": "a", "max_tokens": 1, "return_token_ids": True}
        before = ask(client, **fields)
        app.state.server.load({"rules": [{"steps": [{"tokens": [301]}]}], "served_model_name": "other"})
        refused = ask(client, **fields)
        after = ask(client, **fields | {"model": "other"})
    assert before["choices"][0]["token_ids"] == [300]
    assert refused["error"]["code"] == 404
    assert after["choices"][0]["token_ids"] == [301]


def chat(client: TestClient, **fields: Any) -> Any:
    return client.post(
        "/v1/chat/completions", json={"max_tokens": 1, "temperature": 0, "return_prompt_text": True, **fields}
    ).json()


def test_chats_that_differ_in_their_messages_keep_their_own() -> None:
    """They share all other fields, checked once; role and echo are those of each one's own messages."""
    continued = {"add_generation_prompt": False, "continue_final_message": True, "echo": True}
    with TestClient(create_app({"default": "random"})) as client:
        for role, text in (("assistant", "one"), ("user", "two"), ("assistant", "three")):
            reply = chat(client, messages=[{"role": role, "content": text}], **continued)
            message = reply["choices"][0]["message"]
            assert message["role"] == role
            assert message["content"].startswith(text)
            assert text in reply["prompt_text"]


@pytest.mark.parametrize(
    ("messages", "kind"),
    # What isn't iterable fails before it is looked at: recorded, "messages of wrong type".
    [
        (5, "BadRequestError"),
        ([5], "Bad Request"),
        ([{"content": "no role"}], "Bad Request"),
        (None, "BadRequestError"),
    ],
)
def test_messages_are_checked_every_time(messages: Any, kind: str) -> None:
    with TestClient(create_app({"default": "random"})) as client:
        good = chat(client, messages=[{"role": "user", "content": "a"}])
        bad = [chat(client, messages=messages)["error"]["type"] for _ in range(2)]
        assert chat(client, messages=[{"role": "user", "content": "a"}])["choices"] == good["choices"]
    assert bad == [kind, kind]
