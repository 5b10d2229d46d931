"""A prompt that is scored gets the rows that generating its end would have had."""

from math import log

import pytest
from script_helpers import BLUE, EOS, FIXTURES, RED, load, logits_at, logits_in_prompt, request_for

from stubserver.errors import UnscriptedError
from stubserver.script.file.load import load_script

SKY = [300, 292, 297]  # The · sky · is
SKY_RULE = {"when": {"prompt": "The sky is"}, "steps": [{"probs": {" blue": 0.7}}, {"text": " and"}]}


def scored(loaded, prompt, **fields):
    return request_for(loaded, prompt, scores_prompt=True, **fields)


def test_scoring_gives_what_generating_gives():
    loaded = load_script(FIXTURES / "scripts" / "sky.yaml")
    generated = request_for(loaded, "The sky is")
    request = scored(loaded, "The sky is blue and good")
    output = request.prompt_token_ids[3:]
    for count in range(len(output) + 1):
        in_generation = logits_at(loaded, generated, output[:count])
        in_prompt = logits_in_prompt(loaded, request, 3 + count)
        assert in_prompt is in_generation
    assert logits_in_prompt(loaded, request, 3).logprobs[BLUE] == pytest.approx(log(0.7), abs=1e-6)
    assert logits_in_prompt(loaded, request, 6).values.argmax() == EOS


def test_other_positions_are_the_defaults():
    loaded = load(rules=[SKY_RULE], default={"logits": {" red": 1}, "rest": 0})
    request = scored(loaded, "The sky is blue")
    assert [int(logits_in_prompt(loaded, request, length).values.argmax()) for length in (1, 2, 3)] == [RED, RED, BLUE]
    elsewhere = scored(loaded, "A sky is blue")
    assert int(logits_in_prompt(loaded, elsewhere, 3).values.argmax()) == RED


def test_a_rule_that_matches_its_own_scored_prompt_goes_on_after_it():
    loaded = load(rules=[SKY_RULE], default="random")
    request = scored(loaded, "The sky is")
    assert logits_at(loaded, request).logprobs[BLUE] == pytest.approx(log(0.7), abs=1e-6)


def test_the_longest_beginning_wins_then_the_first_rule():
    longer = {"when": {"prompt": {"token_ids": [*SKY, BLUE]}}, "steps": [{"text": " red"}]}
    later = {"when": {"prompt": "The sky is"}, "steps": [{"text": " red"}]}
    loaded = load(rules=[SKY_RULE, later, longer], default="random")
    request = scored(loaded, [*SKY, BLUE, 5])
    assert logits_in_prompt(loaded, request, 3).values.argmax() == BLUE
    assert logits_in_prompt(loaded, request, 4).values.argmax() == RED


def test_then_error_leaves_the_rest_to_the_shorter_prompt():
    longer = {"when": {"prompt": {"token_ids": [*SKY, BLUE]}}, "steps": [{"text": " red"}], "then": "error"}
    loaded = load(rules=[SKY_RULE, longer], default="random")
    request = scored(loaded, [*SKY, BLUE, 5])
    assert logits_at(loaded, request).values.argmax() == EOS  # of the rule for SKY


def test_conditions_beside_the_prompt_have_to_hold():
    rule = SKY_RULE | {"when": {"prompt": "The sky is", "model": "raw"}}
    loaded = load(rules=[rule], default={"logits": {" red": 1}, "rest": 0})
    for model, expected in (("raw", BLUE), ("other", RED)):
        request = scored(loaded, "The sky is blue", model=model)
        assert logits_in_prompt(loaded, request, 3).values.argmax() == expected


def test_without_a_default_the_message_names_the_position():
    loaded = load(rules=[SKY_RULE])
    request = scored(loaded, "The sky is blue")
    with pytest.raises(UnscriptedError) as caught:
        logits_in_prompt(loaded, request, 1)
    assert str(caught.value) == (
        "The request scores its prompt, and the script has no row for position 1 of it: no rule answers for the "
        'beginning "The". Say `default: random` (or a step) for such positions, or add a rule whose prompt is that beginning.'
    )
    assert logits_in_prompt(loaded, request, 3).values.argmax() == BLUE


def test_a_longer_prompt_that_is_not_scored_needs_a_rule_of_its_own():
    loaded = load(rules=[SKY_RULE])
    with pytest.raises(UnscriptedError, match="The nearest is rules"):
        loaded.script.bind(request_for(loaded, "The sky is blue"))
