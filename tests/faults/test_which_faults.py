"""Which requests a fault befalls: rule, server or header; times, after, when, paths; chains; nothing where none is set."""

from __future__ import annotations

from gc import collect
from typing import Any

import httpx
import pytest
from fault_server import REQUEST, SCRIPT, TOKENS, Running, serving
from starlette.testclient import TestClient

from stubserver.app import create_app
from stubserver.errors import ConfigError, ScriptError
from stubserver.faults.active import ActiveFaults


def status(code: int, **keys: Any) -> dict[str, Any]:
    return {"kind": "status", "status": code, **keys}


def statuses(server: Running, count: int, **fields: Any) -> list[int]:
    return [server.post(**fields).status_code for _ in range(count)]


def test_header_befalls_its_own_request(server: Running) -> None:
    assert server.post(status(418)).status_code == 418
    assert statuses(server, 1) == [200]


def test_header_befalls_every_path(server: Running) -> None:
    headers = {"X-Stub-Faults": '[{"kind": "status", "status": 503}]'}
    assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 503
    assert httpx.get(f"{server.url}/stub/requests", headers=headers).status_code != 503


def test_server_faults_from_a_script_file(server: Running) -> None:
    with serving({**SCRIPT, "faults": [status(503, times=1)]}) as other:
        assert statuses(other, 3) == [503, 200, 200]
        other.state.faults.clear()
        assert statuses(other, 1) == [200]
        other.state.faults.reset()
        assert statuses(other, 2) == [503, 200]
    assert statuses(server, 1) == [200]


def test_faults_of_a_rule() -> None:
    rules = [
        {"when": {"prompt": "a"}, "steps": [{"text": " A"}], "faults": [status(429, times=1)]},
        {"when": {"prompt": "b"}, "steps": [{"text": " B"}], "faults": [{"kind": "logprobs"}]},
        {"when": {"prompt": "c"}, "steps": [{"text": " A B"}], "faults": [{"kind": "close", "after_events": 1}]},
        {"steps": [{"text": " A"}]},
    ]
    with serving({"rules": rules}) as server:
        assert statuses(server, 2, prompt="a") == [429, 200]
        assert server.complete(prompt="b").choices[0].logprobs is None
        assert [event.choices[0].logprobs for event in server.complete(prompt="b", stream=True)] == [None, None]
        with pytest.raises(httpx.RemoteProtocolError):
            server.post(prompt="c", stream=True)
        assert server.complete(prompt="d").choices[0].logprobs is not None
        # Of a stream, a rule's status comes before its 200 too.
        server.state.faults.reset()
        assert statuses(server, 2, prompt="a", stream=True) == [429, 200]


def test_faults_of_a_rule_befall_the_whole_request() -> None:
    rules = [{"when": {"prompt": "a"}, "steps": [], "faults": [{"kind": "usage"}]}, {"steps": []}]
    with serving({"rules": rules}) as server:
        assert server.complete(prompt=["b", "a"]).usage is None
        assert server.complete(prompt=["b", "c"]).usage is not None


def test_times_and_after(server: Running) -> None:
    server.state.faults.replace([status(500, after=1, times=2)])
    assert statuses(server, 5) == [200, 500, 500, 200, 200]


def test_chain(server: Running) -> None:
    server.state.faults.replace([status(429, times=2), status(503, times=1)])
    assert statuses(server, 5) == [429, 429, 503, 200, 200]


def test_other_faults_go_with_the_first_that_answers(server: Running) -> None:
    content_type = {"kind": "content_type", "value": "text/html"}
    reply = server.post(status(429), content_type, status(503))
    assert (reply.status_code, reply.headers["content-type"]) == (429, "text/html")


def test_faults_add_up(server: Running) -> None:
    faults = [
        {"kind": "drop_label", "label": " B"},
        {"kind": "truncate_top", "keep": 2},
        {"kind": "nan", "token": " é"},
    ]
    first, _, _ = server.complete(*faults).choices[0].logprobs.top_logprobs
    assert list(first) == [" A", " é"]
    assert first[" é"] != first[" é"]


def test_the_request_s_own_come_before_the_server_s(server: Running) -> None:
    server.state.faults.replace([status(503, times=1)])
    assert server.post(status(418)).status_code == 418
    assert statuses(server, 2) == [503, 200]


