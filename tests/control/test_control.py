"""The control routes: who may use them, and what they do."""

from __future__ import annotations

import json
from math import exp, log
from typing import Any

import pytest
from starlette.testclient import TestClient

from stubserver.app import create_app
from stubserver.control.endpoints import CONTROL_ROUTES

SCRIPT = {
    "rules": [
        {"name": "first", "when": {"prompt": "Other"}, "steps": [{"text": " A"}]},
        {"name": "answer", "when": {"prompt": "Answer:"}, "steps": [{"logits": {" A": 2, " B": 1}, "rest": -10}]},
    ]
}
COMPLETION = {"prompt": "Answer:", "max_tokens": 1, "temperature": 0}
CONTROL = [(method, path) for method, path, _ in CONTROL_ROUTES]


def client(script: Any = SCRIPT, host: str = "127.0.0.1", **settings: Any) -> TestClient:
    app = create_app(script, **{"journal": True, **settings})
    return TestClient(app, client=(host, 50000))


def complete(server: TestClient, **fields: Any) -> Any:
    return server.post("/v1/completions", json={**COMPLETION, **fields})


def message(reply: Any) -> str:
    text: str = reply.json()["error"]["message"]
    return text


@pytest.mark.parametrize(("method", "path"), CONTROL)
@pytest.mark.parametrize("host", ["192.0.2.7", "2001:db8::1", "testclient"])
def test_others_than_loopback_clients_get_a_403(method: str, path: str, host: str) -> None:
    reply = client(host=host).request(method, path, json={})
    assert reply.status_code == 403
    assert message(reply).startswith(f"{path} answers clients on the server's own machine only")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1"])
def test_loopback_clients_are_let_in(host: str) -> None:
    assert client(host=host).get("/stub/requests").status_code == 200


def test_any_client_if_so_set() -> None:
    assert client(host="192.0.2.7", control="any").get("/stub/requests").status_code == 200


@pytest.mark.parametrize(("method", "path"), CONTROL)
def test_switched_off_they_are_not_there(method: str, path: str) -> None:
    reply = client(control="off").request(method, path, json={})
    assert (reply.status_code, reply.json()) == (404, {"detail": "Not Found"})


def test_a_server_with_keys_wants_one_here_too() -> None:
    server = client(api_key=["k"])
    assert server.get("/stub/requests").status_code == 401
    assert server.get("/stub/requests", headers={"authorization": "Bearer k"}).status_code == 200


def test_journal_is_listed_filtered_and_cleared() -> None:
    server = client()
    for prompt in ("Answer:", "Other", "Answer:"):
        complete(server, prompt=prompt)
    server.get("/v1/models")

    def numbers(query: str) -> list[int]:
        return [entry["number"] for entry in server.get(f"/stub/requests{query}").json()["requests"]]

    assert numbers("") == [1, 2, 3, 4]
    assert numbers("?path=/v1/completions") == [1, 2, 3]
    assert numbers("?rule=answer") == [1, 3]
    assert numbers("?last=2") == [3, 4]
    assert numbers("?rule=answer&last=1") == [3]
    assert numbers("?last=0") == []
    assert server.delete("/stub/requests").status_code == 200
    assert server.get("/stub/requests").json() == {"requests": [], "forgotten": 0}


def test_a_listed_request_says_what_happened() -> None:
    server = client()
    a = server.post("/tokenize", json={"prompt": " A"}).json()["tokens"][0]
    server.delete("/stub/requests")
    reply = complete(server, logit_bias={a: 1}).json()
    (entry,) = server.get("/stub/requests").json()["requests"]
    assert (entry["status"], entry["body"]["prompt"], entry["reply"]) == (200, "Answer:", reply)
    (generation,) = entry["generations"]
    assert generation["rule"] == '"answer" (rules[1])'
    assert generation["passed_over"] == {
        '"first" (rules[0])': 'prompt differs at character 0: wanted "Other", got "Answer:"'
    }
    (step,) = generation["steps"]
    assert (step["token"], step["labels"][0]["raw_logit"], step["labels"][0]["processed_logit"]) == (" A", 2.0, 3.0)


