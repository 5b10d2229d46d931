"""POST /inference/v1/generate and its companion: what the recordings don't show.

What is expected of vLLM was asked of a vLLM 0.32.0 with bigram512, max_model_len 512 and max_logprobs 20, unless said
otherwise.
"""

from __future__ import annotations

import asyncio
import json
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from starlette.testclient import TestClient

from stubserver.app import create_app
from stubserver.dialects.vllm.generate.protocol import GenerateReply, GenerateStreamEvent

SCRIPT = str(Path(__file__).parents[2] / "fixtures" / "bigram512" / "script.yaml")
PATH = "/inference/v1/generate"
ABORT = "/inference/v1/abort_requests"
PROMPT = [351, 29]
EOS = 0
MASKED = -9999.0
MASKS = {"return_sampling_mask": True, "logprobs_mode": "processed_logprobs"}


@cache
def cached_client(settings: str) -> TestClient:
    return TestClient(create_app(SCRIPT, **json.loads(settings)))


def client(**settings: Any) -> TestClient:
    return cached_client(json.dumps({"enable_scale_out": True, "max_model_len": 512, **settings}))


def body(fields: dict[str, Any], **sampling_params: Any) -> dict[str, Any]:
    """A request of two greedy tokens, unless it says otherwise."""
    given = {"temperature": 0, "max_tokens": 2, **sampling_params}
    return {"token_ids": PROMPT, "request_id": "r1", "sampling_params": given, **fields}


def post(fields: dict[str, Any] | None = None, *, server: TestClient | None = None, **sampling_params: Any) -> Any:
    """The reply to such a request, held to the declared shape."""
    reply = (server or client()).post(PATH, json=body(fields or {}, **sampling_params))
    assert reply.status_code == 200, reply.text
    TypeAdapter(GenerateReply).validate_python(reply.json())
    return reply.json()


def choice(fields: dict[str, Any] | None = None, **sampling_params: Any) -> Any:
    return post(fields, **sampling_params)["choices"][0]


def events(fields: dict[str, Any] | None = None, *, server: TestClient | None = None, **sampling_params: Any) -> Any:
    """The events of such a stream, [DONE] left out."""
    reply = (server or client()).post(PATH, json=body({"stream": True, **(fields or {})}, **sampling_params))
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = [event.removeprefix("data: ") for event in reply.text.split("\n\n") if event]
    assert lines.pop() == "[DONE]"
    found = [json.loads(line) for line in lines]
    for event in found:
        if "error" not in event:
            TypeAdapter(GenerateStreamEvent).validate_python(event)
    return found


def error(fields: dict[str, Any] | None = None, *, server: TestClient | None = None, **sampling_params: Any) -> Any:
    """The error of a refused request; its code is the reply's status."""
    reply = (server or client()).post(PATH, json=body(fields or {}, **sampling_params))
    assert reply.status_code == reply.json()["error"]["code"], reply.text
    return reply.json()["error"]


def bad_request(message: str, param: str | None = None) -> dict[str, Any]:
    return {"message": message, "type": "BadRequestError", "param": param, "code": 400}


def bad_sampling_params(*errors: str) -> dict[str, Any]:
    """What vLLM says of sampling parameters of wrong types: `not_an_instance` and what is wrong."""
    count = f"{len(errors)} validation errors:"
    return {
        "message": "\n  ".join([count, *errors]),
        "type": "Bad Request",
        "param": "body.sampling_params",
        "code": 400,
    }


def not_an_instance(given: str) -> str:
    return (
        "{'type': 'is_instance_of', 'loc': 'body.sampling_params', 'msg': 'Input should be an instance of "
        f"SamplingParams', 'input': '{given}', 'ctx': {{'class': 'SamplingParams'}}}}"
    )


# Whether it is served ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [PATH, ABORT])
def test_403_without_scale_out_whatever_is_sent(path: str) -> None:
    message = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
    expected = {"message": message, "type": "PermissionDeniedError", "param": None, "code": 403}
    server = client(enable_scale_out=False)
    for reply in (server.post(path, json=body({})), server.post(path, content=b"{")):
        assert (reply.status_code, reply.json()) == (403, {"error": expected})


def test_other_methods_get_405() -> None:
    assert client().get(PATH).status_code == 405
    assert client().get(ABORT).status_code == 405


# The request --------------------------------------------------------------------------------------------------------


