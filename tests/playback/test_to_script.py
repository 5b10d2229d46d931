"""A script from recordings: what it calls exact is what the recorded server would have said, and it invents nothing."""

from __future__ import annotations

from math import exp, log
from pathlib import Path
from typing import Any

import pytest
import yaml
from exchanges import cassette, compact, full, request
from servers import BIGRAM
from starlette.testclient import TestClient

from stubserver.app import create_app
from stubserver.cli import main
from stubserver.playback.exchange import Exchange, RecordedEvent, Reply, Request

LABELS = [276, 327, 328, 329]  # " A", " B", " C", " D"
GREEDY = {"model": "bigram", "prompt": "Answer:", "temperature": 0}
CHAT = {"model": "bigram", "messages": [{"role": "user", "content": "Yes"}], "temperature": 0}


def server(**settings: Any) -> TestClient:
    """The server that is recorded."""
    return TestClient(create_app(BIGRAM / "script.yaml", **settings))


def post(app: TestClient, path: str = "/v1/completions", **body: Any) -> Any:
    return app.post(path, json=body)


def record(app: TestClient, path: str = "/v1/completions", **body: Any) -> Exchange:
    reply = post(app, path, **body)
    asked = Request("POST", path, body=compact(body))
    if body.get("stream"):
        events = tuple(RecordedEvent(0, event + b"\n\n") for event in reply.content.split(b"\n\n")[:-1])
        return Exchange(asked, Reply(reply.status_code, events=events))
    return Exchange(asked, Reply(reply.status_code, body=reply.content))


def to_script(tmp_path: Path, *exchanges: Exchange, mode: str = "raw_logprobs") -> Path:
    output = tmp_path / "script.yaml"
    source = cassette(tmp_path / "c.jsonl", *exchanges, models=server().get("/v1/models").json())
    flags = ["--tokenizer", str(BIGRAM), "--logprobs-mode", mode, "--output", str(output)]
    assert main(["cassette", "to-script", source, *flags]) == 0
    return output


def scripted(tmp_path: Path, *exchanges: Exchange, mode: str = "raw_logprobs", **settings: Any) -> TestClient:
    return TestClient(create_app(to_script(tmp_path, *exchanges, mode=mode), **settings))


@pytest.fixture
def raw() -> TestClient:
    return server()


@pytest.fixture
def recordings(raw: TestClient) -> list[Exchange]:
    """Three greedy tokens with their top 4, and the four labels."""
    return [
        record(raw, **GREEDY, max_tokens=3, logprobs=4),
        record(raw, **GREEDY, max_tokens=1, logprobs=1, logprob_token_ids=LABELS),
    ]


def test_the_script_reads_like_one(tmp_path: Path, recordings: list[Exchange], raw: TestClient) -> None:
    """Two recordings of one prompt are one rule; a label read adds the labels to the top 4."""
    script = yaml.safe_load(to_script(tmp_path, *recordings).read_text(encoding="utf-8"))
    assert {key: script[key] for key in ("served_model_name", "max_model_len", "unrecorded", "default")} == {
        "served_model_name": ["bigram"],
        "max_model_len": 512,
        "unrecorded": "refuse",
        "default": "error",
    }
    [rule] = script["rules"]
    assert (rule["when"], rule["then"]) == ({"prompt": {"exact": "Answer:"}}, "error")
    # The fourth likeliest token is a single byte, which no text names.
    assert rule["recorded"] == {"top_logprobs": [3, 4, 1]}
    first = rule["steps"][0]["logprobs"]
    top = post(raw, **GREEDY, max_tokens=1, logprobs=4).json()["choices"][0]["logprobs"]["top_logprobs"][0]
    assert {text: first[text] for text in list(top)[:3]} == dict(list(top.items())[:3])  # to the last digit
    assert {" A", " B", " C", " D"} < first.keys()
    assert list(first.values()) == sorted(first.values(), reverse=True)


