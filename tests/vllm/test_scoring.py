"""POST /generative_scoring: values that can be recomputed by hand, and vLLM's refusals."""

import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from stubserver.app import create_app

FIXTURES = Path(__file__).parents[2] / "fixtures"
TABLE = np.load(FIXTURES / "bigram512" / "logits.npz")["table"].astype(np.float64)

A, B, SPACE_A, SPACE_B, STARS = range(5)
T6_SUM = sum(math.exp(logit) for logit in (0.5, 1.5, 3, 4, 6, -1))


@cache
def client(script="bigram512/script.yaml", **settings):
    return TestClient(create_app(FIXTURES / script, **settings), raise_server_exceptions=False)


def ask(body, script="bigram512/script.yaml", headers=None, **settings):
    return client(script, **settings).post("/generative_scoring", json=body, headers=headers)


def scores(body, script="bigram512/script.yaml", **settings):
    reply = ask(body, script, **settings)
    assert reply.status_code == 200, reply.text
    data = reply.json()["data"]
    assert [(item["index"], item["object"]) for item in data] == [(number, "score") for number in range(len(data))]
    return [item["score"] for item in data]


def refusal(body, **settings):
    reply = ask(body, **settings)
    assert reply.status_code >= 400, reply.text
    return reply.status_code, reply.json()["error"]


# Values ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "apply_softmax", "score"),
    [
        ([SPACE_B, SPACE_A], True, 1 / (1 + math.exp(-1))),
        ([SPACE_A, SPACE_B], True, 1 / (1 + math.exp(1))),
        ([SPACE_B, SPACE_A], False, math.exp(4) / T6_SUM),
        ([STARS], True, 1.0),
        ([STARS], False, math.exp(6) / T6_SUM),
        ([SPACE_B, SPACE_A, SPACE_A, SPACE_B], True, 1 / (1 + math.exp(-1))),  # each label counts once
    ],
)
def test_six_tokens(labels, apply_softmax, score):
    body = {"query": "A", "items": ["B"], "label_token_ids": labels, "apply_softmax": apply_softmax}
    assert scores(body, "scripts/t6.yaml") == pytest.approx([score], abs=1e-6)


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
@pytest.mark.parametrize("apply_softmax", [True, False])
@pytest.mark.parametrize("item_first", [True, False])
def test_bigram_table(mode, apply_softmax, item_first):
    labels, query, items = [334, 332, 276], [300, 351], [[276], [327, 29], []]
    body = {
        "query": query,
        "items": items,
        "label_token_ids": labels,
        "apply_softmax": apply_softmax,
        "item_first": item_first,
    }
    expected = []
    for item in items:
        last = ([*item, *query] if item_first else [*query, *item])[-1]
        weights = np.exp(TABLE[last])
        expected.append(weights[labels[0]] / (weights[labels].sum() if apply_softmax else weights.sum()))
    assert scores(body, logprobs_mode=mode) == pytest.approx(expected, abs=1e-6)


def test_defaults_for_requests_have_no_say():
    body = {"query": [300], "items": [[276]], "label_token_ids": [334, 332], "apply_softmax": False}
    plain = scores(body, logprobs_mode="processed_logprobs")
    app = create_app(
        FIXTURES / "bigram512" / "script.yaml",
        logprobs_mode="processed_logprobs",
        override_generation_config={"temperature": 5.0, "top_k": 1},
    )
    assert TestClient(app).post("/generative_scoring", json=body).json()["data"][0]["score"] == plain[0]


def test_logits_modes_take_the_logits_for_logprobs():
    body = {"query": "A", "items": ["B"], "label_token_ids": [SPACE_B, SPACE_A]}
    softmax = scores(body, "scripts/t6.yaml", logprobs_mode="raw_logits")
    assert softmax == pytest.approx([1 / (1 + math.exp(-1))], abs=1e-6)
    plain = scores({**body, "apply_softmax": False}, "scripts/t6.yaml", logprobs_mode="raw_logits")
    assert plain == pytest.approx([math.exp(4)], rel=1e-6)


def test_text_is_tokenized_part_by_part():
    tokenize = client().post("/tokenize", json={"prompt": " Yes"}).json()["tokens"]
    by_text = scores({"query": "Answer:", "items": [" Yes", ""], "label_token_ids": [334, 332]})
    by_ids = scores({"query": "Answer:", "items": [tokenize, []], "label_token_ids": [334, 332]})
    assert by_text == by_ids


def test_a_long_prompt_is_cut_at_its_end():
    body = {"query": [1] * 511 + [334] * 10, "items": [[332]], "label_token_ids": [334, 332]}
    reply = ask(body).json()
    weights = np.exp(TABLE[1])
    assert reply["data"][0]["score"] == pytest.approx(weights[334] / weights[[334, 332]].sum(), abs=1e-6)
    assert reply["usage"]["prompt_tokens"] == 511


def test_shape():
    body = {"query": [300], "items": [[276], [1, 2]], "label_token_ids": [334], "request_id": "abc", "priority": 3}
    reply = ask(body).json()
    assert (reply["id"], reply["object"], reply["model"]) == ("generative-scoring-abc", "list", "bigram")
    assert reply["usage"] == {
        "prompt_tokens": 5,
        "total_tokens": 7,
        "completion_tokens": 2,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }
    assert ask(body, headers={"X-Request-Id": "mine"}).json()["id"] == "generative-scoring-mine"