def test_request_id_is_the_header_or_the_field_or_random() -> None:
    server = client()
    request = body({})
    assert server.post(PATH, json=request).json()["request_id"] == "generate-tokens-r1"
    with_header = server.post(PATH, json=request, headers={"x-request-id": "h"})
    assert with_header.json()["request_id"] == "generate-tokens-h"
    del request["request_id"]
    ids = {server.post(PATH, json=request).json()["request_id"] for _ in range(2)}
    assert len(ids) == 2
    assert all(len(each) == len("generate-tokens-") + 16 for each in ids)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (None, "None"),
        ([], "<list of 0 items>"),
        ("x", "x"),
    ],
)
def test_sampling_params_must_be_an_object(given: Any, shown: str) -> None:
    not_a_dict = (
        "{'type': 'dict_type', 'loc': 'body.sampling_params', 'msg': 'Input should be a valid dictionary', "
        f"'input': '{shown}'}}"
    )
    assert error({"sampling_params": given}) == bad_sampling_params(not_an_instance(shown), not_a_dict)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        (
            "temperature",
            "hot",
            "{'type': 'float_parsing', 'loc': 'body.sampling_params.temperature', 'msg': 'Input should be a valid "
            "number, unable to parse string as a number', 'input': 'hot'}",
        ),
        (
            "temperature",
            None,
            "{'type': 'float_type', 'loc': 'body.sampling_params.temperature', 'msg': 'Input should be a valid number', "
            "'input': 'None'}",
        ),
        (
            "top_k",
            1.5,
            "{'type': 'int_from_float', 'loc': 'body.sampling_params.top_k', 'msg': 'Input should be a valid integer, "
            "got a number with a fractional part', 'input': '1.5'}",
        ),
        (
            "logit_bias",
            {"x": 1},
            "{'type': 'int_parsing', 'loc': 'body.sampling_params.logit_bias.x', 'msg': 'Input should be a valid "
            "integer, unable to parse string as an integer', 'input': 'x'}",
        ),
        (
            "trace_decode_token_ids",
            ["a"],
            "{'type': 'int_parsing', 'loc': 'body.sampling_params.trace_decode_token_ids.0', 'msg': 'Input should be a "
            "valid integer, unable to parse string as an integer', 'input': 'a'}",
        ),
    ],
)
def test_wrong_types_in_sampling_params(name: str, value: Any, problem: str) -> None:
    given = {"temperature": 0, "max_tokens": 2, name: value}
    expected = bad_sampling_params(not_an_instance(f"<dict of {len(given)} items>"), problem)
    assert error({"sampling_params": given}) == expected


@pytest.mark.parametrize(
    ("fields", "sampling_params", "message", "param"),
    [
        (
            {},
            {"temperature": -1},
            "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)",
            "temperature",
        ),
        # Sampling parameters are made before the model is looked for.
        (
            {"model": "nope"},
            {"temperature": -1},
            "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)",
            "temperature",
        ),
        ({}, {"n": 0}, "n must be at least 1, got 0.", None),
        ({}, {"n": 2}, "n must be 1 when using greedy sampling, got 2.", None),
        ({}, {"max_tokens": 0}, "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)", "max_tokens"),
        ({}, {"min_tokens": 5}, "min_tokens must be less than or equal to max_tokens=2, got 5.", None),
        (
            {},
            {"max_tokens": None, "min_tokens": 600},
            "min_tokens must be less than or equal to max_tokens=510, got 600.",
            None,
        ),
        (
            {},
            {"logprobs": -2},
            "logprobs must be non-negative or -1, got -2. (parameter=logprobs, value=-2)",
            "logprobs",
        ),
        (
            {},
            {"prompt_logprobs": -2},
            "prompt_logprobs must be non-negative or -1, got -2. (parameter=prompt_logprobs, value=-2)",
            "prompt_logprobs",
        ),
        (
            {},
            {"logprobs": -1},
            "Requested sample logprobs of 512, which is greater than max allowed: 20 (parameter=logprobs, value=512)",
            "logprobs",
        ),
        (
            {},
            {"logprobs": 129, "logprob_token_ids": list(range(129))},
            "Requested sample logprobs of 129, which is greater than max allowed: 20 (parameter=logprobs, value=129)",
            "logprobs",
        ),
        (
            {},
            {"logprob_token_ids": list(range(129))},
            "Requested logprob_token_ids of length 129, which is greater than max allowed: 128 "
            "(parameter=logprob_token_ids, value=129)",
            "logprob_token_ids",
        ),
        (
            {},
            {"logprobs": 2, "logprob_token_ids": []},
            "When both logprobs and logprob_token_ids are set, logprobs must equal len(logprob_token_ids). "
            "Got logprobs=2, len(logprob_token_ids)=0. (parameter=logprob_token_ids, value=0)",
            "logprob_token_ids",
        ),
        ({}, {"stop": ""}, "stop cannot contain an empty string.", None),
        (
            {},
            {"stop": "x", "detokenize": False},
            "stop strings are only supported when detokenize is True. Set detokenize=True to use stop.",
            None,
        ),
        ({}, {"seed": 2**70}, "can't serialize ints < -2**63 or > 2**64 - 1", None),
        ({}, {"stop_token_ids": [2**70]}, "can't serialize ints < -2**63 or > 2**64 - 1", None),
        ({"token_ids": [2**70]}, {}, f"Token id {2**70} is out of vocabulary", None),
        (
            {"token_ids": [1] * 513},
            {},
            "The decoder prompt (length 513) is longer than the maximum model length of 512. Make sure that "
            "`max_model_len` is no smaller than the number of text tokens.",
            None,
        ),
        (
            {"token_ids": [1] * 512},
            {"max_tokens": None},
            "The decoder prompt (length 512) plus the number of requested output tokens (at least 1) is longer than "
            "the maximum model length of 512. Make sure that `max_model_len` is no smaller than the number of text "
            "tokens (prompt + requested output tokens).",
            None,
        ),
        (
            {"cache_salt": ""},
            {},
            "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)",
            "cache_salt",
        ),
        ({"content_parts": [{"type": "image_url"}]}, {}, "bigram is not a multimodal model", None),
    ],
)
def test_refused_values(
    fields: dict[str, Any], sampling_params: dict[str, Any], message: str, param: str | None
) -> None:
    assert error(fields, **sampling_params) == bad_request(message, param)