def test_when(server: Running) -> None:
    server.state.faults.replace(
        [
            status(401, when={"header": {"x-who": "me"}}),
            status(402, when={"field": {"seed": 5}}),
            status(403, when={"model": "other"}),
            status(409, when={"prompt": {"contains": "Answer: no"}}),
            status(410, when={"model": "stub", "field": {"seed": 6}}),
        ]
    )
    headers = {"X-Who": "me"}
    assert httpx.post(f"{server.url}/v1/completions", json=REQUEST, headers=headers).status_code == 401
    assert [server.post(seed=seed).status_code for seed in (4, 5, 6)] == [200, 402, 410]
    assert server.post(model="other").status_code == 403
    assert server.post(prompt="Answer: no").status_code == 409
    assert server.post(prompt=["Answer:", "Answer: no"]).status_code == 409
    assert server.post(prompt="Answer: no", stream=True).status_code == 409
    # The request that names no model means the first one.
    assert httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "seed": 6}).status_code == 410


def test_when_of_a_chat_sees_the_rendered_prompt(server: Running) -> None:
    server.state.faults.replace([{"kind": "logprobs", "when": {"prompt": {"contains": "user"}}}])
    assert server.chat().choices[0].logprobs is None
    assert server.complete().choices[0].logprobs is not None


def test_when_keeps_the_order_of_the_list(server: Running) -> None:
    about_prompt = status(409, times=1, when={"prompt": "Answer:"})
    server.state.faults.replace([about_prompt, status(503, times=1)])
    assert statuses(server, 3) == [409, 503, 200]


def test_what_asks_for_the_prompt_leaves_refused_requests_alone(server: Running) -> None:
    server.state.faults.replace([status(409, when={"prompt": {"regex": ""}}), status(503, when={"field": {"n": 2}})])
    assert server.post(temperature="hot").status_code == 400
    assert server.post(temperature="hot", n=2).status_code == 503


def test_paths(server: Running) -> None:
    server.state.faults.replace([status(500, paths=["/v1/mod*", "/health"])])
    assert httpx.get(f"{server.url}/v1/models").status_code == 500
    assert httpx.get(f"{server.url}/health").status_code == 500
    assert statuses(server, 1) == [200]
    server.state.faults.replace([status(500)])
    assert httpx.get(f"{server.url}/v1/models").status_code == 200
    assert httpx.post(f"{server.url}/tokenize", json={"prompt": "x"}).status_code == 200
    assert httpx.post(f"{server.url}/v1/embeddings", json={"input": "x"}).status_code == 500


def test_what_answers_in_place_keeps_the_handler_from_running(server: Running) -> None:
    stats = server.state.served.models[0].stats
    before = vars(stats).copy()
    server.post(status(429))
    assert vars(stats) == before


def test_the_same_faults_give_the_same_replies_again(server: Running) -> None:
    faults = [status(429, times=1), {"kind": "drop_sampled", "after": 1}, {"kind": "malformed_json", "after": 2}]

    def run() -> list[tuple[int, int]]:
        server.state.faults.replace(faults)
        return [(reply.status_code, len(reply.content)) for reply in (server.post(stream=True) for _ in range(4))]

    assert run() == run()


def test_board() -> None:
    active = ActiveFaults()
    assert active.is_empty
    specs = [{"kind": "status", "status": 429, "times": 2, "when": {"model": ["a"]}}, {"kind": "no_done"}]
    active.replace(specs)
    assert active.describe() == specs
    active.replace(active.describe())
    assert active.describe() == specs
    with pytest.raises(ConfigError):
        active.replace([{"kind": "no_don"}])
    assert active.describe() == specs
    active.reset()
    assert (active.describe(), active.is_empty) == ([], True)


def test_faults_of_requests_are_forgotten_with_them(server: Running) -> None:
    for _ in range(3):
        server.post({"kind": "no_done"})
    collect()
    assert len(server.state.faults._seen) == 0


def test_readiness_counts_from_the_moment_it_was_set() -> None:
    now = 100.0
    active = ActiveFaults(clock=lambda: now)
    active.replace([{"kind": "readiness", "seconds": 5}])
    [fault] = active.faults
    assert active.turn(fault) == 0
    now = 104.9
    assert active.turn(fault) == 1
    now = 105.0
    assert active.turn(fault) is None


def test_control_routes(server: Running) -> None:
    url = f"{server.url}/stub"
    assert httpx.put(f"{url}/faults", json=[status(503, times=1), status(429)]).status_code == 200
    assert statuses(server, 2) == [503, 429]
    refused = httpx.put(f"{url}/faults", json=[{"kind": "hnag"}])
    assert refused.status_code == 400
    assert "[0].kind: 'hnag' is no kind of fault; did you mean 'hang'?" in refused.json()["error"]["message"]
    assert statuses(server, 1) == [429]
    assert httpx.post(f"{url}/reset").status_code == 200
    assert statuses(server, 1) == [200]


def test_another_script_has_faults_of_its_own() -> None:
    with serving({**SCRIPT, "faults": [status(503)]}) as server:
        httpx.put(f"{server.url}/stub/script", json={**SCRIPT, "faults": [status(429)]})
        assert statuses(server, 1) == [429]
        httpx.put(f"{server.url}/stub/script", json=SCRIPT)
        assert statuses(server, 1) == [200]
        httpx.post(f"{server.url}/stub/reset")
        assert statuses(server, 1) == [503]


