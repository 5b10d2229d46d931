"""Constraints: which tokens may come next, and what that does to the values."""

import json
import re
from typing import Any

import pytest
from engine_helpers import (
    EOS,
    FIXTURES,
    SPACE_A,
    SPACE_B,
    STARS,
    A,
    B,
    generation,
    model,
    output,
    says,
    t6_model,
)

from stubserver.config.settings import Settings, StructuredOutputsConfig
from stubserver.dialects.vllm import structured_outputs
from stubserver.engine.grammar import xgrammar
from stubserver.engine.grammar.constraint import Constraint
from stubserver.engine.grammar.matching import Grammar
from stubserver.errors import UnsupportedError, ValidationError
from stubserver.sampling.logits import Logits


def compile_constraint(kind: str, value: Any, config: StructuredOutputsConfig | None = None) -> Constraint:
    settings = Settings(structured_outputs_config=config or StructuredOutputsConfig())
    return structured_outputs.compile_constraint(kind, value, settings)


def allowed(kind: str, spec: Any, *tokens: int) -> list[int]:
    """The tokens of T6 that may come after these."""
    grammar = Grammar(compile_constraint(kind, spec), t6_model().grammar_tokens)
    for token_id in tokens:
        grammar.accept(token_id)
    kept = grammar.apply(Logits.of([0.0] * 6)).token_ids
    return list(range(6)) if kept is None else kept.tolist()


@pytest.mark.parametrize(
    ("kind", "spec", "first"),
    [
        ("choice", ["A", "B"], [A, B]),
        ("choice", [" A", "B"], [B, SPACE_A]),
        ("regex", "A+", [A]),
        ("regex", "(A| B) A", [A, SPACE_B]),
        ("regex", "A?", [A, EOS]),
        ("grammar", 'start: "A" | " **"', [A, STARS]),
        ("grammar", 'root ::= "B" " A"', [B]),
    ],
)
def test_only_what_begins_a_match_may_come_first(kind: str, spec: Any, first: list[int]) -> None:
    assert allowed(kind, spec) == first


def test_what_may_come_depends_on_what_came() -> None:
    """Of "AB", "A **" and "B A": after A comes B or " **", after B " A"."""
    choices = ["AB", "A **", "B A"]
    assert allowed("choice", choices) == [A, B]
    assert allowed("choice", choices, A) == [B, STARS]
    assert allowed("choice", choices, B) == [SPACE_A]


def test_after_the_end_only_eos_may_come() -> None:
    assert allowed("choice", ["A", "B"], A) == [EOS]
    assert allowed("regex", "A B", A, SPACE_B) == [EOS]


def test_where_a_match_may_end_or_go_on_both_may_come() -> None:
    assert allowed("regex", "A+", A) == [A, EOS]
    assert allowed("choice", ["A", "AB"], A) == [B, EOS]


def test_a_grammar_ends_with_eos() -> None:
    """ " **" is the best at every step; B is the better label; then only EOS is left."""
    found = output(t6_model(), constraint=("choice", ["A", "B"]))
    assert (found.token_ids, found.text, found.finish_reason) == ([B, EOS], "B", "stop")


def test_after_an_ignored_eos_nothing_is_masked() -> None:
    """The grammar is over; " **" is the best of the whole row."""
    found = output(t6_model(), constraint=("choice", ["A"]), ignore_eos=True, max_tokens=4)
    assert found.token_ids == [A, EOS, STARS, STARS]


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"])
def test_the_mask_comes_before_the_raw_values(mode: str) -> None:
    """In every mode the other four are -inf; of 0.5 and 1.5 alone the logprobs are -log(1 + e) and -log(1 + 1/e)."""
    made = generation(t6_model(logprobs_mode=mode), constraint=("choice", ["A", "B"]), logprobs=6)
    _, step = next(made.steps())
    assert step.logprobs is not None
    (position,) = step.logprobs
    values = dict(zip(position.token_ids, position.logprobs, strict=True))
    expected = {A: 0.5, B: 1.5} if mode.endswith("logits") else {A: -1.313262, B: -0.313262}
    assert {token_id: values.pop(token_id) for token_id in (A, B)} == pytest.approx(expected, abs=2e-6)
    assert list(values.values()) == [-float("inf")] * 4