def test_text_that_is_no_unicode_is_refused() -> None:
    content = json.dumps(body({}, stop="\ud800")).encode()
    reply = client().post(PATH, content=content, headers={"content-type": "application/json"})
    message = "'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not allowed"
    assert reply.json()["error"] == bad_request(message)


def test_text_needs_detokenize() -> None:
    found = error({"output_mode": "text"}, detokenize=False)
    assert found["type"] == "Bad Request"
    assert "output_mode='text' requires sampling_params.detokenize to be true" in found["message"]


def test_negative_ids_and_no_ids_are_schema_errors() -> None:
    assert error({"token_ids": [-1]})["param"] == "body.token_ids"
    assert error({"token_ids": []})["param"] == "body.token_ids"


def test_what_the_stub_lacks_is_refused_by_name() -> None:
    found = error({}, prompt_logprob_token_ids=[[1]])
    assert found["param"] == "prompt_logprob_token_ids"
    assert "not supported by stubserver" in found["message"]


def test_unknown_model() -> None:
    found = error({"model": "nope"})
    assert (found["code"], found["type"], found["param"]) == (404, "NotFoundError", "model")


@pytest.mark.parametrize("name", ["watermarking", "flat_logprobs", "skip_clone", "no_field_of_vllm"])
def test_fields_without_effect(name: str) -> None:
    assert choice({"priority": 1}, **{name: True}) == choice()


# How many tokens ----------------------------------------------------------------------------------------------------


def without_max_tokens(server: TestClient | None = None, **sampling_params: Any) -> Any:
    given = {"sampling_params": {"temperature": 0, **sampling_params}}
    return post(given, server=server)["choices"][0]


def test_max_tokens_left_out_is_as_many_as_fit() -> None:
    forever = {"allowed_token_ids": [276], "ignore_eos": True}
    assert len(without_max_tokens(**forever)["token_ids"]) == 510


def test_max_tokens_left_out_is_the_servers_cap() -> None:
    server = client(override_generation_config={"max_new_tokens": 3})
    assert len(without_max_tokens(server)["token_ids"]) == 3


def test_max_tokens_null_ignores_the_servers_cap() -> None:
    server = client(override_generation_config={"max_new_tokens": 3})
    forever = {"allowed_token_ids": [276], "ignore_eos": True, "max_tokens": None}
    assert len(without_max_tokens(server, **forever)["token_ids"]) == 510


def test_a_prompt_too_long_for_the_default() -> None:
    found = error({"token_ids": [1] * 513, "sampling_params": {"temperature": 0}})
    assert found == bad_request("Input length (513) exceeds model's maximum context length (512).")


def test_the_servers_sampling_defaults_do_not_apply() -> None:
    # At temperature 1: with the server's 0.01 it would be a hundred times as much.
    settings = {"logprobs_mode": "processed_logits", "override_generation_config": {"temperature": 0.01}}
    given = {"sampling_params": {"max_tokens": 1, "logprobs": 1, "allowed_token_ids": [260], "ignore_eos": True}}
    reply = post(given, server=client(**settings))
    assert reply["choices"][0]["logprobs"]["content"][0]["logprob"] == pytest.approx(7.78125)


