"""Which rule answers, and what is said when none does."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from script_helpers import BIGRAM512, BLUE, FIXTURES, GOOD, NO, RED, ROOT, YES, greedy, load, logits_at, request_for

from stubserver.errors import UnscriptedError
from stubserver.keys.conditions import read_conditions
from stubserver.keys.document import Document
from stubserver.keys.when import When
from stubserver.script.conditions import json_equal
from stubserver.script.context import Context, ScriptRequest
from stubserver.script.file.load import load_script
from stubserver.script.nearest import common_length
from stubserver.script.rule import Rule
from stubserver.script.rules import RuleIndex


def holds(when, **request):
    conditions = read_conditions(When.model_validate(when), Document("test", when, FIXTURES).root)
    fields = {
        "endpoint": "/v1/completions",
        "model": "raw",
        "prompt": "The sky is",
        "prompt_token_ids": [1, 2],
        "body": {},
        "headers": {},
    }
    return all(condition.holds(ScriptRequest(**(fields | request))) for condition in conditions)


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ({}, True),
        ({"prompt": "The sky is"}, True),
        ({"prompt": "The sky"}, False),
        ({"prompt": {"exact": "The sky is", "contains": "moon"}}, False),
        ({"prompt": {"contains": "sky"}}, True),
        ({"prompt": {"regex": "s.y"}}, True),
        ({"prompt": {"regex": "^sky"}}, False),
        ({"prompt": {"token_ids": [1, 2]}}, True),
        ({"prompt": {"token_ids": [1]}}, False),
        ({"model": "raw"}, True),
        ({"model": ["a", "raw"]}, True),
        ({"model": "Raw"}, False),
    ],
)
def test_prompt_and_model(when, expected):
    assert holds(when) == expected


BODY = {
    "temperature": 0,
    "seed": None,
    "stop": ["a", "b"],
    "stream_options": {"include_usage": True},
    "messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "hello there"}],
    "a.b": {"c": 1},
}


@pytest.mark.parametrize(
    ("path", "wanted", "expected"),
    [
        ("temperature", 0, True),
        ("temperature", 0.0, True),
        ("temperature", False, False),
        ("temperature", "0", False),
        ("$.temperature", 0, True),
        ("seed", None, True),
        ("missing", None, False),
        ("missing", {"exists": False}, True),
        ("seed", {"exists": True}, True),
        ("stop", ["a", "b"], True),
        ("stop[1]", "b", True),
        ("stop[2]", "b", False),
        ("stop[-1]", "b", True),
        ("stream_options.include_usage", True, True),
        ("stream_options.include_usage", 1, False),
        ("stream_options", {"exact": {"include_usage": True}}, True),
        ("messages[-1].content", {"contains": "there"}, True),
        ("messages[0].content", {"regex": "^be$"}, True),
        ("messages[0]", {"contains": "be"}, False),
        ('["a.b"].c', 1, True),
        ("temperature.x", {"exists": True}, False),
    ],
)
def test_fields(path, wanted, expected):
    assert holds({"field": {path: wanted}}, body=BODY) == expected


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ({"X-Tenant": "a"}, True),
        ({"x-tenant": "b"}, False),
        ({"x-tenant": {"regex": "[ab]"}}, True),
        ({"x-tenant": {"contains": "a"}}, True),
        ({"x-other": {"exists": False}}, True),
        ({"x-other": "a"}, False),
    ],
)
def test_headers(header, expected):
    assert holds({"header": header}, headers={"x-tenant": "a"}) == expected


def test_json_equality():
    assert json_equal([1, {"a": 2.0}], (1.0, {"a": 2}))
    assert not json_equal({"a": 1}, {"a": 1, "b": 1})
    assert not json_equal([1], [1, 2])
    assert not json_equal([True], [1])
    assert not json_equal({"a": 1}, [1])


def test_conditions_example():
    loaded = load_script(FIXTURES / "scripts" / "conditions.yaml")
    usage = {"temperature": 0, "stream_options": {"include_usage": True}}
    chat = {"messages": [{"role": "user", "content": "Hello!"}]}
    agent = {"x-tenant": "a", "user-agent": "OpenAI/Python"}
    assert greedy(loaded, request_for(loaded), 1) == [BLUE]
    assert greedy(loaded, request_for(loaded, [300, 292]), 1) == [RED]
    assert greedy(loaded, request_for(loaded, "Answer:", headers=agent), 1) == [YES]
    assert greedy(loaded, request_for(loaded, "x", model="raw", body=usage), 1) == [NO]
    assert greedy(loaded, request_for(loaded, "x", body=chat), 1) == [GOOD]


def test_the_first_rule_wins_across_kinds():
    exact = {"when": {"prompt": "The sky is"}, "steps": [{"text": " blue"}]}
    part = {"when": {"prompt": {"contains": "sky"}}, "steps": [{"text": " red"}]}
    for rules, expected in (
        ([exact, part], BLUE),
        ([part, exact], RED),
        ([exact | {"when": {"model": "x"}}, part], RED),
    ):
        loaded = load(rules=rules)
        assert greedy(loaded, request_for(loaded), 1) == [expected]


PROMPTS = ["", "a", "ab", "b"]
WHENS = st.fixed_dictionaries(
    {},
    optional={
        "prompt": st.one_of(
            st.sampled_from(PROMPTS).map(lambda text: {"exact": text}),
            st.sampled_from(PROMPTS).map(lambda text: {"contains": text}),
            st.lists(st.integers(0, 1), max_size=2).map(lambda ids: {"token_ids": ids}),
            st.tuples(st.sampled_from(PROMPTS), st.lists(st.integers(0, 1), max_size=1)).map(
                lambda both: {"exact": both[0], "token_ids": both[1]}
            ),
        ),
        "model": st.sampled_from(["raw", "other"]),
    },
)


@given(st.lists(WHENS, max_size=8), st.sampled_from(PROMPTS), st.lists(st.integers(0, 1), max_size=2))
def test_the_index_finds_what_a_search_in_order_finds(whens, prompt, token_ids):
    rules = []
    for number, when in enumerate(whens):
        match = when.get("prompt", {})
        ids = match.get("token_ids")
        conditions = read_conditions(When.model_validate(when), Document("test", when, FIXTURES).root)
        rules.append(Rule(str(number), conditions, (), None, match.get("exact"), None if ids is None else tuple(ids)))
    request = ScriptRequest("/v1/completions", "raw", prompt, token_ids, {}, {})
    in_order = next((rule for rule in rules if rule.matches(request)), None)
    assert RuleIndex(rules).first_match(request) is in_order


# No rule answers ------------------------------------------------------------------------------------------------------


def refusal(loaded, request):
    with pytest.raises(UnscriptedError) as caught:
        loaded.script.bind(request)
    return str(caught.value)


def test_nearest_rule_by_prompt():
    prompts = ["Is water wet?", "The sky is", "The sea is", *(f"Question {number}" for number in range(2000))]
    loaded = load(rules=[{"when": {"prompt": prompt}, "steps": []} for prompt in prompts])
    assert refusal(loaded, request_for(loaded, "The sky is ")) == (
        "No rule answers this request. The nearest is rules[1]: prompt differs at character 10: "
        'wanted "The sky is", got "The sky is ". Add a rule, or a `default`.'
    )
    assert 'The nearest is rules[0]: prompt differs at character 9: wanted "Is water wet?", got "Is water met?"' in (
        refusal(loaded, request_for(loaded, "Is water met?"))
    )


def test_nearest_rule_shows_a_long_prompt_around_the_difference():
    head = "A system prompt that every request shares, and that is long. " * 50
    prompts = [f"{head}What is the colour of {thing}?" for thing in ("grass", "snow", "the sky")]
    loaded = load(rules=[{"when": {"prompt": prompt}, "steps": []} for prompt in prompts])
    message = refusal(loaded, request_for(loaded, f"{head}What is the colour of the Sky?"))
    assert "rules[2]: prompt differs at character 3076: " in message
    assert 'wanted …"s the colour of the sky?", got …"s the colour of the Sky?"' in message


def test_nearest_rule_by_what_is_beside_the_prompt():
    when = {"prompt": "The sky is", "model": "raw", "header": {"x-tenant": "a"}, "field": {"seed": 1}}
    loaded = load(
        rules=[{"when": {"prompt": "Nothing alike"}, "steps": []}, {"name": "sky", "when": when, "steps": []}]
    )
    assert refusal(loaded, request_for(loaded, body={"seed": "1"})) == (
        'No rule answers this request. The nearest is "sky" (rules[1]): model: wanted \'raw\', got "stub"; '
        'field seed: wanted 1, got "1"; header x-tenant: wanted "a", got nothing. Add a rule, or a `default`.'
    )


def test_nearest_rule_without_exact_prompt():
    loaded = load(rules=[{"when": {"prompt": {"regex": "moon"}, "model": "x"}, "steps": []}])
    assert "prompt: wanted a text with /moon/, got \"The sky is\"; model: wanted 'x'" in refusal(
        loaded, request_for(loaded)
    )


def test_no_rules_at_all():
    loaded = load(rules=[])
    assert refusal(loaded, request_for(loaded)).startswith("The script has no rules")


def test_a_lone_surrogate_stays_out_of_the_message():
    loaded = load(rules=[{"when": {"field": {"user": "a"}}, "steps": []}])
    refusal(loaded, request_for(loaded, body={"user": "\ud800"})).encode()


@given(st.text(alphabet="ab", max_size=9), st.text(alphabet="ab", max_size=9))
def test_common_length(a, b):
    differing = (index for index, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    assert common_length(a, b) == next(differing, min(len(a), len(b)))


# The default ----------------------------------------------------------------------------------------------------------


def test_default_step():
    loaded = load(default={"logits": {" blue": 1}, "rest": 0})
    request = request_for(loaded)
    assert logits_at(loaded, request) is logits_at(loaded, request, [5, 6])
    assert logits_at(loaded, request).values[BLUE] == 1


def test_default_random_depends_on_context_and_seed_alone():
    loaded = load(default={"random": {"scale": 2.0}})
    request = request_for(loaded, [1, 2, 3])
    row = logits_at(loaded, request).values
    assert row.std() == pytest.approx(2, rel=0.15)
    split_otherwise = Context(request_for(loaded, [1]), [1], [2, 3])
    assert loaded.script.bind(split_otherwise.request)(split_otherwise).values.tolist() == row.tolist()
    assert logits_at(loaded, request, seed=1).values.tolist() != row.tolist()
    assert logits_at(loaded, request, [4]).values.tolist() != row.tolist()


def test_default_random_draws_no_padding():
    loaded = load(vocab_size=1000, default="random")
    row = logits_at(loaded, request_for(loaded)).values
    assert row[512:].tolist() == [-40.0] * 488
    assert row[:512].min() > -40


def test_default_random_is_the_same_in_every_process():
    code = (
        "from stubserver.script.file.load import load_script\n"
        "from stubserver.script.context import Context, ScriptRequest\n"
        f"script = load_script({{'tokenizer': {BIGRAM512!r}, 'default': 'random'}}).script\n"
        "request = ScriptRequest('/v1/completions', 'm', 'x', [1, 2, 3], {}, {})\n"
        "print(script.bind(request)(Context(request, [1, 2, 3], [4], 5)).values.tobytes().hex())\n"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    loaded = load(default="random")
    here = logits_at(loaded, request_for(loaded, [1, 2, 3]), [4], 5).values.tobytes().hex()
    assert runs == {here + "\n"}
