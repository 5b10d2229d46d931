"""Cases from public bug reports, on scripts of six and seven tokens, with the values worked out by hand.

Each test names its case and the report, and says the fact. Every step of T6 has this row:

    id     0     1     2     3     4     5
    text   A     B    " A"  " B"  " **" </s>
    logit  0.5   1.5   3.0   4.0   6.0  -1.0
    raw logprob  -5.683346  -4.683346  -3.183346  -2.183346  -0.183346  -7.183346

T7 has a seventh, a byte token of logit 2.0 that decodes to "A" too.
"""

import json
from functools import cache
from math import exp
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from stubserver.app import create_app

FIXTURES = Path(__file__).parents[1] / "fixtures"

MODES = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")
RAW = {"A": -5.683346, "B": -4.683346, " A": -3.183346, " B": -2.183346, " **": -0.183346, "</s>": -7.183346}
LOGITS = {"A": 0.5, "B": 1.5, " A": 3.0, " B": 4.0, " **": 6.0, "</s>": -1.0}
MASKED = -9999.0


@cache
def client(script: str = "t6", **settings: Any) -> TestClient:
    path = FIXTURES / "bigram512" / "script.yaml" if script == "bigram512" else FIXTURES / "scripts" / f"{script}.yaml"
    return TestClient(create_app(path, **settings))


def near(values: Any) -> Any:
    """The printed values have six decimals."""
    return pytest.approx(values, abs=2e-6)


def ask(server: TestClient, *, force: list[list[int]] | None = None, **body: Any) -> Any:
    """The JSON of a good answer to a greedy one-token request for "A", unless told otherwise."""
    headers = {"X-Stub-Force-Token-Ids": json.dumps(force)} if force else {}
    reply = server.post(
        "/v1/completions", json={"prompt": "A", "max_tokens": 1, "temperature": 0, **body}, headers=headers
    )
    assert reply.status_code == 200, reply.text
    return reply.json()


def choice(server: TestClient, **body: Any) -> Any:
    (only,) = ask(server, **body)["choices"]
    return only


def top(server: TestClient, **body: Any) -> dict[str, float]:
    """`top_logprobs` of the last generated token."""
    found: dict[str, float] = choice(server, **body)["logprobs"]["top_logprobs"][-1]
    return found


def refusal(server: TestClient, status: int = 400, **body: Any) -> dict[str, Any]:
    """The error of a refused request; after it the server still answers."""
    reply = server.post("/v1/completions", json={"prompt": "A", "max_tokens": 1, "temperature": 0, **body})
    assert reply.status_code == status, reply.text
    assert reply.json().keys() == {"error"}
    error: dict[str, Any] = reply.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert choice(server)["text"] == " **"
    return error


def events(server: TestClient, **body: Any) -> list[Any]:
    """The events of a stream; the last one is "[DONE]"."""
    reply = server.post(
        "/v1/completions", json={"prompt": "A", "max_tokens": 1, "temperature": 0, "stream": True, **body}
    )
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    data = [event.removeprefix("data: ") for event in reply.text.split("\n\n") if event]
    return [event if event == "[DONE]" else json.loads(event) for event in data]