def test_the_script_sees_query_and_item():
    script = {
        "rules": [
            {"when": {"prompt": "Is it blue? Yes"}, "steps": [{"probs": {" Yes": 0.75, " No": 0.25}}]},
            {"when": {"prompt": {"contains": "red"}}, "steps": [{"probs": {" Yes": 0.25, " No": 0.75}}]},
        ]
    }
    app = TestClient(create_app(script))
    yes, no = (app.post("/tokenize", json={"prompt": text}).json()["tokens"][0] for text in (" Yes", " No"))
    body = {"query": "Is it blue?", "items": [" Yes", " red"], "label_token_ids": [yes, no]}
    data = app.post("/generative_scoring", json=body).json()["data"]
    assert [item["score"] for item in data] == pytest.approx([0.75, 0.25], abs=1e-6)
    unscripted = app.post("/generative_scoring", json={**body, "items": ["?"]})
    assert (unscripted.status_code, unscripted.json()["error"]["type"]) == (404, "UnscriptedError")


# Refusals, in the words of a running vLLM 0.32.0 ----------------------------------------------------------------------

BODY = {"query": "a", "items": ["b"], "label_token_ids": [1]}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"label_token_ids": [-1]},
            "label_token_id -1 is out of vocabulary range [0, 512). Please provide valid token IDs.",
        ),
        (
            {"items": [], "label_token_ids": [512]},
            "label_token_id 512 is out of vocabulary range [0, 512). Please provide valid token IDs.",
        ),
        ({"items": [], "label_token_ids": []}, "label_token_ids must contain at least one token ID."),
        ({"query": "", "items": [""]}, "The decoder prompt cannot be empty"),
        ({"query": [], "items": [[1], []]}, "The decoder prompt cannot be empty"),
        ({"query": [600], "items": [[]]}, "Token id 600 is out of vocabulary"),
        ({"query": [-1]}, "Token id -1 is out of vocabulary"),
        (
            {"label_token_ids": list(range(24))},
            "Requested sample logprobs of 24, which is greater than max allowed: 20 (parameter=logprobs, value=24)",
        ),
        (
            {"label_token_ids": [1] * 21},
            "Requested sample logprobs of 21, which is greater than max allowed: 20 (parameter=logprobs, value=21)",
        ),
    ],
)
def test_refused(fields, message):
    status, error = refusal({**BODY, **fields})
    assert (status, error["message"], error["type"]) == (400, message, "BadRequestError")


def test_more_labels_than_logprobs_are_a_setting_away():
    body = {**BODY, "label_token_ids": list(range(24)), "apply_softmax": True}
    assert len(scores(body, max_logprobs=24)) == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {},
            "3 validation errors:\n"
            "  {'type': 'missing', 'loc': 'body.query', 'msg': 'Field required', 'input': '<dict of 0 items>'}\n"
            "  {'type': 'missing', 'loc': 'body.items', 'msg': 'Field required', 'input': '<dict of 0 items>'}\n"
            "  {'type': 'missing', 'loc': 'body.label_token_ids', 'msg': 'Field required', "
            "'input': '<dict of 0 items>'}",
        ),
        (
            {**BODY, "items": ["Hello", [1]]},
            "2 validation errors:\n"
            "  {'type': 'string_type', 'loc': 'body.items.1', 'msg': 'Input should be a valid string', "
            "'input': '<list of 1 items>'}\n"
            "  {'type': 'list_type', 'loc': 'body.items.0', 'msg': 'Input should be a valid list', 'input': 'Hello'}",
        ),
        (
            {**BODY, "add_special_tokens": "x"},
            "1 validation error:\n"
            "  {'type': 'bool_parsing', 'loc': 'body.add_special_tokens', "
            "'msg': 'Input should be a valid boolean, unable to interpret input', 'input': 'x'}",
        ),
    ],
)
def test_not_of_the_schema(body, message):
    status, error = refusal(body)
    assert (status, error["message"], error["type"]) == (400, message, "Bad Request")


def test_unknown_model():
    status, error = refusal({**BODY, "model": "zz"})
    assert (status, error["type"]) == (404, "NotFoundError")


def test_no_label_is_possible():
    script = {"rules": [{"steps": [{"probs": {" Yes": 1.0}}]}]}
    app = TestClient(create_app(script))
    body = {"query": "a", "items": ["b"], "label_token_ids": [5, 6]}
    reply = app.post("/generative_scoring", json=body)
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "BadRequestError")
    assert "not JSON compliant" in reply.json()["error"]["message"]
    reply = app.post("/generative_scoring", json={**body, "apply_softmax": False})
    assert reply.json()["data"][0]["score"] == 0.0


def test_a_logit_too_large_for_exp():
    script = {"rules": [{"steps": [{"logits": {" Yes": 1000.0}, "rest": 0}]}], "logprobs_mode": "raw_logits"}
    app = TestClient(create_app(script))
    yes = app.post("/tokenize", json={"prompt": " Yes"}).json()["tokens"]
    reply = app.post(
        "/generative_scoring",
        json={"query": "a", "items": ["b"], "label_token_ids": yes, "apply_softmax": False},
    )
    assert (reply.status_code, reply.json()["error"]["message"]) == (400, "math range error")


def test_sampling_masks_need_a_top_k_which_a_score_has_not():
    app = TestClient(
        create_app(
            FIXTURES / "bigram512" / "script.yaml", logprobs_mode="processed_logprobs", return_sampling_mask=True
        )
    )
    reply = app.post("/generative_scoring", json=BODY)
    # vLLM's engine raises a plain ValueError, and its server keeps the words to itself.
    error = {"message": "", "type": "InternalServerError", "param": None, "code": 500}
    assert (reply.status_code, reply.json()) == (500, {"error": error})