def test_logit_bias_is_not_clamped() -> None:
    server = client(logprobs_mode="processed_logits")
    reply = post(server=server, logit_bias={"276": 200, "260": 193}, logprobs=2)
    first, second = reply["choices"][0]["logprobs"]["content"]
    assert first["top_logprobs"] == [
        {"token_id": 260, "logprob": 200.78125, "rank": 1},
        {"token_id": 276, "logprob": 194.390625, "rank": 2},
    ]
    assert second["token_id"] == 276


# The reply ----------------------------------------------------------------------------------------------------------


def test_logprobs_show_the_sampled_token_and_the_top_ones_up_to_the_number() -> None:
    assert choice()["logprobs"] is None
    for asked, shown in ((0, 1), (1, 1), (3, 3)):
        content = choice(logprobs=asked)["logprobs"]["content"]
        assert [entry["token_id"] for entry in content] == [260, 478]
        assert [len(entry["top_logprobs"]) for entry in content] == [shown, shown]
    everything = post(server=client(max_logprobs=-1), logprobs=-1)["choices"][0]["logprobs"]["content"]
    assert len(everything[0]["top_logprobs"]) == 512


def test_the_sampled_token_comes_first_and_the_last_top_one_falls_out() -> None:
    (entry,) = choice(allowed_token_ids=[276], max_tokens=1, logprobs=2)["logprobs"]["content"]
    assert (entry["token_id"], entry["rank"]) == (276, 498)
    assert [each["token_id"] for each in entry["top_logprobs"]] == [276, 260]


def test_chosen_ids_alone_show_no_logprobs() -> None:
    assert choice(logprob_token_ids=[276, 327])["logprobs"] is None


def test_chosen_ids_take_the_place_of_the_top_ones() -> None:
    entry = choice(logprob_token_ids=[276, 327], logprobs=2)["logprobs"]["content"][0]
    assert [each["token_id"] for each in entry["top_logprobs"]] == [260, 276]
    assert entry["top_logprobs"][1]["logprob"] == pytest.approx(-15.278126, abs=2e-5)


def test_text_mode() -> None:
    found = choice({"output_mode": "text"}, logprobs=1)
    assert (found["text"], found["token_ids"]) == (" nword71", [260, 478])
    first = found["logprobs"]["content"][0]
    assert (first["token"], first["bytes"]) == (" n", [32, 110])
    assert first["top_logprobs"] == [{name: first[name] for name in ("token", "logprob", "bytes")}]


def test_tokens_as_token_ids_in_text_mode() -> None:
    reply = post({"output_mode": "text"}, server=client(return_tokens_as_token_ids=True), logprobs=1)
    (found,) = reply["choices"]
    assert found["text"] == " nword71"
    assert found["logprobs"]["content"][0]["token"] == "token_id:260"
    assert found["logprobs"]["content"][0]["bytes"] is None


@pytest.mark.parametrize(
    ("sampling_params", "text", "stop_reason"),
    [
        ({"stop": "word"}, " n", "word"),
        ({"stop": "word", "include_stop_str_in_output": True}, " nword", "word"),
        ({"stop_token_ids": [478]}, " n", 478),
    ],
)
def test_stops_keep_their_token_ids(sampling_params: dict[str, Any], text: str, stop_reason: int | str) -> None:
    found = choice({"output_mode": "text"}, max_tokens=8, **sampling_params)
    assert (found["text"], found["token_ids"]) == (text, [260, 478])
    assert (found["finish_reason"], found["stop_reason"]) == ("stop", stop_reason)
    assert found["weight_versions"] == [{"version": "default", "start": 0, "end": 2}]


def test_the_end_of_sequence_is_among_the_token_ids() -> None:
    found = choice({"output_mode": "text"}, logit_bias={str(EOS): 100})
    assert (found["text"], found["token_ids"], found["finish_reason"]) == ("", [EOS], "stop")


def test_structured_outputs() -> None:
    found = choice({"output_mode": "text"}, structured_outputs={"choice": [" Yes", " No"]}, max_tokens=8)
    assert (found["text"], found["token_ids"], found["finish_reason"]) == (" Yes", [334, EOS], "stop")


def test_prompt_logprobs() -> None:
    assert post(prompt_logprobs=0)["prompt_logprobs"] == [
        None,
        {"29": {"logprob": pytest.approx(-17.29398, abs=2e-5), "rank": 491, "decoded_token": ":"}},
    ]
    undecoded = post(prompt_logprobs=1, detokenize=False)["prompt_logprobs"]
    assert [entry["decoded_token"] for entry in undecoded[1].values()] == [None, None]