EXACT = {
    "fewer logprobs": {"max_tokens": 2, "logprobs": 2},
    "a label read": {"max_tokens": 1, "logprobs": 3, "allowed_token_ids": LABELS},
    "two labels": {"max_tokens": 1, "logprobs": 2, "allowed_token_ids": LABELS[:2], "temperature": 0.7, "seed": 1},
    "values of labels": {"max_tokens": 1, "logprobs": 1, "logprob_token_ids": LABELS},
    "ids for texts": {"max_tokens": 3, "logprobs": 1, "return_token_ids": True, "return_tokens_as_token_ids": True},
}


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
@pytest.mark.parametrize("name", EXACT)
def test_what_is_called_exact_is(name: str, mode: Any, tmp_path: Path, recordings: list[Exchange]) -> None:
    """The recorded server in the other mode is asked for the truth."""
    asked = {**GREEDY, **EXACT[name]}
    ours = post(scripted(tmp_path, *recordings, logprobs_mode=mode), **asked)
    theirs = post(server(logprobs_mode=mode), **asked)
    assert ours.status_code == 200, ours.text
    assert ours.headers["x-stub-recorded"] == "exact"
    [choice], [true] = ours.json()["choices"], theirs.json()["choices"]
    assert (choice["text"], choice["token_ids"]) == (true["text"], true["token_ids"])
    for row, true_row in zip(choice["logprobs"]["top_logprobs"], true["logprobs"]["top_logprobs"], strict=True):
        assert {text: row[text] for text in row if row[text] > -9999} == pytest.approx(
            {text: value for text, value in true_row.items() if value > -9999}, abs=2e-5
        )


