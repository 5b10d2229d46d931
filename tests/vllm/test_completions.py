"""Completions where fields meet. Answers of bigram512, asked of vLLM 0.32.0 (CPU build)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from stubserver.app import create_app

BIGRAM = Path(__file__).parents[2] / "fixtures" / "bigram512" / "script.yaml"
SKY = [300, 292, 297]
"""The sky is."""


@cache
def client(**settings: Any) -> TestClient:
    return TestClient(create_app(BIGRAM, **settings), raise_server_exceptions=False)


def post(server: TestClient | None = None, **fields: Any) -> Any:
    return (server or client()).post("/v1/completions", json={"prompt": "The sky is", "temperature": 0, **fields})


def choice(server: TestClient | None = None, **fields: Any) -> dict[str, Any]:
    (found,) = post(server, return_token_ids=True, **fields).json()["choices"]
    return dict(found)


def events(server: TestClient | None = None, **fields: Any) -> list[dict[str, Any]]:
    *found, done = post(server, stream=True, **fields).text.strip().split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in found]


UNSAID = {"message": "", "type": "InternalServerError", "param": None, "code": 500}


# Truncation ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["The sky is", SKY])
def test_truncation_keeps_the_last_tokens_unless_it_is_told_otherwise(prompt: Any) -> None:
    kept = {
        side: choice(prompt=prompt, max_tokens=1, truncate_prompt_tokens=2, truncation_side=side)["prompt_token_ids"]
        for side in (None, "left", "right")
    }
    assert kept == {None: SKY[1:], "left": SKY[1:], "right": SKY[:2]}


def test_an_echo_shows_the_whole_text_but_the_kept_tokens() -> None:
    found = post(echo=True, logprobs=0, max_tokens=1, truncate_prompt_tokens=1).json()["choices"][0]
    assert found["text"].startswith("The sky is")
    assert found["logprobs"]["tokens"][0] == " is"
    assert len(found["logprobs"]["tokens"]) == 2


def test_truncation_to_what_the_model_takes_leaves_room_for_a_token() -> None:
    found = choice(client(max_model_len=8), prompt=list(range(10, 30)), max_tokens=4, truncate_prompt_tokens=-1)
    assert found["prompt_token_ids"] == list(range(23, 30))
    assert len(found["token_ids"]) == 0 or len(found["token_ids"]) == 1


def test_long_texts_are_cut_before_they_are_tokenized_where_a_side_is_named() -> None:
    server = client(max_model_len=4)
    longest = 4 * max(len(text) for text in ("<|endoftext|>", "<|im_start|>"))
    text = "b" * 10 + "a" * longest * 3
    assert post(server, prompt=text, max_tokens=1).status_code == 400
    left = choice(server, prompt=text, max_tokens=1, truncate_prompt_tokens=2, truncation_side="left", echo=True)
    right = choice(server, prompt=text, max_tokens=1, truncate_prompt_tokens=2, truncation_side="right", echo=True)
    assert left["prompt_token_ids"] != right["prompt_token_ids"]


# The order of checks ------------------------------------------------------------------------------------------------


def message(**fields: Any) -> str:
    return str(post(**fields).json()["error"]["message"])


def test_lengths_are_looked_at_before_the_prompt() -> None:
    assert message(prompt=[], truncate_prompt_tokens=10**6).startswith("truncate_prompt_tokens=1000000 cannot be")
    assert message(prompt=[]) == "You must pass at least one prompt"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"echo": True}, "Echo is unsupported with suffix."),
        ({"prompt_embeds": "AAAA"}, "suffix is not supported with prompt_embeds"),
        ({"truncate_prompt_tokens": 1}, "suffix is not supported with truncate_prompt_tokens"),
        ({"prompt": [1, 2]}, "suffix requires text prompt input for FIM completion rendering"),
        ({"prompt": [[1], [2]]}, "suffix requires text prompt input for FIM completion rendering"),
        ({}, "suffix is only supported for models with FIM completion rendering"),
        ({"prompt": ["a", "b"]}, "suffix is only supported for models with FIM completion rendering"),
    ],
)
def test_why_there_is_no_suffix(fields: dict[str, Any], words: str) -> None:
    reply = post(suffix="x", **fields).json()["error"]
    assert (reply["message"], reply["param"]) == (words, "suffix")


def test_embeds_are_refused_by_what_is_wrong_first() -> None:
    assert message(prompt_embeds="AAAA", echo=True) == "Echo is unsupported with prompt embeds."
    assert message(prompt_embeds="AAAA", prompt_logprobs=1) == "prompt_logprobs is not compatible with prompt embeds."
    words = "You must set `--enable-prompt-embeds` to input `prompt_embeds`. (parameter=prompt_embeds)"
    assert message(prompt_embeds="") == message(prompt_embeds="AAAA") == words
    assert post(prompt_embeds=[], max_tokens=1).status_code == 200


def test_values_come_before_ids_before_the_prompt_before_bad_words() -> None:
    wrong: dict[str, Any] = {"frequency_penalty": 3, "allowed_token_ids": [-1], "prompt": [99999], "bad_words": [" "]}
    starts = ("frequency_penalty must be", "allowed_token_ids contains", "Token id 99999", "bad_words entries")
    for name, start in zip(list(wrong), starts, strict=True):
        assert message(**wrong).startswith(start)
        del wrong[name]


def test_what_the_engine_refuses_is_an_event_in_a_stream() -> None:
    for fields in ({"structured_outputs": {"json_object": False}}, {"bad_words": [" "]}, {"prompt": [[29], []]}):
        (event,) = events(**fields)
        assert event["error"]["code"] == 400


def test_the_prompt_bounds_where_experts_are_shown_from() -> None:
    assert post(routed_experts_prompt_start=3, max_tokens=1).status_code == 200
    assert message(routed_experts_prompt_start=4) == (
        "routed_experts_prompt_start must be between 0 and the prompt length (3), inclusive. "
        "(parameter=routed_experts_prompt_start, value=4)"
    )


def test_two_kinds_of_constraint_are_one_too_many() -> None:
    both = message(structured_outputs={"regex": "a"}, response_format={"type": "json_object"})
    assert both.startswith("You can only use one kind of structured outputs constraint but multiple are specified: {")
    none = message(response_format={"type": "json_schema", "json_schema": {"name": "x"}})
    assert none.startswith("You must use one kind of structured outputs constraint but none are specified: {")


@pytest.mark.parametrize(("value", "kind"), [(True, "bool"), (0, "int"), (0.5, "float"), ("", "str"), ([], "list")])
def test_structured_outputs_that_are_no_object_are_a_bug_of_vllm(value: Any, kind: str) -> None:
    reply = post(structured_outputs=value)
    error = {**UNSAID, "message": f"'{kind}' object has no attribute 'get'"}
    assert (reply.status_code, reply.json()) == (500, {"error": error})


def test_several_schema_errors_come_in_the_order_of_the_fields() -> None:
    words = message(priority="x", model=5, repetition_detection=1, user=5)
    assert [words.index(f"body.{name}") for name in ("model", "user", "priority", "repetition_detection")] == sorted(
        words.index(f"body.{name}") for name in ("model", "user", "priority", "repetition_detection")
    )


# Masks that leave nothing -------------------------------------------------------------------------------------------

NOTHING_LEFT = {"structured_outputs": {"choice": ["A", "B"]}, "allowed_token_ids": [300]}


def test_masks_that_leave_nothing_of_a_grammar_are_a_500() -> None:
    error = {**UNSAID, "message": "Internal server error"}
    reply = post(**NOTHING_LEFT)
    assert (reply.status_code, reply.json()) == (500, {"error": error})
    assert events(**NOTHING_LEFT) == [{"error": error}]


def test_without_a_grammar_they_are_token_0() -> None:
    found = choice(allowed_token_ids=[0], min_tokens=3)
    assert (found["token_ids"], found["finish_reason"]) == ([0], "stop")


NOTHING = {"prompt": "x", "allowed_token_ids": [0], "min_tokens": 3, "max_tokens": 3, "logprobs": 3}


def test_values_of_nothing_are_refused_in_a_full_reply_and_null_in_a_stream() -> None:
    server = client(logprobs_mode="processed_logprobs")
    refused = post(server, **NOTHING)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "Out of range float values are not JSON compliant"
    (event,) = events(server, **NOTHING)
    assert event["choices"][0]["logprobs"] == {
        "text_offset": [0],
        "token_logprobs": [None],
        "tokens": ["<|endoftext|>"],
        "top_logprobs": [{"<|endoftext|>": None, "<|im_start|>": None, "<|im_end|>": None}],
    }


# What ends or joins tokens ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("detection", "allowed", "more", "token_ids"),
    [
        ({"max_pattern_size": 1, "min_count": 2}, [276], {}, [276] * 2),
        ({"max_pattern_size": 1, "min_count": 2}, [276], {"min_tokens": 4}, [276] * 4),
        ({"max_pattern_size": 3, "min_pattern_size": 2, "min_count": 2}, [276], {}, [276] * 4),
        ({"max_pattern_size": 3, "min_pattern_size": 2, "min_count": 2}, [388, 478], {}, [478, 388] * 2),
        ({"max_pattern_size": 4, "min_count": 3}, [388, 478], {}, [478, 388] * 3),
        ({"max_pattern_size": 4, "min_count": 3}, [276], {"stop": "xx"}, [276] * 3),
    ],
)
def test_an_output_that_repeats_itself_ends(
    detection: dict[str, int], allowed: list[int], more: dict[str, Any], token_ids: list[int]
) -> None:
    found = choice(prompt="x", max_tokens=12, repetition_detection=detection, allowed_token_ids=allowed, **more)
    assert (found["token_ids"], found["finish_reason"], found["stop_reason"]) == (
        token_ids,
        "repetition",
        "repetition_detected",
    )


def test_a_length_comes_before_a_repetition() -> None:
    detection = {"max_pattern_size": 1, "min_count": 2}
    found = choice(max_tokens=2, repetition_detection=detection, allowed_token_ids=[276])
    assert (found["finish_reason"], found["stop_reason"]) == ("length", None)


@pytest.mark.parametrize(
    ("interval", "pieces"),
    [
        (1, [[311], [244], [228], [497], [420], [406], [226], [446]]),
        (2, [[311], [244, 228], [497, 420], [406, 226], [446]]),
        (3, [[311], [244, 228, 497], [420, 406, 226], [446]]),
        (5, [[311], [244, 228, 497, 420, 406], [226, 446]]),
    ],
)
def test_events_of_several_tokens(interval: int, pieces: list[list[int]]) -> None:
    plain = choice(max_tokens=8, logprobs=1)
    found = [event["choices"][0] for event in events(max_tokens=8, stream_interval=interval, return_token_ids=True)]
    assert [each["token_ids"] for each in found] == pieces
    assert "".join(each["text"] for each in found) == plain["text"]
    scored = [event["choices"][0] for event in events(max_tokens=8, stream_interval=interval, logprobs=1)]
    offsets = [offset for each in scored for offset in each["logprobs"]["text_offset"]]
    assert offsets == plain["logprobs"]["text_offset"]
    full = choice(max_tokens=8, logprobs=1, stream_interval=interval)
    assert full == plain


THINKING = {"max_tokens": 10, "logprobs": 2}
END = [31, 18, 87, 75, 76, 81, 78, 33]
"""</think>, in bigram512's tokens."""


