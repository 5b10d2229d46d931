"""Profiles, as clients see them: what a server does with the parameters that it doesn't heed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from fault_server import REQUEST, ROWS, SCRIPT, TOKENS, Running, logprobs_of, serving

from stubserver.app import create_app
from stubserver.config.profile import PARAMETERS, PROFILES, Profile
from stubserver.errors import ConfigError

B = 383
"""The id of " B"."""

EXTRAS: dict[str, Any] = {
    "allowed_token_ids": [5],
    "structured_outputs": {"choice": [" B"]},
    "logprob_token_ids": [5],
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "prompt_logprobs": 1,
}
"""vLLM's own parameters."""


STRIPS_NOTHING = dict.fromkeys(("logprobs", "top_logprobs", "logprob_token_ids", "prompt_logprobs"), "honour")


@pytest.fixture(scope="module")
def profiles() -> Iterator[Running]:
    """A server with a model a named profile, whose name it has."""
    models = [{"served_model_name": name, "profile": name} for name in PROFILES]
    with serving({**SCRIPT, "models": models}) as server:
        yield server


def refusal(server: Running, **fields: Any) -> Any:
    with pytest.raises(openai.BadRequestError) as caught:
        server.complete(**fields)
    assert caught.value.status_code == 400
    return caught.value.body


def test_vllm_heeds_everything(profiles: Running) -> None:
    assert profiles.state.served.models[0].tokenizer.encode(" B", add_special_tokens=False) == [B]
    extras = {**EXTRAS, "allowed_token_ids": [B], "logprob_token_ids": [B]}
    [choice] = profiles.complete(model="vllm-0.32", max_tokens=1, extra_body=extras).choices
    assert (choice.text, choice.token_ids) == (" B", [B])
    assert choice.logprobs.tokens == [f"token_id:{B}"]
    assert choice.prompt_logprobs[0] is None


@pytest.mark.parametrize("parameter", EXTRAS)
def test_openai_like_knows_no_parameters_of_vllm(profiles: Running, parameter: str) -> None:
    body = refusal(profiles, model="openai-like", extra_body={parameter: EXTRAS[parameter]})
    message = f"Unrecognized request argument supplied: {parameter}"
    assert body == {"message": message, "type": "invalid_request_error", "param": None, "code": None}


def test_openai_like_caps_logprobs_of_completions(profiles: Running) -> None:
    [choice] = profiles.complete(model="openai-like", logprobs=5).choices
    assert choice.logprobs.tokens == TOKENS
    for stream in (False, True):
        body = refusal(profiles, model="openai-like", logprobs=6, stream=stream)
        message = "6 is greater than the maximum of 5 - 'logprobs'"
        assert body == {"message": message, "type": "invalid_request_error", "param": "logprobs", "code": None}


def test_openai_like_caps_top_logprobs_of_chat(profiles: Running) -> None:
    assert profiles.chat(model="openai-like", top_logprobs=20).choices[0].logprobs is not None
    with pytest.raises(openai.BadRequestError, match="must be less than or equal to 20") as caught:
        profiles.chat(model="openai-like", top_logprobs=21)
    assert caught.value.param == "top_logprobs"


def test_openai_like_heeds_the_rest(profiles: Running) -> None:
    [choice] = profiles.complete(model="openai-like", logit_bias={str(B): 5}, echo=True, max_tokens=1).choices
    assert choice.text == "Answer: B"


@pytest.mark.parametrize("stream", [False, True])
def test_strips_logprobs(profiles: Running, stream: bool) -> None:
    fields = {"model": "strips-logprobs", "stream": stream}
    extra = {"extra_body": {"logprob_token_ids": [5], "prompt_logprobs": 1}}
    for reply in (profiles.complete(**fields, **extra), profiles.chat(**fields)):
        choices = [event.choices[0] for event in (reply if stream else [reply])]
        assert [choice.logprobs for choice in choices] == [None] * len(choices)
        assert all(getattr(choice, "prompt_logprobs", None) is None for choice in choices)
    assert profiles.complete(model="strips-logprobs").choices[0].text == "".join(TOKENS)


def test_reject_in_the_words_of_a_server_that_forbids_extra_fields() -> None:
    with serving(SCRIPT, profile={"logprob_token_ids": "reject"}) as server:
        body = refusal(server, extra_body={"logprob_token_ids": [1, 2]})
        problem = (
            "{'type': 'extra_forbidden', 'loc': 'body.logprob_token_ids', 'msg': 'Extra inputs are not permitted'}"
        )
        assert body == {
            "message": f"1 validation error:\n  {problem}",
            "type": "Bad Request",
            "param": "body.logprob_token_ids",
            "code": 400,
        }


def test_reject_in_other_words() -> None:
    error = {"message": "{parameter}={value} is more than {above}", "code": "too_many"}
    with serving(SCRIPT, profile={"logprobs": {"treat": "reject", "above": 2, "error": error}}) as server:
        body = refusal(server, logprobs=3)
        assert (body["message"], body["code"]) == ("logprobs=3 is more than 2", "too_many")
        assert server.complete(logprobs=2).choices[0].logprobs.tokens == TOKENS