def test_details_of_usage() -> None:
    reply = post(server=client(enable_prompt_tokens_details=True))
    details = {"cached_tokens": 0, "created_cache_tokens": None, "multimodal_tokens": None}
    assert reply["usage"]["prompt_tokens_details"] == details


# Streams ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output_mode", ["tokens", "text"])
@pytest.mark.parametrize(
    "sampling_params",
    [
        {"logprobs": 2, "max_tokens": 5},
        {"stop": "word", "max_tokens": 8},
        {"temperature": 1, "n": 3, "seed": 4, "max_tokens": 4},
        {"temperature": 1, "top_k": 3, "seed": 4, "max_tokens": 4, "logprobs": 0},
    ],
)
def test_a_full_reply_is_the_fold_of_the_stream(output_mode: str, sampling_params: dict[str, Any]) -> None:
    fields = {"output_mode": output_mode}
    settings = {**MASKS} if "top_k" in sampling_params else {}
    full = post(fields, server=client(**settings), **sampling_params)["choices"]
    folded: dict[int, dict[str, Any]] = {}
    for event in events(fields, server=client(**settings), **sampling_params):
        (part,) = event["choices"]
        before = folded.setdefault(part["index"], part)
        if before is part:
            continue
        joined = {**part, "token_ids": before["token_ids"] + part["token_ids"]}
        if output_mode == "text":
            joined["text"] = before["text"] + part["text"]
        if part["logprobs"]:
            joined["logprobs"] = {"content": before["logprobs"]["content"] + part["logprobs"]["content"]}
        if part["sampling_mask"]:
            joined["sampling_mask"] = before["sampling_mask"] + part["sampling_mask"]
        folded[part["index"]] = joined
    assert [folded[index] for index in sorted(folded)] == full


def test_weight_versions_come_with_the_finish_reason() -> None:
    spans = [event["choices"][0]["weight_versions"] for event in events(max_tokens=3)]
    assert spans == [None, None, [{"version": "default", "start": 0, "end": 3}]]


def test_prompt_token_ids_come_with_the_first_event() -> None:
    first, second = events({"return_token_ids": True})
    assert first["prompt_token_ids"] == PROMPT
    assert "prompt_token_ids" not in second


def test_usage_of_a_stream() -> None:
    counts = {"prompt_tokens": 2, "total_tokens": 4, "completion_tokens": 2}
    *parts, last = events({"stream_options": {"include_usage": True}})
    assert [part["usage"] for part in parts] == [None, None]
    assert last == {"request_id": "generate-tokens-r1", "usage": counts, "output_mode": "tokens", "choices": []}
    options = {"include_usage": True, "continuous_usage_stats": True}
    *parts, _ = events({"stream_options": options})
    assert [part["usage"]["completion_tokens"] for part in parts] == [1, 2]
    assert parts[1]["usage"] == {**counts, "prompt_tokens_details": None, "completion_tokens_details": None}


def test_forced_usage_is_for_other_routes() -> None:
    assert len(events(server=client(enable_force_include_usage=True))) == 2


def test_an_error_of_the_engine_is_an_event() -> None:
    message = "Requested sample logprobs of 21, which is greater than max allowed: 20 (parameter=logprobs, value=21)"
    assert events(logprobs=21) == [{"error": bad_request(message, "logprobs")}]


def test_prompt_logprobs_are_computed_for_nobody_in_a_stream() -> None:
    assert len(events(prompt_logprobs=1)) == 2


# Sampling masks -----------------------------------------------------------------------------------------------------


def test_without_the_setting_masks_are_null() -> None:
    assert choice(temperature=1, top_k=2)["sampling_mask"] is None


def test_masks_of_bigram512() -> None:
    reply = post(server=client(**MASKS), temperature=1, top_k=2, seed=1, logprobs=2)
    (found,) = reply["choices"]
    # After 29 the best are 260 and 15.
    assert found["sampling_mask"][0] == [15, 260]
    assert [len(mask) for mask in found["sampling_mask"]] == [2, 2]
    for entry, mask in zip(found["logprobs"]["content"], found["sampling_mask"], strict=True):
        assert sorted(each["token_id"] for each in entry["top_logprobs"]) == mask
        assert sum(np.exp([each["logprob"] for each in entry["top_logprobs"]])) == pytest.approx(1, abs=1e-5)