def test_a_request_with_a_lone_surrogate_can_be_listed() -> None:
    server = client()
    server.post("/v1/completions", content=rb'{"prompt": "\ud800"}', headers={"content-type": "application/json"})
    (entry,) = server.get("/stub/requests").json()["requests"]
    assert (entry["body"], entry["status"]) == ({"prompt": "\ud800"}, 400)


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("GET", "/stub/requests?last=x", "last has to be a whole number from 0, got 'x'."),
        ("GET", "/stub/requests?last=-1", "last has to be a whole number from 0, got '-1'."),
        ("POST", "/stub/explain?top=x", "top has to be a whole number from 0, got 'x'."),
        ("PUT", "/stub/faults", "The body has to be a list of faults; an empty one for none."),
    ],
)
def test_refused(method: str, path: str, words: str) -> None:
    reply = client().request(method, path, json={})
    assert (reply.status_code, message(reply)) == (400, words)


def test_without_a_journal_its_route_says_so() -> None:
    reply = client(journal=False).get("/stub/requests")
    assert (reply.status_code, message(reply)) == (404, "The server keeps no journal; start it with --journal.")


YAML = 'rules:\n  - steps:\n      - text: " B"\n'


@pytest.mark.parametrize(
    ("body", "media_type"),
    [
        (YAML, "application/yaml"),
        (YAML, "application/x-www-form-urlencoded"),  # what curl says
        (json.dumps({"rules": [{"steps": [{"text": " B"}]}]}), "application/json"),
    ],
)
def test_script_is_replaced_until_reset(body: str, media_type: str) -> None:
    server = client()
    reply = server.put("/stub/script", content=body, headers={"content-type": media_type})
    assert (reply.status_code, reply.json()) == (200, {"models": ["stub"]})
    assert complete(server, prompt="Whatever").json()["choices"][0]["text"] == " B"
    assert server.post("/stub/reset").status_code == 200
    assert complete(server, prompt="Whatever").status_code == 404
    assert complete(server).json()["choices"][0]["text"] == " A"


def test_a_new_script_brings_its_models_and_settings() -> None:
    server = client()
    models = [{"served_model_name": "raw"}, {"served_model_name": "done", "logprobs_mode": "processed_logprobs"}]
    assert server.put("/stub/script", json={**SCRIPT, "models": models}).json() == {"models": ["raw", "done"]}
    reply = complete(server, model="done", logprobs=1, logit_bias={"0": -100})
    assert reply.status_code == 200
    assert complete(server, model="stub").status_code == 404


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            'rules:\n  - steps:\n      - logits: {" bleu": 1}\n        rest: 0\n',
            'script:3: rules[0].steps[0].logits[" bleu"]: " bleu" is 3 tokens, not one: ',
        ),
        ("rules: [", "script:2: isn't YAML: "),
        ("", "is empty; it needs rules, bigram or callable"),
        ("rule: []", "script:1: rule: unknown key; did you mean 'rules'?"),
        ("port: 9999\nrules: []", "script: port can't be changed while the server runs"),
        ("control: any\nrules: []", "script: control can't be changed while the server runs"),
        ("callable: os:getcwd", "script: callable names code, which can't be sent over HTTP"),
        ("models: [{served_model_name: a, callable: os:getcwd}]", "script: callable names code"),
        ("logits_processors: os:getcwd\nrules: []", "script: logits_processors names code"),
        (b"\xff", "script: isn't UTF-8 text: "),
    ],
)
def test_a_script_that_cannot_be_used_changes_nothing(body: str | bytes, words: str) -> None:
    server = client()
    reply = server.put("/stub/script", content=body)
    assert reply.status_code == 400
    assert words in message(reply)
    assert complete(server).json()["choices"][0]["text"] == " A"