class TestFixture:
    """Section 0: the values that the other cases are made of."""

    @pytest.mark.parametrize("mode", MODES)
    def test_the_row(self, mode: str) -> None:
        """Without parameters all modes agree: logits or their log_softmax."""
        expected = LOGITS if mode.endswith("logits") else RAW
        assert top(client(logprobs_mode=mode), logprobs=6, temperature=1, force=[[4]]) == near(expected)

    def test_temperature_divides_the_logits(self) -> None:
        expected = dict(zip(RAW, (-11.020719, -9.020719, -6.020719, -4.020719, -0.020719, -14.020719), strict=True))
        found = top(client(logprobs_mode="processed_logprobs"), logprobs=6, temperature=0.5, seed=1)
        assert found == near(expected)

    def test_temperature_and_top_k(self) -> None:
        body = {"logprobs": 2, "temperature": 0.5, "top_k": 2, "seed": 1, "force": [[4]]}
        found = top(client(logprobs_mode="processed_logprobs"), **body)
        assert found == near({" **": -0.018150, " B": -4.018150})
        assert top(client(logprobs_mode="processed_logits"), **body) == {" **": 12.0, " B": 8.0}

    @pytest.mark.parametrize("truncation", [{"top_k": 2}, {"top_p": 0.9}], ids=str)
    def test_top_k_2_and_top_p_point_9_keep_the_same_two(self, truncation: dict[str, Any]) -> None:
        """Of the probabilities 0.832 and 0.113 are the two; the other four have 0.055 together."""
        found = top(client(logprobs_mode="processed_logprobs"), logprobs=6, temperature=1, force=[[4]], **truncation)
        assert found.pop(" **") == near(-0.126928)
        assert found.pop(" B") == near(-2.126928)
        assert set(found.values()) == {MASKED}

    def test_allowed_token_ids_at_half_the_temperature(self) -> None:
        found = top(
            client(logprobs_mode="processed_logprobs"),
            logprobs=2,
            temperature=0.5,
            allowed_token_ids=[0, 1],
            force=[[1]],
        )
        assert found == near({"B": -0.126928, "A": -2.126928})

    def test_repetition_penalty(self) -> None:
        """6 / 1.2 = 5 and -1 · 1.2 = -1.2 for the prompt's ids 4 and 5."""
        body = {"prompt": [4, 5], "logprobs": 6, "repetition_penalty": 1.2}
        found = top(client(logprobs_mode="processed_logprobs"), **body)
        seen = {token: found[token] for token in (" **", "</s>", " B")}
        assert seen == near({" **": -0.436027, "</s>": -6.636027, " B": -1.436027})
        logits = top(client(logprobs_mode="processed_logits"), **body)
        assert logits == near({**LOGITS, " **": 5.0, "</s>": -1.2})

    def test_presence_and_frequency_penalty(self) -> None:
        """Twice generated: 6 - 0.5 - 2 · 0.25 = 5.0. Once, with the presence penalty alone: 5.5."""
        server = client(logprobs_mode="processed_logprobs")
        both = choice(server, logprobs=1, max_tokens=3, presence_penalty=0.5, frequency_penalty=0.25)["logprobs"]
        assert both["token_logprobs"][0] == near(-0.183346)
        assert both["token_logprobs"][2] == near(-0.436317)
        presence = choice(server, logprobs=1, max_tokens=3, presence_penalty=0.5)["logprobs"]
        assert presence["token_logprobs"] == near([-0.183346, -0.286511, -0.286511])

    def test_bad_word(self, tmp_path: Path) -> None:
        """The word is " **". In T6 "**" alone is no token, and a bad word has to be one; so here it is id 6, at -inf."""
        tokenizer = json.loads((FIXTURES / "t6" / "tokenizer.json").read_text())
        tokenizer["model"]["vocab"]["**"] = 6
        (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
        script = {
            "tokenizer": str(tmp_path),
            "rules": [{"steps": [{"logits": LOGITS, "rest": "-inf"}], "then": "repeat"}],
        }
        server = TestClient(create_app(script, logprobs_mode="processed_logprobs"))
        found = top(server, logprobs=5, bad_words=[" **"])
        expected = {"A": -3.896693, "B": -2.896693, " A": -1.396693, " B": -0.396693, "</s>": -5.396693}
        assert found == near(expected)

    def test_min_tokens(self) -> None:
        """EOS is masked until one token is out, and is back for the second."""
        found = choice(client(logprobs_mode="processed_logprobs"), logprobs=6, max_tokens=2, min_tokens=1)["logprobs"]
        first, second = found["top_logprobs"]
        assert [first[token] for token in (" **", " B")] == near([-0.182587, -2.182587])
        assert first["</s>"] == MASKED
        assert second == near(RAW)

    def test_t7(self) -> None:
        found = top(client("t7"), logprobs=7, return_tokens_as_token_ids=True)
        expected = {0: -5.698478, 6: -4.198478, 1: -4.698478, 4: -0.198478}
        assert {token_id: found[f"token_id:{token_id}"] for token_id in expected} == near(expected)


class TestLabels:
    """Masks, guided choice, fixed sets of labels."""

    @pytest.mark.parametrize(
        ("mode", "expected"),
        [
            ("raw_logprobs", {"B": -4.683346, " **": -0.183346, " B": -2.183346}),
            ("processed_logprobs", {"B": -0.313262, "A": -1.313262}),
            ("raw_logits", {"B": 1.5, " **": 6.0, " B": 4.0}),
            ("processed_logits", {"B": 1.5, "A": 0.5}),
        ],
    )
    def test_l1_raw_modes_do_not_show_allowed_token_ids(self, mode: str, expected: dict[str, float]) -> None:
        """L1 (MorrisZJ/AnyJev, anyjev/backends/vllm.py): the raw modes lose the label "A", the processed ones have it."""
        found = choice(client(logprobs_mode=mode), logprobs=2, allowed_token_ids=[0, 1])
        assert found["text"] == "B"
        assert found["logprobs"]["top_logprobs"] == [near(expected)]
        assert found["logprobs"]["token_logprobs"] == near([expected["B"]])

    @pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
    def test_l2_a_choice_shows_in_raw_mode_too(self, mode: str) -> None:
        """L2 (sinkarusa/jevemu, vllm_probe_report.md): a grammar masks before the raw values are taken."""
        found = top(client(logprobs_mode=mode), logprobs=6, structured_outputs={"choice": ["A", "B"]})
        assert [found.pop("B"), found.pop("A")] == near([-0.313262, -1.313262])
        assert list(found.values()) == [MASKED] * 4
        assert exp(-0.313262) + exp(-1.313262) == near(1.0)

    def test_l3_guided_choice_is_ignored(self) -> None:
        """L3 (sinkarusa/jevemu; vllm-project/vllm#12225): the removed field is unknown, and unknown ones are ignored."""
        found = choice(client(), logprobs=2, guided_choice=["A", "B"])
        assert found == choice(client(), logprobs=2)
        assert found["text"] == " **"

    def test_l4_asked_for_ids_take_the_place_of_the_top(self) -> None:
        """L4 (vllm-project/vllm#43466, PR#43463): `logprob_token_ids` reads labels that are outside of the top N."""
        body = {"logprobs": 1, "logprob_token_ids": [0, 1, 5], "return_tokens_as_token_ids": True}
        expected = {4: -0.183346, 0: -5.683346, 1: -4.683346, 5: -7.183346}
        assert top(client(), **body) == near({f"token_id:{token_id}": value for token_id, value in expected.items()})

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ({}, "when using `logprob_token_ids`, `logprobs` must be set."),
            ({"logprobs": 1, "echo": True, "max_tokens": 0}, "`logprob_token_ids` is not supported when `echo=True`"),
            ({"logprobs": 1, "use_beam_search": True}, "`logprob_token_ids` is not supported with beam search."),
        ],
        ids=["alone", "echo only", "beam search"],
    )
    def test_l4_asked_for_ids_are_refused_where_nothing_would_show_them(
        self, body: dict[str, Any], message: str
    ) -> None:
        """L4 (vllm-project/vllm#43466, PR#43463): without `logprobs`, with echo alone, with beam search: 400."""
        error = refusal(client(), logprob_token_ids=[0], **body)
        assert error["message"].startswith(message)
        assert error["param"] == "logprob_token_ids"

    def test_l6_labels_of_a_token_id_prompt(self) -> None:
        """L6 (a token-id prompt client, vLLM 0.25.1): processed values of the allowed ids are a distribution over them."""
        found = top(
            client(logprobs_mode="processed_logprobs"),
            prompt=[1, 2, 3],
            logprobs=2,
            allowed_token_ids=[0, 1],
            return_tokens_as_token_ids=True,
        )
        assert found == near({"token_id:1": -0.313262, "token_id:0": -1.313262})

    def test_l9_a_bias_out_of_the_vocabulary_is_refused(self) -> None:
        """L9 (vllm-project/vllm#16529): it once crashed the engine; it is a 400, and the server goes on."""
        error = refusal(client(), logit_bias={"999999": 1})
        assert error["message"].startswith("token_id(s) [999999] in logit_bias contain out-of-vocab token ids.")

    def test_l10_an_empty_bias_is_none(self) -> None:
        """L10 (vllm-project/vllm#1045): LangChain always sends `"logit_bias": {}`."""
        server = client(logprobs_mode="processed_logprobs")
        assert choice(server, logprobs=2, logit_bias={}) == choice(server, logprobs=2)

    def test_l11_a_bias_has_string_keys_and_shows_in_processed_modes_only(self) -> None:
        """L11 (BerriAI/litellm#7793): JSON has no other keys; 0.5 + 5 for "A"."""
        body = {"logprobs": 6, "logit_bias": {"0": 5}, "temperature": 1, "force": [[0]]}
        processed = (-1.089826, -5.089826, -3.589826, -2.589826, -0.589826, -7.589826)
        assert top(client(), **body) == near(RAW)
        found = top(client(logprobs_mode="processed_logprobs"), **body)
        assert found == near(dict(zip(RAW, processed, strict=True)))

    @pytest.mark.parametrize("mode", MODES)
    def test_l14_no_infinity_on_the_wire(self, mode: str) -> None:
        """L14 (vllm-project/vllm#4149, #8111, #2613, #16281): -inf goes out as -9999.0, in every mode."""
        body = {"prompt": "A", "max_tokens": 1, "logprobs": 6, "structured_outputs": {"choice": ["A", "B"]}}
        reply = client(logprobs_mode=mode).post("/v1/completions", json=body)
        assert reply.text.count("-9999.0") == 4
        assert "Infinity" not in reply.text
        assert "NaN" not in reply.text