def test_a_spent_budget_forces_the_end_of_a_thought() -> None:
    server = client(logprobs_mode="processed_logprobs", reasoning_parser="qwen3")
    found = choice(server, prompt="<think>The", thinking_token_budget=1, **THINKING)
    assert found["token_ids"] == [*END, 182, 57]
    assert found["logprobs"]["token_logprobs"][:8] == [0.0] * 8
    # Which of the others is named second isn't specified: all are a billion below.
    assert list(found["logprobs"]["top_logprobs"][0].values()) == [0.0, -9999.0]
    allowed = choice(server, prompt="<think>The", thinking_token_budget=0, allowed_token_ids=[300, 301], **THINKING)
    assert allowed["token_ids"][:8] == END
    assert list(allowed["logprobs"]["top_logprobs"][0].values()) == [0.0, -9999.0]


def test_a_budget_that_is_not_spent_forces_nothing() -> None:
    server = client(logprobs_mode="processed_logprobs", reasoning_parser="qwen3")
    for fields in ({"prompt": "x", "thinking_token_budget": 0}, {"prompt": "<think>", "thinking_token_budget": 99}):
        assert choice(server, **THINKING, **fields) == choice(server, **THINKING, prompt=fields["prompt"])


# A streamed echo of several choices ---------------------------------------------------------------------------------