def test_faults_are_replaced_until_reset() -> None:
    server = client()
    specs = [{"kind": "status", "status": 429, "times": 1}]
    assert server.put("/stub/faults", json=specs).json() == {"faults": specs}
    assert [complete(server).status_code for _ in range(2)] == [429, 200]
    server.put("/stub/faults", json=[{"kind": "status", "status": 418}])
    assert complete(server).status_code == 418
    server.post("/stub/reset")
    assert complete(server).status_code == 200


def test_a_fault_that_cannot_be_used_is_refused() -> None:
    reply = client().put("/stub/faults", json=[{"kind": "nothing"}])
    assert reply.status_code == 400
    assert "nothing" in message(reply)


def test_reset_starts_counters_and_seeds_anew() -> None:
    server = client({"default": "random"})

    def texts() -> list[str]:
        return [complete(server, temperature=1, max_tokens=8).json()["choices"][0]["text"] for _ in range(3)]

    def finished() -> str:
        lines = server.get("/metrics").text.splitlines()
        return next(line for line in lines if line.startswith("vllm:request_success_total{") and '"length"' in line)

    first, nothing_finished = texts(), finished()
    assert texts() != first
    server.post("/stub/reset")
    assert nothing_finished.endswith(" 3.0")
    assert finished().endswith(" 0.0")
    assert texts() == first


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_explain_a_completion(method: str) -> None:
    server = client(tokenizer="builtin")
    a, b, the = (server.post("/tokenize", json={"prompt": text}).json()["tokens"][0] for text in (" A", " B", " The"))
    prompt_token_ids = server.post("/tokenize", json={"prompt": "Answer:"}).json()["tokens"]
    server.delete("/stub/requests")
    body = {**COMPLETION, "temperature": 1, "top_k": 1, "logit_bias": {b: 3}, "allowed_token_ids": [a, b]}
    reply = server.request(
        method, "/stub/explain?top=2", json=body | {"logprobs": 1, "logprob_token_ids": [the]}
    ).json()
    assert (reply["endpoint"], reply["model"], reply["logprobs_mode"]) == ("/v1/completions", "stub", "raw_logprobs")
    (prompt,) = reply["prompts"]
    assert prompt["prompt_token_ids"] == prompt_token_ids
    assert prompt["rule"] == '"answer" (rules[1])'
    assert list(prompt["passed_over"]) == ['"first" (rules[0])']
    assert [(each["token"], each["logit"]) for each in prompt["raw"]] == [(" A", 2.0), (" B", 1.0)]
    assert [(each["token"], each["logit"], each["logprob"]) for each in prompt["processed"]] == [(" B", 4.0, 0.0)]
    labels = {label["token"]: label for label in prompt["labels"]}
    assert {token: label["masked_by"] for token, label in labels.items()} == {
        " A": "top_k",
        " B": None,
        " The": "allowed_token_ids",
    }
    vocab_size = server.app.state.server.served.models[0].vocab_size  # type: ignore[attr-defined]
    total = log(exp(2) + exp(1) + (vocab_size - 2) * exp(-10))
    assert labels[" A"]["raw_logprob"] == pytest.approx(2 - total, abs=1e-5)
    assert labels[" The"]["raw_logit"] == -10.0
    assert (labels[" A"]["processed_logit"], labels[" A"]["processed_logprob"]) == (None, None)
    assert server.get("/stub/requests").json()["requests"] == []  # it was no request


def test_explain_says_what_the_script_and_a_grammar_mask() -> None:
    server = client({"rules": [{"steps": [{"logits": {" A": 1, " B": 0}, "rest": "-inf"}]}]})
    a, b, the = (server.post("/tokenize", json={"prompt": text}).json()["tokens"][0] for text in (" A", " B", " The"))
    body = {**COMPLETION, "logit_bias": {a: 0.5, b: 0.5, the: 0.5}, "structured_outputs": {"choice": [" A"]}}
    (prompt,) = server.post("/stub/explain", json=body).json()["prompts"]
    masked_by = {label["token"]: label["masked_by"] for label in prompt["labels"]}
    assert masked_by == {" A": None, " B": "structured_outputs", " The": "script"}