class TestModes:
    """Raw and processed, temperature and penalties."""

    @pytest.mark.parametrize(("mode", "expected"), [("raw_logprobs", -2.183346), ("processed_logprobs", -4.020719)])
    def test_m1_temperature_shows_in_processed_values_only(self, mode: str, expected: float) -> None:
        """M1 (PrimeIntellect-ai/prime-rl#697, huggingface/trl#4159, …): and nowhere is a logprob divided by T."""
        found = choice(client(logprobs_mode=mode), temperature=0.5, logprobs=2, seed=1, force=[[3]])
        assert found["logprobs"]["token_logprobs"] == near([expected])
        assert abs(expected - -2.183346 / 0.5) > 0.3

    def test_m2_processed_is_after_everything_and_raw_before(self) -> None:
        """M2 (vllm-project/vllm#9453, #21398, #22387): T=0.5 and top_k=2; what is dropped is -9999.0."""
        body = {"temperature": 0.5, "top_k": 2, "logprobs": 6, "force": [[4]]}
        assert top(client(), **body) == near(RAW)
        found = top(client(logprobs_mode="processed_logprobs"), **body)
        assert [found.pop(" **"), found.pop(" B")] == near([-0.018150, -4.018150])
        assert list(found.values()) == [MASKED] * 4

    def test_m3_greedy_drops_nothing(self) -> None:
        """M3 (vllm/v1/sample/sampler.py): at temperature 0, top_k 1 leaves all six finite."""
        found = top(client(logprobs_mode="processed_logprobs"), temperature=0, top_k=1, top_p=0.1, logprobs=6)
        assert found == near(RAW)

    @pytest.mark.parametrize("mode", MODES)
    def test_m4_prompt_logprobs_follow_the_mode_and_no_parameter(self, mode: str) -> None:
        """M4 (vllm-project/vllm#35832, PR#36539, #37082): logits in the logits modes; raw values in all."""
        values = LOGITS if mode.endswith("logits") else RAW
        found = choice(
            client(logprobs_mode=mode),
            prompt=[0, 4, 2],
            prompt_logprobs=1,
            temperature=0.5,
            allowed_token_ids=[0],
            repetition_penalty=1.5,
        )["prompt_logprobs"]
        stars = {"logprob": near(values[" **"]), "rank": 1, "decoded_token": " **"}
        space_a = {"logprob": near(values[" A"]), "rank": 3, "decoded_token": " A"}
        assert found == [None, {"4": stars}, {"2": space_a, "4": stars}]

    @pytest.mark.parametrize("seed", range(5))
    def test_m5_the_sampled_token_is_finite_and_the_kept_sum_to_1(self, seed: int) -> None:
        """M5 (NVIDIA/TensorRT-LLM#9302; vllm-project/vime#64, #69): so no client meets -inf - -inf."""
        body = {"temperature": 0.5, "top_k": 2, "logprobs": 6, "seed": seed, "max_tokens": 5}
        found = choice(client(logprobs_mode="processed_logprobs"), **body)["logprobs"]
        for value, entry in zip(found["token_logprobs"], found["top_logprobs"], strict=True):
            assert value > MASKED
            assert sum(exp(each) for each in entry.values()) == near(1.0)

    def test_m12_a_bad_word_is_banned_with_and_without_its_space(self) -> None:
        """M12 (vllm-project/vllm#23886, #32557, #32601, #37676): "B" is ids 1 and 3, in processed values only."""
        body = {"bad_words": ["B"], "logprobs": 6}
        assert top(client(), **body) == near(RAW)
        assert top(client(logprobs_mode="processed_logits"), **body) == {**LOGITS, "B": MASKED, " B": MASKED}

    def test_m12_a_bad_word_is_banned_only_when_complete(self) -> None:
        """M12: of "A B" the " B" is banned after an A, and after anything else not."""
        found = choice(
            client(logprobs_mode="processed_logits"),
            bad_words=["A B"],
            logprobs=6,
            max_tokens=3,
            temperature=1,
            force=[[0, 4, 2]],
        )["logprobs"]["top_logprobs"]
        assert [entry[" B"] for entry in found] == [4.0, MASKED, 4.0]

    def test_m12_a_bad_word_without_tokens_is_refused(self) -> None:
        """M12 (vllm-project/vllm#53433): T6 can't spell "zzz"."""
        error = refusal(client(), bad_words=["zzz"])
        assert error["message"].startswith("bad_words entries must tokenize to at least one token.")

    def test_m13_stop_ids_out_of_the_vocabulary_are_refused(self) -> None:
        """M13 (gonka-ai/gonka#1170; vllm-project/vllm#54195, #54196): with min_tokens they once killed the engine."""
        error = refusal(client(), stop_token_ids=[999999], min_tokens=1)
        assert error["param"] == "stop_token_ids"

    def test_m14_greedy_is_the_best_of_the_processed_row(self) -> None:
        """M14 (vllm-project/vllm#6719, #3632): so in raw mode two tokens may be better than the one taken."""
        body = {"logprobs": 6, "allowed_token_ids": [0, 1]}
        processed = top(client(logprobs_mode="processed_logprobs"), **body)
        assert max(processed, key=processed.__getitem__) == choice(client(), **body)["text"] == "B"
        raw = top(client(), **body)
        assert [token for token, value in raw.items() if value > raw["B"]] == [" **", " B", " A"]