def test_masks_come_without_logprobs_too() -> None:
    (found,) = post(server=client(**MASKS), temperature=1, top_k=1)["choices"]
    assert found["logprobs"] is None
    assert found["sampling_mask"] == [[260], [478]]


UNSAID = {"message": "", "type": "InternalServerError", "param": None, "code": 500}
"""What vLLM's server makes of a plain ValueError inside its engine."""


@pytest.mark.parametrize(
    "sampling_params",
    [{"temperature": 0, "top_k": 5}, {"temperature": 0}, {"temperature": 1}, {"temperature": 1, "top_k": -1}],
)
def test_requests_that_masks_refuse(sampling_params: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    server = client(**MASKS)
    assert error(server=server, **sampling_params) == UNSAID
    assert "sampling distribution replay requires" in caplog.text
    assert events(server=server, **sampling_params) == [{"error": UNSAID}]
    other = server.post("/v1/completions", json={"prompt": "Answer:", **sampling_params})
    assert (other.status_code, other.json()["error"]) == (500, UNSAID)


@hypothesis_settings(max_examples=25, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "temperature": st.floats(0.3, 2),
            "top_k": st.integers(1, 40),
            "top_p": st.floats(0.1, 1),
            "min_p": st.floats(0, 0.1),
            "seed": st.integers(0, 2**31),
        }
    )
)
def test_a_client_can_rely_on_masks(sampling_params: dict[str, Any]) -> None:
    """The token is in its mask, the logprobs of the mask sum to 1, and the raw ones give them when renormalised."""
    everything = {"logprobs": -1, "max_tokens": 3, "ignore_eos": True, **sampling_params}
    (sampled,) = post(server=client(max_logprobs=-1, **MASKS), **everything)["choices"]
    forced = json.dumps([sampled["token_ids"]])
    raw_reply = client(max_logprobs=-1).post(
        PATH, json=body({}, **everything), headers={"x-stub-force-token-ids": forced}
    )
    raw_contents = raw_reply.json()["choices"][0]["logprobs"]["content"]
    contents = sampled["logprobs"]["content"]
    for token_id, mask, entry, raw in zip(
        sampled["token_ids"], sampled["sampling_mask"], contents, raw_contents, strict=True
    ):
        values = {each["token_id"]: each["logprob"] for each in entry["top_logprobs"] if each["logprob"] > MASKED}
        assert sorted(values) == mask
        assert token_id in mask
        assert sum(np.exp(list(values.values()))) == pytest.approx(1, abs=1e-5)
        raw_values = {each["token_id"]: each["logprob"] for each in raw["top_logprobs"]}
        scaled = np.array([raw_values[each] for each in mask]) / sampling_params["temperature"]
        renormalised = scaled - np.log(np.exp(scaled).sum())
        assert renormalised == pytest.approx([values[each] for each in mask], abs=2e-5)


# Trace replay -------------------------------------------------------------------------------------------------------


def replay(trace: list[int], **sampling_params: Any) -> Any:
    return post(server=client(enable_trace_replay=True), trace_decode_token_ids=trace, **sampling_params)["choices"][0]


def test_a_trace_is_followed_with_its_real_logprobs() -> None:
    found = replay([276, 327], logprobs=2)
    assert (found["token_ids"], found["finish_reason"]) == ([276, 327], "length")
    first = found["logprobs"]["content"][0]
    assert (first["token_id"], first["rank"]) == (276, 498)
    assert first["logprob"] == pytest.approx(-15.278126, abs=2e-5)
    assert first["top_logprobs"][1]["token_id"] == 260


def test_a_trace_ends_at_max_tokens() -> None:
    assert replay([276, 327, 328], max_tokens=2)["token_ids"] == [276, 327]
    assert replay([276], max_tokens=5)["token_ids"] == [276]


def test_nothing_else_ends_a_trace() -> None:
    trace = [EOS, 478, 276]
    found = replay(trace, max_tokens=9, stop=["word"], stop_token_ids=[478], min_tokens=9)
    assert (found["token_ids"], found["finish_reason"], found["stop_reason"]) == (trace, "length", None)


def test_a_trace_is_cut_to_the_context() -> None:
    server = client(enable_trace_replay=True, max_model_len=5)
    found = post(server=server, trace_decode_token_ids=[1, 2, 3, 4, 5], max_tokens=9)["choices"][0]
    assert (found["token_ids"], found["finish_reason"]) == ([1, 2, 3], "length")


def test_a_trace_in_a_stream() -> None:
    server = client(enable_trace_replay=True)
    parts = events(server=server, trace_decode_token_ids=[276, 327])
    assert [part["choices"][0]["token_ids"] for part in parts] == [[276], [327]]