ECHO = {"echo": True, "logprobs": 0, "n": 2, "temperature": 0.8, "top_k": 1, "seed": 5, "return_token_ids": True}


def test_a_streamed_echo_of_several_choices_breaks_off() -> None:
    *shown, last = events(max_tokens=3, **ECHO)
    assert [(each["choices"][0]["index"], each["choices"][0]["token_ids"]) for each in shown] == [
        (0, [311]),
        (0, [244]),
    ]
    # The prompt's first token, for which the real server looks in vain.
    assert last == {"error": {**UNSAID, "message": "300"}}


@pytest.mark.parametrize("fields", [{"max_tokens": 1}, {"max_tokens": 0}, {"max_tokens": 3, "logprobs": None}])
def test_unless_the_first_choice_ends_at_once_or_no_values_are_asked_for(fields: dict[str, Any]) -> None:
    found = events(**{**ECHO, **fields})
    assert {event["choices"][0]["index"] for event in found} == {0, 1}
    assert not any("error" in event for event in found)


def test_in_full_they_are_all_there() -> None:
    assert len(post(max_tokens=3, **ECHO).json()["choices"]) == 2


# Ids ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "field", "shown"),
    [
        ("abc", "r", "cmpl-abc"),
        ("", "r", "cmpl-"),
        (None, "r", "cmpl-r"),
        (None, "", "cmpl-"),
        ("abc", None, "cmpl-abc"),
    ],
)
def test_the_header_goes_before_the_field_and_empty_ids_are_ids(
    header: str | None, field: str | None, shown: str
) -> None:
    body = {"prompt": "x", "max_tokens": 1, **({} if field is None else {"request_id": field})}
    headers = {} if header is None else {"X-Request-Id": header}
    assert client().post("/v1/completions", json=body, headers=headers).json()["id"] == shown


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/generative_scoring", {"query": "x", "items": ["y"], "label_token_ids": [1]}),
        ("/v1/systemone", {"state": "x", "questions": {"q": {"type": "noul"}}}),
    ],
)
def test_null_is_no_id(path: str, body: dict[str, Any]) -> None:
    error = client().post(path, json={**body, "request_id": None}).json()["error"]
    assert error["param"] == "body.request_id"
    assert "'type': 'string_type'" in error["message"]