def test_truncate() -> None:
    caps = {"treat": "truncate", "above": 2}
    with serving(SCRIPT, profile={"logprobs": caps, "top_logprobs": caps}) as server:
        [choice] = server.complete(logprobs=4).choices
        best = {token: logprobs_of(ROWS[0])[token] for token in (" A", " B")}
        assert choice.logprobs.top_logprobs[0] == pytest.approx(best, abs=1e-6)
        assert [len(entry.top_logprobs) for entry in server.chat(top_logprobs=4).choices[0].logprobs.content] == [2] * 3
        # Above the server's own cap too: it never gets there.
        assert len(server.complete(logprobs=99).choices[0].logprobs.top_logprobs[0]) == 2


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("allowed_token_ids", [5]),
        ("logit_bias", {str(B): 5}),
        ("logprobs", 3),
        ("structured_outputs", {"choice": ["x"]}),
        ("response_format", {"type": "json_object"}),
        ("logprob_token_ids", [5]),
        ("return_token_ids", True),
        ("return_tokens_as_token_ids", True),
        ("echo", True),
        ("prompt_logprobs", 1),
    ],
)
def test_ignored_is_as_if_it_weren_t_there(parameter: str, value: Any) -> None:
    plain = {"model": "heeds", "prompt": "Answer:", "max_tokens": 3, "temperature": 0}
    models = [
        {"served_model_name": "heeds"},
        {"served_model_name": "ignores", "profile": {parameter: "ignore"}},
    ]
    request = {**plain, "logprobs": 2, parameter: value}
    with serving({**SCRIPT, "models": models}) as server:
        without = {key: part for key, part in request.items() if key != parameter}
        replies = [
            httpx.post(f"{server.url}/v1/completions", json=body).json().get("choices")
            for body in ({**request, "model": "ignores"}, without, request)
        ]
    assert replies[0] == replies[1]
    assert replies[0] != replies[2]


def test_ignored_in_sampling_params_too() -> None:
    with serving(SCRIPT, enable_scale_out=True, profile={"logprobs": "ignore"}) as server:
        body = {"token_ids": [5], "sampling_params": {"max_tokens": 1, "logprobs": 2}}
        reply = httpx.post(f"{server.url}/inference/v1/generate", json=body).json()
    assert reply["choices"][0]["logprobs"] is None


def test_other_paths_and_other_bodies_pass() -> None:
    with serving(SCRIPT, profile="openai-like") as server:
        assert httpx.get(f"{server.url}/health").status_code == 200
        for content in (b"[1]", b"{", b""):
            headers = {"content-type": "application/json"}
            reply = httpx.post(f"{server.url}/v1/completions", content=content, headers=headers)
            assert (reply.status_code, reply.json()["error"]["type"]) == (400, "Bad Request")


def test_base() -> None:
    profile = Profile.model_validate({"base": "openai-like", "echo": "ignore", "allowed_token_ids": "honour"})
    assert profile.treatments.keys() - PROFILES["openai-like"].keys() == {"echo"}
    assert "allowed_token_ids" not in profile.treatments
    assert set(PARAMETERS) >= {name for parameters in PROFILES.values() for name in parameters}


def test_all_heeded_is_all_heeded() -> None:
    for profile in ("vllm-0.32", {"echo": "honour"}, {"base": "strips-logprobs", **STRIPS_NOTHING}):
        assert create_app(SCRIPT, profile=profile).state.server.served.heeds_everything
    assert not create_app(SCRIPT, profile="openai-like").state.server.served.heeds_everything


def test_another_script_has_a_profile_of_its_own() -> None:
    with serving(SCRIPT) as server:
        httpx.put(f"{server.url}/stub/script", json={**SCRIPT, "profile": "strips-logprobs"})
        assert server.complete().choices[0].logprobs is None
        httpx.post(f"{server.url}/stub/reset")
        assert server.complete().choices[0].logprobs is not None


def test_profile_as_json_text() -> None:
    with serving(SCRIPT, profile=json.dumps({"echo": "ignore"})) as server:
        assert server.complete(echo=True).choices[0].text == "".join(TOKENS)
        assert REQUEST["prompt"] not in server.complete(echo=True).choices[0].text


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("openai", "profile: 'openai' is no profile; did you mean 'openai-like'?"),
        ("zzz", "profile: 'zzz' is no profile; the profiles are vllm-0.32, openai-like, strips-logprobs"),
        (
            "{echo: ignroe}",
            "profile.echo: input should be 'honour', 'ignore', 'reject' or 'truncate', got 'ignroe'",
        ),
        ("{ehco: ignore}", "profile.ehco: extra inputs are not permitted, got 'ignore'"),
        ("{echo: truncate}", "profile.echo: truncate needs `above`, the largest value that the server allows"),
        ("{echo: {treat: ignore, error: {code: 1}}}", "profile.echo: `error` goes with reject, not with ignore"),
    ],
)
def test_mistakes_in_profiles(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, profile: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.yaml").write_text(f"default: random\nprofile: {profile}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        create_app("script.yaml")
    assert str(caught.value) == f"script.yaml:2: {message}"


def test_mistake_in_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"^--profile: 'openai' is no profile; did you mean 'openai-like'\?"):
        create_app(profile="openai")