class TestShape:
    """How many entries, and what is refused."""

    @pytest.mark.parametrize(
        ("body", "count"),
        [
            ({"logprobs": 2, "allowed_token_ids": [0, 1]}, 3),
            ({"logprobs": 2}, 2),
            ({"logprobs": 0}, 1),
            ({"logprobs": True}, 1),
        ],
        ids=str,
    )
    def test_s1_n_or_n_plus_1_entries(self, body: dict[str, Any], count: int) -> None:
        """S1 (vllm-project/vllm#3752, #3707; lm-eval#2989): 0 is the sampled token alone, and true is 1."""
        assert len(top(client(), **body)) == count

    @pytest.mark.parametrize("body", [{}, {"logprobs": None}], ids=str)
    def test_s1_no_logprobs_is_null(self, body: dict[str, Any]) -> None:
        """S1 (vllm-project/vllm#3752; xorbitsai/inference#5270)."""
        assert choice(client(), **body)["logprobs"] is None

    def test_s5_the_sampled_token_comes_once(self) -> None:
        """S5 (vllm-project/vllm#36660, PR#36746): two ids, though the sampled token is among the best two."""
        found = top(client(), logprobs=2, return_tokens_as_token_ids=True)
        assert found == near({"token_id:4": -0.183346, "token_id:3": -2.183346})

    @pytest.mark.parametrize(
        ("cap", "name", "kind"),
        [(20, "logprobs", "sample"), (64, "logprobs", "sample"), (20, "prompt_logprobs", "prompt")],
    )
    def test_s7_above_the_cap_is_refused(self, cap: int, name: str, kind: str) -> None:
        """S7 (jevemu, llm-d-inference-sim, ms-swift#9644, vllm#5299): never cut to the cap in silence."""
        assert refusal(client(max_logprobs=cap), **{name: cap + 1}) == {
            "message": f"Requested {kind} logprobs of {cap + 1}, which is greater than max allowed: {cap} "
            f"(parameter={name}, value={cap + 1})",
            "type": "BadRequestError",
            "param": name,
            "code": 400,
        }
        ask(client(max_logprobs=cap), **{name: cap})

    def test_s7_minus_1_is_the_vocabulary(self) -> None:
        """S7: six tokens pass under caps of -1 and 6, and not under 5; vLLM 0.32.0 takes it in `logprobs` too."""
        for cap in (-1, 6):
            assert top(client(max_logprobs=cap), logprobs=-1) == near(RAW)
        assert refusal(client(max_logprobs=5), logprobs=-1)["message"].startswith("Requested sample logprobs of 6,")

    def test_s10_each_wrong_combination_has_its_words(self) -> None:
        """S10 (vLLM's protocol validators)."""
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"logprobs": -2}, "`logprobs` must be a positive value or -1. (parameter=logprobs, value=-2)"),
            (
                {"prompt_logprobs": 1, "stream": True},
                "`prompt_logprobs` are not available when `stream=True`. (parameter=prompt_logprobs)",
            ),
            (
                {"stream_options": {"include_usage": True}},
                "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
            ),
        ]
        for body, message in wrong:
            assert refusal(client(), **body)["message"] == message