def test_a_trace_beside_masks_keeps_the_masks_of_what_would_have_been_drawn() -> None:
    server = client(enable_trace_replay=True, **MASKS)
    found = post(server=server, trace_decode_token_ids=[276], temperature=1, top_k=2)["choices"][0]
    assert (found["token_ids"], found["sampling_mask"]) == ([276], [[15, 260]])


@pytest.mark.parametrize(
    ("sampling_params", "message", "param"),
    [
        (
            {"trace_decode_token_ids": [1]},
            "trace_decode_token_ids is set but trace replay is not enabled. Start the engine with "
            "--enable-trace-replay to use it.",
            None,
        ),
        (
            {"trace_decode_token_ids": [9999]},
            "token_id(s) [9999] in trace_decode_token_ids contain out-of-vocab token ids. Vocabulary size: 512 "
            "(parameter=trace_decode_token_ids, value=[9999])",
            "trace_decode_token_ids",
        ),
    ],
)
def test_refused_traces(sampling_params: dict[str, Any], message: str, param: str | None) -> None:
    assert error(**sampling_params) == bad_request(message, param)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"trace_decode_token_ids": []}, "must be a non-empty list."),
        ({"n": 2, "temperature": 1}, "requires n=1."),
        ({"trace_decode_token_ids": [-1]}, "must contain non-negative integers."),
        ({"prompt_logprobs": 1}, "is not supported with prompt_logprobs."),
        ({"prompt_logprob_token_ids": [[1]]}, "is not supported with prompt_logprob_token_ids."),
        ({"structured_outputs": {"choice": ["a"]}}, "is not supported with structured outputs."),
        ({"bad_words": ["word71"]}, "is not supported with bad_words."),
        (
            {"repetition_detection": {"max_pattern_size": 2, "min_count": 2}},
            "is not supported with repetition_detection.",
        ),
        ({"thinking_token_budget": 3}, "is not supported with thinking_token_budget."),
    ],
)
def test_traces_at_which_the_engine_fails(fields: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture) -> None:
    """Enabled or not. The log has vLLM's words, the client none."""
    assert error(**{"trace_decode_token_ids": [1], **fields}) == UNSAID
    assert f"trace_decode_token_ids {why}" in caplog.text


def test_a_trace_and_speculative_decoding(caplog: pytest.LogCaptureFixture) -> None:
    server = client(enable_trace_replay=True, speculative_config={"method": "ngram"})
    assert error(server=server, trace_decode_token_ids=[1]) == UNSAID
    assert "trace_decode_token_ids is not supported with speculative decoding." in caplog.text


def test_completions_do_not_know_traces() -> None:
    request = {"prompt": "Answer:", "temperature": 0, "max_tokens": 2}
    traced = client().post("/v1/completions", json={**request, "trace_decode_token_ids": [276]})
    assert traced.json()["choices"] == client().post("/v1/completions", json=request).json()["choices"]


# Aborting -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_ids", [["nobody"], [], "nobody"])
def test_aborting_what_is_not_running_is_no_error(request_ids: Any) -> None:
    reply = client().post(ABORT, json={"request_ids": request_ids})
    assert (reply.status_code, reply.content) == (200, b"")
    assert "content-type" not in reply.headers


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}", "Missing 'request_ids' in request body"),
        (b'{"request_ids": null}', "Missing 'request_ids' in request body"),
        (b"", "JSON decode error: Expecting value: line 1 column 1 (char 0)"),
        (
            b"{",
            "JSON decode error: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
    ],
)
def test_bodies_that_abort_nothing(content: bytes, message: str) -> None:
    expected = {"message": message, "type": "Bad Request", "param": None, "code": 400}
    assert client().post(ABORT, content=content).json() == {"error": expected}


SLOW = {"X-Stub-Faults": '[{"kind": "latency", "between": 0.02}]'}
ABORTED = {
    PATH: (
        body({"stream": True}, max_tokens=400, ignore_eos=True, logprobs=1),
        "generate-tokens-r1",
        {"finish_reason": "abort", "token_ids": [], "logprobs": {"content": []}},
    ),
    "/v1/completions": (
        {"prompt": PROMPT, "stream": True, "max_tokens": 400, "temperature": 0, "logprobs": 1, "ignore_eos": True},
        "cmpl-r1-0",
        {
            "text": "",
            "finish_reason": "abort",
            "logprobs": {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []},
        },
    ),
    "/v1/chat/completions": (
        {"messages": [{"role": "user", "content": "A"}], "stream": True, "max_tokens": 400, "temperature": 0}
        | {"logprobs": True, "ignore_eos": True},
        "chatcmpl-r1",
        {"delta": {"content": ""}, "finish_reason": "abort", "logprobs": {"content": []}},
    ),
}
"""Path → (request, id to abort, the last event's choice). Asked of the real server by hand: it takes these ids only."""