REFUSED = {
    "an unrecorded label": ({"logprobs": 1, "allowed_token_ids": [*LABELS, 300]}, "(300) was never recorded here"),
    "values of an unrecorded label": ({"logprobs": 1, "logprob_token_ids": [300]}, "(300) was never recorded here"),
    "a bias on one": ({"logit_bias": {"300": 5}}, "(300) was never recorded here"),
    "a choice": ({"structured_outputs": {"choice": [" A", " not"]}}, "was never recorded here"),
    "more logprobs": ({"logprobs": 20}, "20 top logprobs are asked for, and 3 were recorded without a gap"),
    "an open draw": ({"temperature": 0.5}, "temperature 0.5 may draw a token that was never recorded"),
    "the default temperature": ({"temperature": None}, "temperature 1 may draw"),
    "penalties": ({"presence_penalty": 2}, "presence_penalty may bring up a token that was never recorded"),
    "a ban": ({"bad_words": [" n"], "top_k": 1}, "bad_words may bring up a token that was never recorded"),
    "an unsure choice": ({"structured_outputs": {"choice": [" A", " B"]}}, "a grammar may allow tokens"),
    "beams": ({"use_beam_search": True, "n": 2, "max_tokens": 2}, "4 top logprobs are asked for, and 3 were recorded"),
    "a grammar": ({"structured_outputs": {"regex": "[0-9]"}}, "a grammar may allow tokens"),
    "another path": (
        {"max_tokens": 2, "allowed_token_ids": [276]},
        "nothing was recorded after ' A' (276) as token 0 of the output",
    ),
    "a fourth token": ({"max_tokens": 4}, "has 3 steps and says `then: error`"),
    "the prompt's values": ({"prompt_logprobs": 1}, "answers position"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_was_never_recorded_is_refused(name: str, tmp_path: Path, recordings: list[Exchange]) -> None:
    fields, said = REFUSED[name]
    reply = post(scripted(tmp_path, *recordings), **{**GREEDY, "max_tokens": 1, **fields})
    assert reply.status_code == 404, reply.text
    if name != "the prompt's values":
        assert said in reply.json()["error"]["message"]


@pytest.mark.parametrize("name", ["more logprobs", "an open draw", "an unrecorded label", "penalties"])
def test_mark_says_what_it_rests_on(name: str, tmp_path: Path, recordings: list[Exchange]) -> None:
    fields, said = REFUSED[name]
    app = scripted(tmp_path, *recordings, unrecorded="mark")
    reply = post(app, **{**GREEDY, "max_tokens": 1, **fields})
    assert reply.status_code == 200
    assert reply.headers["x-stub-recorded"].startswith("rests on unrecorded tokens: ")
    assert said in reply.headers["x-stub-recorded"]
    exact = post(app, **GREEDY, max_tokens=1, logprobs=1)
    assert exact.headers["x-stub-recorded"] == "exact"


def test_processed_values_of_a_heated_row_rest_on_the_others(tmp_path: Path, recordings: list[Exchange]) -> None:
    """A temperature weighs the tail, whose shape wasn't recorded; top_k keeps the draw to recorded tokens."""
    app = scripted(tmp_path, *recordings, logprobs_mode="processed_logprobs")
    reply = post(app, **{**GREEDY, "temperature": 2, "top_k": 2, "seed": 1}, max_tokens=1, logprobs=1)
    assert reply.status_code == 200
    assert reply.headers["x-stub-recorded"] == "rests on unrecorded tokens: temperature, top_k"


def test_a_beam_follows_the_recording(tmp_path: Path, raw: TestClient) -> None:
    """A beam grows by the 2 n likeliest tokens: all of them have to be known, and only the likeliest was gone on from."""
    recorded = record(raw, **GREEDY, max_tokens=3, logprobs=4, return_tokens_as_token_ids=True)
    app = scripted(tmp_path, recorded)
    beams = {**GREEDY, "use_beam_search": True, "max_tokens": 2}
    one, true = (post(each, **beams, n=1) for each in (app, raw))
    assert (one.headers["x-stub-recorded"], one.json()["choices"]) == ("exact", true.json()["choices"])
    two = post(app, **beams, n=2)
    assert two.status_code == 404
    assert "nothing was recorded after" in two.json()["error"]["message"]


def test_the_servers_own_defaults_count(tmp_path: Path, recordings: list[Exchange]) -> None:
    asked = {**GREEDY, "temperature": None, "max_tokens": 1, "logprobs": 1}
    greedy = scripted(tmp_path, *recordings, override_generation_config={"temperature": 0})
    assert post(greedy, **asked).headers["x-stub-recorded"] == "exact"
    drawn = scripted(tmp_path, *recordings, override_generation_config={"top_k": 2})
    assert post(drawn, **asked).headers["x-stub-recorded"] == "exact"
    bent = scripted(tmp_path, *recordings, override_generation_config={"repetition_penalty": 1.5})
    refused = post(bent, **{**asked, "temperature": 0})
    assert (refused.status_code, "repetition_penalty may bring up" in refused.text) == (404, True)


def test_scores_are_held_to_the_recording_too(tmp_path: Path, raw: TestClient, recordings: list[Exchange]) -> None:
    """What /generative_scoring asks for is seen in its parameters; it draws its token at temperature 1."""
    scored = {"model": "bigram", "query": "Answer:", "items": [""], "label_token_ids": LABELS[:2]}
    theirs = post(raw, "/generative_scoring", **scored)
    ours = post(scripted(tmp_path, *recordings, unrecorded="mark"), "/generative_scoring", **scored)
    assert ours.json()["data"] == [pytest.approx(theirs.json()["data"][0], abs=2e-5)]
    assert "temperature 1 may draw" in ours.headers["x-stub-recorded"]
    assert post(scripted(tmp_path, *recordings), "/generative_scoring", **scored).status_code == 404


def test_a_name_says_nothing(tmp_path: Path, recordings: list[Exchange]) -> None:
    """Only `recorded` says how many top logprobs are known, whatever a rule is called."""
    script = yaml.safe_load(to_script(tmp_path, *recordings).read_text(encoding="utf-8"))
    asked = {**GREEDY, "max_tokens": 1, "logprobs": 4}
    said = "4 top logprobs are asked for, and 3 were recorded without a gap"
    for name in ("recorded, top 5", "recorded, top 5 5 1 as I noted"):
        script["rules"][0]["name"] = name
        refused = post(TestClient(create_app(script)), **asked)
        assert (refused.status_code, said in refused.text) == (404, True)
    script["rules"][0]["recorded"] = {"top_logprobs": [4, 4, 1]}
    assert post(TestClient(create_app(script)), **asked).headers["x-stub-recorded"] == "exact"


def test_a_rule_that_says_nothing_of_it_is_taken_for_a_recording(tmp_path: Path, recordings: list[Exchange]) -> None:
    """What is at least as likely as all that is left is known to be among the likeliest: 0.6, but not 0.1 of 0.3."""
    rule = {"steps": [{"probs": {" A": 0.6, " B": 0.1}}]}
    script = {"tokenizer": str(BIGRAM), "unrecorded": "refuse", "rules": [rule]}
    app = TestClient(create_app(script))
    assert post(app, **{**GREEDY, "model": None}, max_tokens=1, logprobs=1).headers["x-stub-recorded"] == "exact"
    refused = post(app, **{**GREEDY, "model": None}, max_tokens=1, logprobs=2)
    assert (refused.status_code, "2 top logprobs are asked for, and 1 were recorded" in refused.text) == (404, True)
    known = {**script, "rules": [{**rule, "recorded": {"top_logprobs": [2]}}]}
    reply = post(TestClient(create_app(known)), **{**GREEDY, "model": None}, max_tokens=1, logprobs=2)
    assert reply.headers["x-stub-recorded"] == "exact"


def test_the_rest_is_shared(tmp_path: Path, recordings: list[Exchange]) -> None:
    """With `allow` it is a script as any other: 512 - 8 tokens share what is left of 1."""
    path = to_script(tmp_path, *recordings)
    recorded = yaml.safe_load(path.read_text(encoding="utf-8"))["rules"][0]["steps"][0]["logprobs"]
    app = TestClient(create_app(path, unrecorded="allow"))
    reply = post(app, **GREEDY, max_tokens=1, logprobs=1, logprob_token_ids=[300])
    assert "x-stub-recorded" not in reply.headers
    [top] = reply.json()["choices"][0]["logprobs"]["top_logprobs"]
    left = 1 - sum(map(exp, recorded.values()))
    assert min(top.values()) == pytest.approx(log(left / (512 - len(recorded))), abs=1e-4)


def test_labels_alone_answer_labels_alone(tmp_path: Path, raw: TestClient) -> None:
    """With allowed ids, the likeliest token of all isn't known: nothing else can be answered."""
    labels = {"allowed_token_ids": LABELS, "logprob_token_ids": LABELS, "logprobs": 1}
    app = scripted(tmp_path, record(raw, **GREEDY, max_tokens=1, **labels))
    [ours], [theirs] = (post(each, **GREEDY, max_tokens=1, **labels).json()["choices"] for each in (app, raw))
    assert ours["logprobs"]["top_logprobs"] == [pytest.approx(theirs["logprobs"]["top_logprobs"][0], abs=2e-5)]
    refused = post(app, **GREEDY, max_tokens=1)
    assert (refused.status_code, "the likeliest token was not recorded" in refused.text) == (404, True)


def test_streams_and_chats_are_read_too(tmp_path: Path, raw: TestClient) -> None:
    recorded = record(raw, "/v1/chat/completions", **CHAT, max_tokens=2, logprobs=True, top_logprobs=3, stream=True)
    app = scripted(tmp_path, recorded)
    asked = {**CHAT, "max_tokens": 1, "logprobs": True, "top_logprobs": 2}
    ours, theirs = (post(each, "/v1/chat/completions", **asked) for each in (app, raw))
    assert ours.headers["x-stub-recorded"] == "exact"
    [entry], [true] = (each.json()["choices"][0]["logprobs"]["content"] for each in (ours, theirs))
    assert [(top["token"], top["logprob"]) for top in entry["top_logprobs"]] == [
        (top["token"], pytest.approx(top["logprob"], abs=2e-5)) for top in true["top_logprobs"]
    ]
    streamed = post(app, "/v1/chat/completions", **asked, stream=True)
    assert streamed.headers["x-stub-recorded"] == "exact"


def test_processed_recordings_need_no_bent_distribution(
    tmp_path: Path, raw: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = record(raw, **GREEDY, max_tokens=1, logprobs=2)
    bent = [
        record(raw, **{**GREEDY, **fields}, max_tokens=1, logprobs=2) for fields in ({"temperature": 2}, {"top_k": 5})
    ]
    to_script(tmp_path, *bent, plain, mode="processed_logprobs")
    said = capsys.readouterr().out
    assert "1 rules, 1 steps, 2 recorded values" in said
    assert "exchange 1: processed logprobs are not the model's with its temperature" in said
    assert "exchange 2: processed logprobs are not the model's with top_k" in said


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("raw_logits", "--logprobs-mode: has to be raw_logprobs or processed_logprobs"),
        ("raw_logprobs", "no exchange has logprobs"),
    ],
)
def test_what_no_script_can_be_made_of(
    mode: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = cassette(tmp_path / "c.jsonl", full(request(prompt="x"), {"choices": [{"index": 0, "logprobs": None}]}))
    flags = ["--tokenizer", str(BIGRAM), "--logprobs-mode", mode, "--output", str(tmp_path / "s.yaml")]
    assert main(["cassette", "to-script", source, *flags]) == 2
    assert said in capsys.readouterr().err