class TestTokens:
    """Tokens as text, as placeholders and as offsets."""

    def test_b1_two_ids_with_one_text_share_a_key(self) -> None:
        """B1 (vllm-project/vllm#44319): "A" stands at the better id's place and has the later, worse value."""
        found = top(client("t7"), logprobs=7)
        assert list(found) == [" **", " B", " A", "A", "B", "</s>"]
        expected = {" **": -0.198478, " B": -2.198478, " A": -3.198478, "A": -5.698478, "B": -4.698478}
        assert {token: found[token] for token in expected} == near(expected)

    def test_b1_as_token_ids_both_are_there(self) -> None:
        """B1 (vllm-project/vllm#44319)."""
        found = top(client("t7"), logprobs=7, return_tokens_as_token_ids=True)
        assert len(found) == 7
        assert [found["token_id:6"], found["token_id:0"]] == near([-4.198478, -5.698478])

    def test_b5_only_ids_come_back_as_they_went(self) -> None:
        """B5 (vllm-project/vllm#16540): id 6 is shown as "A", which is id 0; as an id it stays 6."""
        server = client("t7")
        text = server.post("/detokenize", json={"tokens": [6]}).json()["prompt"]
        assert text == "A"
        assert server.post("/tokenize", json={"prompt": text}).json()["tokens"] == [0]
        assert choice(server, prompt=[6], return_token_ids=True)["prompt_token_ids"] == [6]

    @pytest.mark.parametrize("echo", [False, True])
    def test_b6_the_tokens_joined_are_the_text(self, echo: bool) -> None:
        """B6 (vllm-project/vllm#5334): tokens once held the text of those before them."""
        found = choice(client(), prompt="A B", echo=echo, logprobs=1, max_tokens=3, temperature=1, force=[[1, 2, 4]])
        assert found["text"] == ("A B" if echo else "") + "B A **"
        assert "".join(found["logprobs"]["tokens"]) == found["text"]

    @pytest.mark.parametrize(("echo", "offsets"), [(False, [0, 3, 6]), (True, [0, 1, 4, 7])])
    def test_o1_a_stream_has_the_offsets_of_a_full_reply(self, echo: bool, offsets: list[int]) -> None:
        """O1 (vllm-project/vllm#47815): " **" has 3 characters, the prompt 1; held back text plays no part."""
        body = {"echo": echo, "logprobs": 1, "max_tokens": 3, "stop": ["xyz"]}
        parts = [event["choices"][0] for event in events(client(), **body)[:-1]]
        assert parts[0]["text"] == ("A" if echo else "") + " "
        assert [offset for part in parts for offset in part["logprobs"]["text_offset"]] == offsets
        assert choice(client(), **body)["logprobs"]["text_offset"] == offsets

    def test_o3_placeholders_are_the_servers_choice_and_the_request_wins(self) -> None:
        """O3 (vllm-project/vllm#6626): every string in `tokens` and every key."""
        server = client(return_tokens_as_token_ids=True)
        found = choice(server, logprobs=2, echo=True)["logprobs"]
        assert found["tokens"] == ["token_id:0", "token_id:4"]
        assert list(found["top_logprobs"][-1]) == ["token_id:4", "token_id:3"]
        assert choice(server, logprobs=2, return_tokens_as_token_ids=False)["logprobs"]["tokens"] == [" **"]
        assert choice(client(), logprobs=2, return_tokens_as_token_ids=True)["logprobs"]["tokens"] == ["token_id:4"]

    def test_o4_offsets_start_at_0_without_echo(self) -> None:
        """O4 (xorbitsai/inference#5245; theroyallab/tabbyAPI#141): not at the prompt's length."""
        assert choice(client(), prompt="A B", logprobs=0)["logprobs"]["text_offset"] == [0]


