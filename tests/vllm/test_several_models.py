"""Several models in one server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from stubserver.app import create_app
from stubserver.errors import ScriptError, SettingsError

BIGRAM = Path(__file__).parents[2] / "fixtures" / "bigram512"
SCRIPT: dict[str, Any] = {
    "tokenizer": str(BIGRAM),
    "bigram": str(BIGRAM / "logits.npz"),
    "max_model_len": 64,
    "models": [
        {"served_model_name": "raw"},
        {"served_model_name": ["processed", "alias"], "logprobs_mode": "processed_logprobs", "max_logprobs": 4},
        {
            "served_model_name": "scripted",
            "tokenizer": "builtin",
            "rules": [{"steps": [{"text": " yes"}]}],
            "max_model_len": 32,
        },
    ],
}
LABELS = {"prompt": "Answer:", "max_tokens": 1, "temperature": 0, "logprobs": 4, "allowed_token_ids": [276, 327]}


def read(server: TestClient, **body: Any) -> dict[str, float]:
    reply = server.post("/v1/completions", json={**LABELS, **body}).json()
    return dict(reply["choices"][0]["logprobs"]["top_logprobs"][0])


def test_raw_and_processed_stand_side_by_side() -> None:
    """The values are the recorded ones: labels/yesno and labels/allowed4 of the two modes."""
    server = TestClient(create_app(SCRIPT))
    raw, processed = read(server, model="raw"), read(server, model="alias")
    assert " A" not in raw
    assert raw[" B"] == pytest.approx(-11.871874809265137, abs=2e-5)
    assert processed[" B"] - processed[" A"] == pytest.approx(-2.203125 + 5.609375, abs=2e-5)
    assert read(server) == raw


def test_each_model_has_its_own_tokenizer_settings_and_name() -> None:
    server = TestClient(create_app(SCRIPT))
    cards = server.get("/v1/models").json()["data"]
    assert [(card["id"], card["max_model_len"]) for card in cards] == [
        ("raw", 64),
        ("processed", 64),
        ("alias", 64),
        ("scripted", 32),
    ]
    reply = server.post("/v1/completions", json={"model": "scripted", "prompt": "x", "temperature": 0}).json()
    assert (reply["model"], reply["choices"][0]["text"]) == ("scripted", " yes")
    capped = server.post("/v1/completions", json={**LABELS, "model": "processed", "logprobs": 5})
    assert "max allowed: 4" in capped.json()["error"]["message"]
    unknown = server.post("/v1/completions", json={**LABELS, "model": "nope"}).json()["error"]["message"]
    assert unknown == "The model `nope` does not exist. Valid aliases: raw, processed, alias, scripted."


def test_models_that_say_the_same_share_their_rows() -> None:
    state = create_app(SCRIPT).state.server
    assert state.served.models[0].script is state.served.models[1].script
    assert state.served.models[0].tokenizer is state.served.models[1].tokenizer
    assert state.served.models[2].script is not state.served.models[0].script


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ([], "models: has to be a list with at least one model"),
        ([5], "models[0]: has to be a mapping of keys to values"),
        ([{"max_logprobs": 3}], "models[0]: needs a served_model_name of its own"),
        ([{"served_model_name": "a", "port": 1}], "models[0].port: goes at the top of the file"),
        (
            [{"served_model_name": "a"}, {"served_model_name": ["b", "a"]}],
            "models[1].served_model_name: 'a' is the name of another model already (models[0])",
        ),
        (
            [{"served_model_name": "a", "max_logprob": 3}],
            "models[0].max_logprob: unknown key; did you mean 'max_logprobs'?",
        ),
        ([{"served_model_name": "a", "default": "never"}], "models[0].default: has to be error, random, or a step"),
    ],
)
def test_mistakes_name_their_place(models: Any, words: str) -> None:
    with pytest.raises(ScriptError) as caught:
        create_app({**SCRIPT, "models": models})
    assert words in str(caught.value)


def test_a_flag_cannot_name_several_models() -> None:
    with pytest.raises(SettingsError, match="--served-model-name: the script serves several models"):
        create_app(SCRIPT, served_model_name="x")