@pytest.mark.parametrize("path", ["/health", "/nowhere", "/v1/models"])
def test_replies_carry_the_requests_id_if_the_server_is_set_up_so(path: str) -> None:
    server = client(enable_request_id_headers=True, api_key="secret")
    assert server.get(path, headers={"X-Request-Id": "abc"}).headers["x-request-id"] == "abc"
    ids = {server.get(path).headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2
    assert {len(each) for each in ids} == {32}
    assert "x-request-id" not in client().get(path, headers={"X-Request-Id": "abc"}).headers


# Words --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("/models/bigram512", "/models/bigram512"),
        ("/tmp/models/bigram512", "<path>"),
        ("/models/a/config.json", "<path>"),
        ("<object at 0x7f00>", "<object>"),
        ("org/model", "org/model"),
    ],
)
def test_paths_and_addresses_are_left_out_of_errors(name: str, shown: str) -> None:
    assert message(model=name) == f"The model `{shown}` does not exist. Valid aliases: bigram."


def test_chats_end_and_join_tokens_likewise() -> None:
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "temperature": 0,
        "max_tokens": 8,
        "allowed_token_ids": [276],
        "return_token_ids": True,
        "repetition_detection": {"max_pattern_size": 1, "min_count": 4},
    }
    (found,) = client().post("/v1/chat/completions", json=body).json()["choices"]
    assert (found["token_ids"], found["finish_reason"], found["stop_reason"]) == (
        [276] * 4,
        "repetition",
        "repetition_detected",
    )
    streamed = client().post("/v1/chat/completions", json={**body, "stream": True, "stream_interval": 2})
    events = [json.loads(event.removeprefix("data: ")) for event in streamed.text.split("\n\n")[1:-2]]
    assert [event["choices"][0]["token_ids"] for event in events] == [[276], [276, 276], [276]]