class TestEcho:
    """Scoring a prompt."""

    def test_e1_lm_evaluation_harness_reads_a_continuation(self) -> None:
        """E1 (EleutherAI/lm-evaluation-harness openai_completions.py): context "A B", continuation " **" " B".

        It sums the values from the context's length to the last but one, and compares them with their dicts' largest.
        """
        found = choice(client(), prompt=[[0, 3, 4, 3]], logprobs=1, echo=True, seed=1234)["logprobs"]
        assert found["tokens"] == ["A", " B", " **", " B", " **"]
        assert found["token_logprobs"][0] is None
        assert sum(found["token_logprobs"][2:-1]) == near(-0.183346 - 2.183346)
        pairs = zip(found["token_logprobs"][2:-1], found["top_logprobs"][2:-1], strict=True)
        assert [value == max(entry.values()) for value, entry in pairs] == [True, False]

    def test_e2_echo_alone_is_the_prompt(self) -> None:
        """E2 (jevemu, echo_sequence_logprobs.json; vllm#6521, #9336): max_tokens 0, yet usage counts one token."""
        reply = ask(client(), prompt=[0, 4, 2], echo=True, logprobs=1, max_tokens=0)
        (found,) = reply["choices"]
        assert found["text"] == "A ** A"
        assert found["finish_reason"] == "length"
        assert found["logprobs"] == {
            "text_offset": [0, 1, 4],
            "token_logprobs": [None, near(-0.183346), near(-3.183346)],
            "tokens": ["A", " **", " A"],
            "top_logprobs": [None, near({" **": -0.183346}), near({" A": -3.183346, " **": -0.183346})],
        }
        assert list(found["prompt_logprobs"][2]) == ["2", "4"]
        assert found["prompt_logprobs"][2]["2"] == {"logprob": near(-3.183346), "rank": 3, "decoded_token": " A"}
        assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (3, 1)

    @pytest.mark.parametrize("body", [{"max_tokens": 0}, {"max_tokens": 2}, {"prompt": [5]}], ids=str)
    def test_e3_the_first_of_a_prompt_is_null(self, body: dict[str, Any]) -> None:
        """E3 (vllm-project/vllm#27477, #3065): nothing comes before it; every other token has a value."""
        found = choice(client(), **{"prompt": "A B", **body}, echo=True, logprobs=1)["logprobs"]
        assert [value is None for value in found["token_logprobs"]] == [True] + [False] * (len(found["tokens"]) - 1)
        assert found["top_logprobs"][0] is None

    def test_e5_special_tokens_are_text_in_an_echo(self) -> None:
        """E5 (huggingface/lighteval#1093, #1244): so that the offsets fit the text: "</s>" has 4 characters."""
        found = choice(client(), prompt=[5, 0], echo=True, logprobs=1, max_tokens=0)
        assert found["text"] == "</s>A"
        assert found["logprobs"]["text_offset"] == [0, 4]