@pytest.mark.parametrize("path", ABORTED)
async def test_an_aborted_stream_ends_with_the_reason(path: str) -> None:
    request, request_id, last_choice = ABORTED[path]
    transport = httpx.ASGITransport(create_app(SCRIPT, enable_scale_out=True, max_model_len=512))
    async with httpx.AsyncClient(transport=transport, base_url="http://stub") as server:
        stream = asyncio.create_task(server.post(path, json={**request, "request_id": "r1"}, headers=SLOW))
        while (await server.get("/load")).json()["server_load"] == 0:
            await asyncio.sleep(0)
        await server.post(ABORT, json={"request_ids": ["r1", "nobody"]})  # not the id that the engine knows
        await asyncio.sleep(0.03)
        assert not stream.done()
        await server.post(ABORT, json={"request_ids": [request_id]})
        *_, last, done, _ = (await stream).text.split("\n\n")
        assert done == "data: [DONE]"
        assert json.loads(last.removeprefix("data: "))["choices"][0].items() >= last_choice.items()
        metrics = (await server.get("/metrics")).text
    # vLLM doesn't count it as finished either.
    assert 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="bigram"} 0.0' in metrics


# What vLLM checks, and when ---------------------------------------------------------------------------------------


def test_parts_that_are_no_media_are_passed_over() -> None:
    assert choice({"content_parts": [{"type": "text", "text": "x"}]}) == choice()
    parts = [{"type": "image_url", "url": "data:image/png;base64,AAAA"}]
    assert error({"content_parts": parts}) == bad_request("bigram is not a multimodal model")


def test_features_are_of_their_shape_and_there_is_no_room_for_any() -> None:
    assert choice({"features": {"mm_hashes": {}, "mm_placeholders": {}}}) == choice()
    assert error({"features": {}})["param"] == "body.features.mm_hashes"
    uneven = error({"features": {"mm_hashes": {"image": ["a"]}, "mm_placeholders": {}}})
    assert "mm_hashes and mm_placeholders must use the same modalities" in uneven["message"]
    places = {"image": [{"offset": 0, "length": 1}]}
    image = {"features": {"mm_hashes": {"image": ["a"]}, "mm_placeholders": places}}
    message = (
        "The decoder prompt contains a(n) image item with 1 embedding tokens, which exceeds the pre-allocated encoder "
        "cache size 0. Please reduce the input size or increase the encoder cache size by setting "
        "--limit-mm-per-prompt at startup."
    )
    assert error(image) == bad_request(message)
    assert events(image) == [{"error": bad_request(message)}]


def test_flat_logprobs_have_nothing_for_the_first_token_in_their_own_way() -> None:
    assert post(prompt_logprobs=0)["prompt_logprobs"][0] is None
    assert post(prompt_logprobs=0, flat_logprobs=True)["prompt_logprobs"][0] == {}


def test_min_tokens_are_held_against_the_servers_cap_when_the_engine_takes_the_request() -> None:
    server = client(override_generation_config={"max_new_tokens": 12})
    request = {"token_ids": PROMPT, "sampling_params": {"min_tokens": 13}}
    message = "min_tokens must be less than or equal to max_tokens=12, got 13."
    assert server.post(PATH, json=request).json() == {"error": bad_request(message)}
    assert f'"{message}"' in server.post(PATH, json={**request, "stream": True}).text


def test_scores_of_chosen_tokens_are_not_streamed() -> None:
    message = "prompt_logprob_token_ids are not available when stream=true."
    reply = client().post(PATH, json=body({"stream": True}, prompt_logprob_token_ids=[[1]]))
    assert (reply.status_code, reply.json()["error"]) == (400, bad_request(message))


def test_values_of_nothing_are_masked_ones() -> None:
    """As asked of vLLM 0.32.0: here NaN goes out as what -inf does."""
    server = client(logprobs_mode="processed_logprobs")
    found = choice(server=server, allowed_token_ids=[0], min_tokens=2, logprobs=3)
    (entry,) = found["logprobs"]["content"]
    assert [(top["token_id"], top["logprob"], top["rank"]) for top in entry["top_logprobs"]] == [
        (0, -9999.0, 1),
        (1, -9999.0, 2),
        (2, -9999.0, 3),
    ]