def test_explain_a_chat_by_its_headers() -> None:
    rule = {"when": {"header": {"x-tenant": "a"}}, "steps": [{"text": " B"}]}
    server = client({"rules": [rule], "default": "random"})
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    for headers, expected in (({"x-tenant": "a"}, "rules[0]"), ({}, None)):
        reply = server.post("/stub/explain", json=body, headers=headers).json()
        assert reply["endpoint"] == "/v1/chat/completions"
        assert reply["prompts"][0]["rule"] == expected
        assert "Hi" in reply["prompts"][0]["prompt"]


def test_explain_a_request_that_nothing_answers() -> None:
    (prompt,) = client().post("/stub/explain", json={"prompt": "Nothing"}).json()["prompts"]
    assert prompt["rule"] is None
    assert len(prompt["passed_over"]) == 2
    assert prompt["error"]["type"] == "UnscriptedError"


def test_explain_refuses_what_the_request_would_be_refused_for() -> None:
    reply = client().post("/stub/explain", json={**COMPLETION, "temperature": -1})
    assert reply.status_code == 400
    assert message(reply).startswith("temperature must be non-negative")


ROUTES = {
    "/v1/completions": {"prompt": "Answer:"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Answer:"}]},
    "/inference/v1/generate": {"token_ids": [300], "sampling_params": {"temperature": 0}},
    "/generative_scoring": {"query": "Answer:", "items": [" A"], "label_token_ids": [300, 301]},
    "/v1/systemone": {"state": "Answer:", "questions": {"q": {"type": "noul"}}},
}
"""A body of each route that /stub/explain knows by its fields."""


@pytest.mark.parametrize("path", ROUTES)
def test_explain_knows_a_body_by_its_fields(path: str) -> None:
    reply = client({"default": "random"}).post("/stub/explain", json=ROUTES[path])
    assert reply.json()["endpoint"] == path


def test_explain_a_body_by_its_path() -> None:
    """A batch has the fields of a chat."""
    body = {"messages": [[{"role": "user", "content": text}] for text in ("one", "two")]}
    server = client({"default": "random"})
    found = server.post("/stub/explain?path=/v1/chat/completions/batch", json=body).json()
    assert found["endpoint"] == "/v1/chat/completions/batch"
    assert ["one" in prompt["prompt"] for prompt in found["prompts"]] == [True, False]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/nothing", "/v1/nothing is no path that generates; those are /v1/completions, "),
        ("/v1/embeddings", "/v1/embeddings asks for no tokens, so there is nothing to explain."),
    ],
)
def test_a_path_that_can_not_be_explained(path: str, words: str) -> None:
    reply = client().post(f"/stub/explain?path={path}", json=COMPLETION)
    assert reply.status_code == 400
    assert message(reply).startswith(words)


def test_explain_refuses_what_completions_refuse() -> None:
    """It had an understanding of its own once, in which this was no mistake."""
    body = {**COMPLETION, "stream": True, "use_beam_search": True}
    server = client()
    asked, explained = (server.post(path, json=body) for path in ("/v1/completions", "/stub/explain"))
    assert (explained.status_code, explained.json()) == (asked.status_code, asked.json())
    assert message(explained) == "Streaming is not currently supported with beam search"


def test_explain_sees_a_request_as_its_profile_does() -> None:
    """It showed values where a profile refuses, and a label that a profile's server knows nothing of."""
    server = client(profile="openai-like")
    body = {**COMPLETION, "allowed_token_ids": [300]}
    asked, explained = (server.post(path, json=body) for path in ("/v1/completions", "/stub/explain"))
    assert (explained.status_code, explained.json()) == (asked.status_code, asked.json())
    ignoring = client(profile={"allowed_token_ids": "ignore"})
    (prompt,) = ignoring.post("/stub/explain", json=body).json()["prompts"]
    assert prompt["labels"] == []