class TestStreams:
    """Server-sent events."""

    @pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"continuous_usage_stats": True}], ids=str)
    def test_ss1_no_usage_unless_asked_for(self, options: dict[str, Any] | None) -> None:
        """SS1 (vllm-project/vllm#36379, #7262; BerriAI/litellm#25410)."""
        found = events(client(), max_tokens=2, stream_options=options)
        assert len(found) == 2 + 1
        assert found[-1] == "[DONE]"
        assert all(event["choices"] and not event.get("usage") for event in found[:-1])

    def test_ss1_usage_comes_last_without_choices(self) -> None:
        """SS1: "A" and two tokens."""
        *parts, last, done = events(client(), max_tokens=2, stream_options={"include_usage": True})
        assert done == "[DONE]"
        assert last["choices"] == []
        assert last["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
        assert not any(part.get("usage") for part in parts)

    def test_ss1_continuous_usage_counts_up(self) -> None:
        """SS1."""
        options = {"include_usage": True, "continuous_usage_stats": True}
        found = events(client(), max_tokens=2, stream_options=options)[:-1]
        assert [event["usage"]["completion_tokens"] for event in found] == [1, 2, 2]

    @pytest.mark.parametrize("good", [0, 2])
    def test_ss2_an_error_inside_a_stream_is_an_event(self, good: int) -> None:
        """SS2 (BerriAI/litellm#40578; vllm-project/vllm#40986): the 200 is out, so it is data, and then [DONE].

        The script fails after 0 or 2 tokens.
        """

        def fails_after(context: Any) -> dict[int, float]:
            if len(context.output_token_ids) == good:
                raise ValueError("out of ideas")
            return {4: 0.0}

        server = TestClient(create_app(fails_after, tokenizer=str(FIXTURES / "t6")))
        *parts, error, done = events(server, max_tokens=5)
        assert [part["choices"][0]["text"] for part in parts] == [" **"] * good
        assert error["error"]["message"].startswith("ValueError: out of ideas")
        assert (error["error"]["type"], error["error"]["code"]) == ("InternalServerError", 500)
        assert done == "[DONE]"

    def test_ss2_a_wrong_value_is_a_400_before_the_stream(self) -> None:
        """SS2: nothing was sent yet."""
        assert refusal(client(), stream=True, temperature=3)["param"] == "temperature"

    @pytest.mark.parametrize("body", [{"logprobs": 21}, {"prompt": [6]}, {"allowed_token_ids": [6]}], ids=str)
    def test_ss2_what_the_engine_refuses_is_an_event(self, body: dict[str, Any]) -> None:
        """SS2: vLLM 0.32.0 looks at the cap and the vocabulary when the 200 is out already."""
        error, done = events(client(), **body)
        assert error == {"error": refusal(client(), **body)}
        assert done == "[DONE]"


class TestPrompts:
    """Forms and lengths of prompts, and routes."""

    @pytest.mark.parametrize(
        ("prompt", "count"), [([1, 2], 1), ([[1, 2], [3]], 2), (["A", "B"], 2), ("A B", 1)], ids=str
    )
    def test_n2_forms_of_a_prompt(self, prompt: Any, count: int) -> None:
        """N2 (BerriAI/litellm#17118): a list of ids is one prompt, a list of lists or texts is several."""
        found = ask(client(), prompt=prompt)["choices"]
        assert [each["index"] for each in found] == list(range(count))

    @pytest.mark.parametrize("prompt", ["", [], None, [""], [[]]], ids=repr)
    def test_n3_an_empty_prompt_is_refused(self, prompt: Any) -> None:
        """N3 (vllm-project/vllm#7746, #7632, #7283)."""
        assert refusal(client(), prompt=prompt)["message"]

    @pytest.mark.parametrize("prompt", [[-1], [[-1]], [6], [[0], [999999]]], ids=repr)
    def test_n4_ids_out_of_the_vocabulary_are_refused(self, prompt: Any) -> None:
        """N4 (vllm-project/vllm#35231): six tokens, so 6 is the first that isn't one."""
        assert refusal(client(), prompt=prompt)["message"]

    def test_n7_empty_and_many_stop_strings_are_refused(self) -> None:
        """N7 (vllm-project/vllm#52599, #55483): four are the most."""
        assert refusal(client(), stop=["a", ""])["message"] == "stop cannot contain an empty string."
        assert "at most 4 items" in refusal(client(), stop=["a", "b", "c", "d", "e"])["message"]
        assert choice(client(), stop=["a", "b", "c", "d"])["text"] == " **"

    def test_g4_a_prompt_beyond_the_context_length(self) -> None:
        """G4 (litellm#10793): vLLM 0.32.0's words, by which gateways know the case."""
        assert refusal(client(max_model_len=4), prompt=[0] * 6) == {
            "message": "This model's maximum context length is 4 tokens. However, your prompt contains 6 input tokens, "
            "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
            "(parameter=input_tokens, value=6)",
            "type": "BadRequestError",
            "param": "input_tokens",
            "code": 400,
        }

    def test_g7_an_unknown_route(self) -> None:
        """G7 (vllm-project/vllm#5082): the framework's shape, not vLLM's."""
        reply = client().post("/generate", json={"prompt": "A"})
        assert (reply.status_code, reply.json()) == (404, {"detail": "Not Found"})


class TestChat:
    """The cases of chat. The template writes the first message and nothing else, so that the row is the same."""

    def chat(self, **body: Any) -> Any:
        server = client(trust_request_chat_template=True)
        request = {"messages": [{"role": "user", "content": "A"}], "max_tokens": 1, "temperature": 0, "logprobs": True}
        template = {"chat_template": "{{ messages[0].content }}", "add_special_tokens": False}
        reply = server.post("/v1/chat/completions", json={**request, **template, **body})
        assert reply.status_code == 200, reply.text
        return reply.json()

    def test_l13_the_sampled_token_counts_among_the_top(self) -> None:
        """L13 (vllm-project/vllm#6753, #19143): exactly N entries, so that " B" is not among them; completions have N+1."""
        [step] = self.chat(top_logprobs=2, allowed_token_ids=[0, 1])["choices"][0]["logprobs"]["content"]
        assert [entry["token"] for entry in step["top_logprobs"]] == ["B", " **"]
        assert [entry["logprob"] for entry in step["top_logprobs"]] == near([-4.683346, -0.183346])
        assert len(top(client(), logprobs=2, allowed_token_ids=[0, 1])) == 3

    @pytest.mark.parametrize("body", [{}, {"top_logprobs": 0}, {"top_logprobs": None}], ids=str)
    def test_s3_null_and_0_and_nothing_are_one(self, body: dict[str, Any]) -> None:
        """S3 (NVIDIA-NeMo/RL#2845, #3390; NVIDIA-NeMo/Gym#1612): null once meant no logprobs; in 0.32.0 it means 0."""
        [step] = self.chat(**body)["choices"][0]["logprobs"]["content"]
        assert (step["token"], step["logprob"], step["top_logprobs"]) == (" **", near(-0.183346), [])

    def test_s4_chat_has_a_list_and_completions_four(self) -> None:
        """S4 (vllm-project/vllm#3179, #2276, #2918): once, chat answered in the shape of completions."""
        content = self.chat(top_logprobs=1)["choices"][0]["logprobs"]
        entry = {"token": " **", "logprob": near(-0.183346), "bytes": [32, 42, 42]}
        assert content == {"content": [{**entry, "top_logprobs": [entry]}]}
        assert choice(client(), logprobs=1)["logprobs"] == {
            "text_offset": [0],
            "token_logprobs": near([-0.183346]),
            "tokens": [" **"],
            "top_logprobs": [{" **": near(-0.183346)}],
        }

    def test_e8_prompt_logprobs_are_the_templates(self) -> None:
        """E8 (vllm-project/vllm#7453): a row for each token of the rendered prompt, here "A B A"."""
        reply = self.chat(prompt_logprobs=0, chat_template="{{ messages[0].content }} B A")
        assert reply["usage"]["prompt_tokens"] == 3
        nothing, *rows = reply["prompt_logprobs"]
        assert nothing is None
        assert [{token_id: row["logprob"] for token_id, row in given.items()} for given in rows] == [
            {"3": near(-2.183346)},
            {"2": near(-3.183346)},
        ]