def test_min_tokens_leaves_the_end_of_a_grammar() -> None:
    """After "A" nothing but EOS may come, so it comes, though 5 tokens are asked for."""
    assert output(t6_model(), constraint=("choice", ["A"]), min_tokens=5).token_ids == [A, EOS]


def test_min_tokens_goes_on_where_the_grammar_can() -> None:
    found = output(t6_model(says(A, EOS), then="repeat"), constraint=("regex", "A+"), min_tokens=3)
    assert found.token_ids == [A, A, A, EOS]


def test_each_choice_has_its_own_way_through_the_grammar() -> None:
    made = generation(t6_model(), temperature=1.0, n=2, seed=0, constraint=("choice", ["A", "B"]), forced=[[A], [B]])
    by_choice: dict[int, list[int]] = {0: [], 1: []}
    for index, step in made.steps():
        by_choice[index] += step.token_ids
    assert by_choice == {0: [A, EOS], 1: [B, EOS]}


def test_a_forced_token_that_the_grammar_refuses_is_an_error() -> None:
    made = generation(t6_model(), constraint=("choice", ["A", "B"]), forced=[[STARS]])
    with pytest.raises(ValidationError, match="token 4 can't come next"):
        list(made.steps())


def test_a_large_count_is_no_trouble() -> None:
    """A million times "a"."""
    found = output(t6_model(says(A), then="repeat"), constraint=("regex", "(A{1000}){1000}"), max_tokens=3)
    assert found.token_ids == [A, A, A]


def test_what_is_not_imitated_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xgrammar, "load_bindings", lambda: None)
    with pytest.raises(UnsupportedError, match=r"imitation of xgrammar can't follow this constraint: Token\(.*0\.2\.8"):
        compile_constraint("grammar", "root ::= Token(1)")


SCHEMA = {
    "type": "object",
    "properties": {"answer": {"enum": ["Yes", "No"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["answer", "n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("spec", [SCHEMA, json.dumps(SCHEMA)], ids=["object", "text"])
@pytest.mark.parametrize("seed", range(3))
def test_random_logits_under_a_schema_give_json_of_the_schema(spec: Any, seed: int) -> None:
    """Without whitespace tokens, of which JSON may have any number."""
    random = model({"tokenizer": str(FIXTURES / "bigram512"), "default": "random"}, seed=seed)
    blank = {i: -100.0 for i in range(512) if not random.tokenizer.token_bytes(i).strip()}
    found = output(random, (300,), constraint=("json", spec), max_tokens=200, logit_bias=blank)
    answer = json.loads(found.text)
    assert found.finish_reason == "stop"
    assert answer.keys() == {"answer", "n"}
    assert answer["answer"] in ("Yes", "No")
    assert 0 <= answer["n"] <= 99


def test_random_logits_under_a_regex_match_it() -> None:
    random = model({"tokenizer": str(FIXTURES / "bigram512"), "default": "random"})
    found = output(random, (300,), constraint=("regex", r"[a-f]{3}-\d{2}"), max_tokens=50)
    assert re.fullmatch(r"[a-f]{3}-\d{2}", found.text)


def test_json_object_is_an_object() -> None:
    random = model({"tokenizer": str(FIXTURES / "bigram512"), "default": "random"})
    first = output(random, (300,), constraint=("json_object", True), max_tokens=1)
    assert first.text.strip().startswith("{")


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("regex", "("),
        ("json", "{not json"),
        ("json", {"type": "no such type"}),
        ("json", {"$ref": "#/nowhere"}),
        ("grammar", "start: nothing_defined"),
        ("grammar", "root ::= undefined"),
        ("grammar", "\x00"),
    ],
)
def test_what_is_no_constraint_is_refused(kind: str, spec: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        compile_constraint(kind, spec)
    assert caught.value.message