def test_several_models_share_the_faults_of_their_file() -> None:
    with serving(
        {**SCRIPT, "faults": [status(503, times=1)], "models": [{"served_model_name": "a"}, {"served_model_name": "b"}]}
    ) as server:
        assert [server.post(model=name).status_code for name in "bab"] == [503, 200, 200]


def test_none_is_none() -> None:
    client = TestClient(create_app(SCRIPT))
    first, second = (client.post("/v1/completions", json=REQUEST).json() for _ in range(2))
    assert first["choices"] == second["choices"]
    assert [choice["text"] for choice in first["choices"]] == ["".join(TOKENS)]


MISTAKES = {
    "faults: [5]": "script.yaml:1: faults[0]: input should be a valid dictionary or object to extract fields from",
    "faults:\n  - status: 429": "script.yaml:2: faults[0]: needs a kind: status, readiness, dead_engine, latency, hang,",
    "faults:\n  - {kind: statsu}": "script.yaml:2: faults[0].kind: 'statsu' is no kind of fault; did you mean 'status'?",
    "faults:\n  - kind: status\n    status: many": "script.yaml:3: faults[0].status: has to be a whole number, got 'many'",
    "faults:\n  - kind: status\n    sttaus: 1": "script.yaml:3: faults[0].sttaus: unknown key; did you mean 'status'?",
    "faults:\n  - kind: status\n    times: 0": "script.yaml:3: faults[0].times: input should be greater than or equal",
    'faults:\n  - kind: status\n    headers:\n      a: "b\\n"': "script.yaml:4: faults[0].headers.a: has to be a text",
    "faults:\n  - kind: close\n    at: end": "script.yaml:3: faults[0].at: input should be 'before_reply' or 'mid_headers'",
    "faults:\n  - {kind: close, at: mid_headers, mid_event: 1}": "script.yaml:2: faults[0]: needs at most one of at, after",
    "faults:\n  - {kind: latency}": "script.yaml:2: faults[0]: needs at least one of first, between, jitter",
    "faults:\n  - {kind: framing}": "script.yaml:2: faults[0]: needs at least one of coalesce, split, no_space, crlf,",
    "faults:\n  - {kind: framing, coalesce: 1}": "script.yaml:2: faults[0].coalesce: input should be greater than or",
    "faults:\n  - {kind: truncate_top}": "script.yaml:2: faults[0].keep: this key is missing",
    "faults:\n  - {kind: drop_label, label: yes}\n  - {kind: drop_label, label: 1.5}": (
        "script.yaml:3: faults[1].label: a token is a text or an id, got 1.5"
    ),
    "faults:\n  - kind: nan\n    when: {prompt: {regex: '('}}": "script.yaml:3: faults[0].when.prompt.regex: isn't a reg",
    "rules:\n  - steps: []\n    faults:\n      - {kind: readiness, seconds: 1}": (
        "script.yaml:4: rules[0].faults[0].kind: concerns the server: it goes into `faults` at the top of the file"
    ),
    "rules:\n  - steps: []\n    faults:\n      - {kind: nan, paths: /v1/completions}": (
        "script.yaml:4: rules[0].faults[0].paths: a rule's faults befall what the rule answers"
    ),
    "rules:\n  - steps: []\n    faults:\n      - {kind: malformed_json, event: -1}": (
        "script.yaml:4: rules[0].faults[0].event: input should be greater than or equal to 0, got -1"
    ),
    "models:\n  - served_model_name: a\n    faults: []": "script.yaml:3: models[0].faults: goes at the top of the file",
}


@pytest.mark.parametrize(("text", "message"), MISTAKES.items(), ids=list(MISTAKES))
def test_mistakes(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.yaml").write_text(text if "rules" in text else f"{text}\ndefault: random\n", encoding="utf-8")
    with pytest.raises(ScriptError) as caught:
        create_app("script.yaml")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("[", "X-Stub-Faults: isn't JSON: Expecting value: line 1 column 2 (char 1)"),
        ("{}", "X-Stub-Faults: has to be a list, got a mapping"),
        ('[{"kind": "hnag"}]', "X-Stub-Faults: [0].kind: 'hnag' is no kind of fault; did you mean 'hang'?"),
        ('[{"kind": "nan", "when": {"prompt": 5}}]', "X-Stub-Faults: [0].when.prompt: has to be a mapping"),
    ],
)
def test_mistakes_in_the_header(server: Running, header: str, message: str) -> None:
    reply = httpx.post(f"{server.url}/v1/completions", json=REQUEST, headers={"X-Stub-Faults": header})
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith(message)
