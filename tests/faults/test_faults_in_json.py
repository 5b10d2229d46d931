"""Faults in what replies say, seen through the openai SDK: full and streamed, completions and chat."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from fault_server import ROWS, TOKENS, Running, logprobs_of, serving

KINDS_OF_REPLY = pytest.mark.parametrize("stream", [False, True], ids=["full", "stream"])
ENDPOINTS = pytest.mark.parametrize("endpoint", ["completions", "chat"])
MASKED = -9999.0

Top = list[tuple[str, float]]


def steps(server: Running, fault: dict[str, Any], endpoint: str, stream: bool) -> list[tuple[str, float, Top]]:
    """(token, logprob, top) of each token, whatever the form of the reply."""
    reply = (server.complete if endpoint == "completions" else server.chat)(fault, stream=stream)
    choices = [event.choices[0] for event in (reply if stream else [reply])]
    return [step for choice in choices if choice.logprobs for step in _steps(choice.logprobs, endpoint)]


def _steps(logprobs: Any, endpoint: str) -> list[tuple[str, float, Top]]:
    if endpoint == "completions":
        tops = [list(top.items()) for top in logprobs.top_logprobs]
        return list(zip(logprobs.tokens, logprobs.token_logprobs, tops, strict=True))
    return [
        (entry.token, entry.logprob, [(top.token, top.logprob) for top in entry.top_logprobs])
        for entry in logprobs.content
    ]


def possible(top: Top) -> dict[str, float]:
    return {token: value for token, value in top if value > MASKED}


@ENDPOINTS
@KINDS_OF_REPLY
def test_without_a_fault(server: Running, endpoint: str, stream: bool) -> None:
    # A fault that befalls nobody: the reply takes the way of faults, and is what it is.
    seen = steps(server, {"kind": "no_done", "after": 99}, endpoint, stream)
    assert [token for token, _, _ in seen] == TOKENS
    for row, (token, logprob, top) in zip(ROWS, seen, strict=True):
        assert logprob == pytest.approx(logprobs_of(row)[token], abs=1e-6)
        assert possible(top) == pytest.approx(logprobs_of(row), abs=1e-6)


@ENDPOINTS
@KINDS_OF_REPLY
def test_logprobs(server: Running, endpoint: str, stream: bool) -> None:
    assert steps(server, {"kind": "logprobs"}, endpoint, stream) == []
    assert steps(server, {"kind": "logprobs", "value": "missing"}, endpoint, stream) == []


def test_logprobs_null_is_not_missing(server: Running) -> None:
    [null] = server.post({"kind": "logprobs"}).json()["choices"]
    [missing] = server.post({"kind": "logprobs", "value": "missing"}).json()["choices"]
    assert null["logprobs"] is None
    assert "logprobs" not in missing


@ENDPOINTS
@KINDS_OF_REPLY
def test_missing_step(server: Running, endpoint: str, stream: bool) -> None:
    seen = steps(server, {"kind": "missing_step", "step": 1}, endpoint, stream)
    assert [token for token, _, _ in seen] == [" A", " B"]


@KINDS_OF_REPLY
def test_missing_step_of_each_choice(server: Running, stream: bool) -> None:
    reply = server.complete({"kind": "missing_step", "step": 2}, n=2, temperature=1, seed=1, stream=stream)
    choices = [choice for event in (reply if stream else [reply]) for choice in event.choices]
    for index in (0, 1):
        own = [choice.logprobs for choice in choices if choice.index == index and choice.logprobs]
        assert sum(len(logprobs.tokens) for logprobs in own) == 2


@ENDPOINTS
@KINDS_OF_REPLY
def test_truncate_top(server: Running, endpoint: str, stream: bool) -> None:
    seen = steps(server, {"kind": "truncate_top", "keep": 1}, endpoint, stream)
    assert [[token for token, _ in top] for _, _, top in seen] == [[token] for token in TOKENS]


@ENDPOINTS
@KINDS_OF_REPLY
@pytest.mark.parametrize("by_id", [False, True])
def test_drop_label(server: Running, endpoint: str, stream: bool, by_id: bool) -> None:
    [token_id] = server.state.served.models[0].tokenizer.encode(" B", add_special_tokens=False)
    seen = steps(server, {"kind": "drop_label", "label": token_id if by_id else " B"}, endpoint, stream)
    assert [token for token, _, _ in seen] == TOKENS
    assert [possible(top).keys() for _, _, top in seen] == [{" A", " é"}, {" é"}, {" A"}]


def test_drop_label_where_tokens_are_shown_as_ids(server: Running) -> None:
    [token_id] = server.state.served.models[0].tokenizer.encode(" B", add_special_tokens=False)
    extra = {"return_tokens_as_token_ids": True}
    reply = server.complete({"kind": "drop_label", "label": token_id}, extra_body=extra)
    assert all(f"token_id:{token_id}" not in top for top in reply.choices[0].logprobs.top_logprobs)
    assert reply.choices[0].logprobs.tokens[2] == f"token_id:{token_id}"


@ENDPOINTS
@KINDS_OF_REPLY
def test_drop_sampled(server: Running, endpoint: str, stream: bool) -> None:
    seen = steps(server, {"kind": "drop_sampled"}, endpoint, stream)
    assert [possible(top).keys() for _, _, top in seen] == [{" B", " é"}, {" B"}, {" A"}]


@ENDPOINTS
@KINDS_OF_REPLY
def test_nan(server: Running, endpoint: str, stream: bool) -> None:
    for _, logprob, top in steps(server, {"kind": "nan"}, endpoint, stream):
        assert math.isnan(logprob)
        assert all(math.isnan(value) for _, value in top)


@KINDS_OF_REPLY
def test_nan_of_one_token(server: Running, stream: bool) -> None:
    fault = {"kind": "nan", "token": " é"}
    (_, first, first_top), (_, second, _), (_, third, _) = steps(server, fault, "completions", stream)
    assert [math.isnan(value) for value in (first, second, third)] == [False, True, False]
    assert [token for token, value in first_top if math.isnan(value)] == [" é"]


def test_nan_is_a_bare_token(server: Running) -> None:
    assert '"token_logprobs":[NaN,NaN,NaN]' in server.post({"kind": "nan"}).text


@ENDPOINTS
@KINDS_OF_REPLY
def test_minus_infinity(server: Running, endpoint: str, stream: bool) -> None:
    for row, (_, _, top) in zip(ROWS, steps(server, {"kind": "minus_infinity"}, endpoint, stream), strict=True):
        assert [value for token, value in top if token not in row] == [-math.inf] * (4 - len(row))
        assert {token: value for token, value in top if token in row} == pytest.approx(logprobs_of(row), abs=1e-6)
    assert ":-Infinity" in server.post({"kind": "minus_infinity"}).text


@ENDPOINTS
@KINDS_OF_REPLY
def test_sentinel(server: Running, endpoint: str, stream: bool) -> None:
    for row, (_, _, top) in zip(ROWS, steps(server, {"kind": "sentinel"}, endpoint, stream), strict=True):
        assert [value for token, value in top if token not in row] == [-3.4e38] * (4 - len(row))
    own = steps(server, {"kind": "sentinel", "value": -100, "token": " B"}, endpoint, stream)
    assert [dict(top)[" B"] for _, _, top in own] == [-100] * 3
    assert own[2][1] == -100


@KINDS_OF_REPLY
def test_duplicate_keys_of_a_mapping(server: Running, stream: bool) -> None:
    text = server.post({"kind": "duplicate_keys"}, stream=stream).text
    documents = [json.loads(line.removeprefix("data: "), object_pairs_hook=list) for line in text.split("\n\n")[:1]]
    choice = dict(dict(documents[0])["choices"][0])
    first_top = dict(choice["logprobs"])["top_logprobs"][0]
    value = logprobs_of(ROWS[0])[" A"]
    assert [token for token, _ in first_top].count(" A") == 2
    assert [each for token, each in first_top if token == " A"] == pytest.approx([value, value - 1], abs=1e-6)


@KINDS_OF_REPLY
def test_duplicate_keys_of_a_list(server: Running, stream: bool) -> None:
    for token, logprob, top in steps(server, {"kind": "duplicate_keys"}, "chat", stream):
        assert [value for name, value in top if name == token] == pytest.approx([logprob, logprob - 1])


@ENDPOINTS
@KINDS_OF_REPLY
def test_sort_top_by_value(server: Running, endpoint: str, stream: bool) -> None:
    [token_id] = server.state.served.models[0].tokenizer.encode(" B", add_special_tokens=False)
    fault = {"kind": "sort_top_by_value"}
    ask = server.complete if endpoint == "completions" else server.chat
    extra = {"extra_body": {"allowed_token_ids": [token_id]}, "max_tokens": 1, "stream": stream}
    orders = []
    for faults in ([], [fault]):
        reply = ask(*faults, **extra)
        choices = [event.choices[0] for event in (reply if stream else [reply])]
        [(_, _, top)] = [step for choice in choices if choice.logprobs for step in _steps(choice.logprobs, endpoint)]
        orders.append([token for token, _ in top if token in ROWS[0]])
    assert orders == [[" B", " A", " é"], [" A", " B", " é"]]


@KINDS_OF_REPLY
@pytest.mark.parametrize(("value", "expected"), [("empty", []), (None, None), ("missing", "missing")])
def test_choices(server: Running, stream: bool, value: str | None, expected: Any) -> None:
    text = server.post({"kind": "choices", "value": value}, stream=stream).text
    events = [part.removeprefix("data: ") for part in text.split("\n\n") if part and part != "data: [DONE]"]
    assert len(events) == (3 if stream else 1)
    assert [json.loads(event).get("choices", "missing") for event in events] == [expected] * len(events)
    reply = server.complete({"kind": "choices"}, stream=stream)
    assert [event.choices for event in (reply if stream else [reply])] == [[]] * len(events)


def test_choices_of_one_event(server: Running) -> None:
    events = server.complete({"kind": "choices", "event": 1}, stream=True)
    assert [[choice.text for choice in event.choices] for event in events] == [[" A"], [], [" B"]]


def test_usage_of_a_full_reply(server: Running) -> None:
    assert server.complete({"kind": "usage"}).usage is None
    assert "usage" not in server.post({"kind": "usage"}).json()
    assert server.post({"kind": "usage", "value": None}).json()["usage"] is None


def test_usage_of_a_stream(server: Running) -> None:
    options = {"include_usage": True}
    assert len(server.complete(stream=True, stream_options=options)) == 4
    events = server.complete({"kind": "usage"}, stream=True, stream_options=options)
    assert [event.choices[0].text for event in events] == TOKENS
    *_, last = server.complete({"kind": "usage", "value": None}, stream=True, stream_options=options)
    assert (last.choices, last.usage) == ([], None)


def test_malformed_json_of_a_full_reply(server: Running) -> None:
    with pytest.raises(json.JSONDecodeError):
        server.complete({"kind": "malformed_json"})
    reply = server.post({"kind": "malformed_json"})
    assert reply.headers["content-length"] == str(len(reply.content))


@pytest.mark.parametrize(("fault", "good"), [({}, 0), ({"event": 2}, 2)])
def test_malformed_json_of_a_stream(server: Running, fault: dict[str, Any], good: int) -> None:
    with server.client({"kind": "malformed_json", **fault}) as client:
        stream = client.completions.create(model="stub", prompt="Answer:", max_tokens=3, temperature=0, stream=True)
        assert [next(stream).choices[0].text for _ in range(good)] == TOKENS[:good]
        with pytest.raises(json.JSONDecodeError):
            next(stream)


def test_faults_of_json_leave_errors_alone(server: Running) -> None:
    reply = server.post({"kind": "choices"}, {"kind": "nan"}, {"kind": "usage"}, logprobs=99)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "logprobs")


def test_faults_of_json_reach_token_ids_in_and_out() -> None:
    with serving(enable_scale_out=True) as server:
        model = server.state.served.models[0]
        from httpx import post

        body = {"token_ids": model.tokenizer.encode("x"), "sampling_params": {"max_tokens": 1, "logprobs": 3}}
        url = f"{server.url}/inference/v1/generate"
        faults = '[{"kind": "truncate_top", "keep": 2}]'
        plain = post(url, json=body).json()["choices"][0]["logprobs"]["content"][0]
        cut = post(url, json=body, headers={"X-Stub-Faults": faults}).json()["choices"][0]["logprobs"]["content"][0]
        assert len(plain["top_logprobs"]) == 3
        assert len(cut["top_logprobs"]) == 2
