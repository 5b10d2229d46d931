"""The loop: when an output ends and why, what of it is text, what seeds do, forced tokens."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from engine_helpers import (
    EOS,
    FIXTURES,
    SPACE_A,
    SPACE_B,
    STARS,
    T6_LOGITS,
    A,
    B,
    Output,
    generation,
    model,
    output,
    outputs,
    says,
    t6_model,
)

from stubserver.dialects.vllm.wire.errors import error_reply
from stubserver.errors import GenerationError, ValidationError

UNIFORM = {"logits": dict.fromkeys(T6_LOGITS, 0.0)}


def test_greedy_takes_the_best_until_max_tokens() -> None:
    assert output(t6_model(), max_tokens=3) == Output([STARS] * 3, " ** ** **", "length", None)


def test_eos_ends_the_output_and_is_no_text() -> None:
    assert output(t6_model(says(B, SPACE_A, EOS))) == Output([B, SPACE_A, EOS], "B A", "stop", None)


def test_ignored_eos_goes_on_and_is_no_text_while_special_tokens_are_skipped() -> None:
    steps = says(B, EOS, SPACE_A)
    assert output(t6_model(steps), ignore_eos=True, max_tokens=3) == Output([B, EOS, SPACE_A], "B A", "length", None)
    shown = output(t6_model(steps), ignore_eos=True, skip_special_tokens=False, max_tokens=3)
    assert shown.text == "B</s> A"


def test_eos_that_ends_the_output_is_text_if_stops_are_included_and_special_tokens_are_not_skipped() -> None:
    steps = says(B, EOS)
    assert output(t6_model(steps), skip_special_tokens=False).text == "B"
    assert output(t6_model(steps), include_stop_str_in_output=True).text == "B"
    assert output(t6_model(steps), include_stop_str_in_output=True, skip_special_tokens=False).text == "B</s>"


def test_a_stop_token_ends_the_output_and_is_named() -> None:
    steps = says(B, SPACE_A, B)
    assert output(t6_model(steps), stop_token_ids=[SPACE_A]) == Output([B, SPACE_A], "B", "stop", SPACE_A)
    included = output(t6_model(steps), stop_token_ids=[SPACE_A], include_stop_str_in_output=True)
    assert included == Output([B, SPACE_A], "B A", "stop", SPACE_A)


def test_an_eos_that_is_a_stop_token_too_is_an_eos_unless_that_is_ignored() -> None:
    assert output(t6_model(says(EOS)), stop_token_ids=[EOS]).stop_reason is None
    assert output(t6_model(says(EOS)), stop_token_ids=[EOS], ignore_eos=True).stop_reason == EOS


def test_the_context_length_ends_the_output() -> None:
    """Prompt of 3, room for 5."""
    assert output(t6_model(max_model_len=5), (A, B, A), max_tokens=10) == Output([STARS] * 2, " ** **", "length", None)


def test_a_stop_on_the_last_token_is_a_stop() -> None:
    assert output(t6_model(says(B, EOS)), max_tokens=2).finish_reason == "stop"
    assert output(t6_model(), stop=["*"], max_tokens=1).finish_reason == "stop"


def test_a_stop_string_ends_the_output() -> None:
    assert output(t6_model(says(B, SPACE_A, STARS, B)), stop=["A *"]) == Output(
        [B, SPACE_A, STARS], "B ", "stop", "A *"
    )


def test_the_text_of_a_stop_token_is_no_stop_string() -> None:
    found = output(t6_model(says(B, SPACE_A)), stop=["A"], stop_token_ids=[SPACE_A])
    assert found == Output([B, SPACE_A], "B", "stop", SPACE_A)


def test_the_held_back_text_lags_and_comes_in_the_end() -> None:
    """ "** *" has 4 characters, so 3 are held back of " **", " ** B" and " ** B A"."""
    steps = [
        step for _, step in generation(t6_model(says(STARS, SPACE_B, SPACE_A)), stop=["** *"], max_tokens=3).steps()
    ]
    assert [step.text for step in steps] == ["", " *", "* B A"]


@pytest.mark.parametrize(("min_tokens", "length"), [(0, 1), (1, 1 + 1), (2, 2 + 1)])
def test_min_tokens_have_to_be_out_before_eos(min_tokens: int, length: int) -> None:
    """EOS is the best, but masked until min_tokens tokens are out: one more is then EOS itself."""
    found = output(t6_model(says(EOS)), min_tokens=min_tokens)
    assert (len(found.token_ids), found.token_ids[-1]) == (length, EOS)


def test_min_tokens_have_to_be_out_before_a_stop_string() -> None:
    """With min_tokens 2 the second "A" is too early, the third stops."""
    steps = says(SPACE_A, SPACE_A, SPACE_A, SPACE_A)
    assert len(output(t6_model(steps), stop=["A"]).token_ids) == 1
    assert output(t6_model(steps), stop=["A"], min_tokens=2) == Output([SPACE_A] * 3, " A A ", "stop", "A")


def test_min_tokens_masks_ignored_eos_too() -> None:
    """As in vLLM: EOS among the masked ids doesn't depend on ignore_eos."""
    found = output(t6_model(says(EOS)), min_tokens=1, max_tokens=2, ignore_eos=True)
    assert found.token_ids[0] != EOS
    assert found.token_ids[1] == EOS


def test_choices_with_one_seed_differ() -> None:
    choices = outputs(generation(t6_model(UNIFORM), temperature=1.0, n=4, seed=1, max_tokens=20, ignore_eos=True))
    assert len({tuple(choice.token_ids) for choice in choices}) == 4


def test_the_same_seed_gives_the_same_answer_whatever_was_asked_in_between() -> None:
    served = t6_model(UNIFORM)

    def ask(seed: int) -> list[Output]:
        return outputs(generation(served, temperature=1.0, n=2, seed=seed, max_tokens=10))

    answers = {seed: ask(seed) for seed in (1, 2, 3)}
    for order in permutations((1, 2, 3)):
        assert {seed: ask(seed) for seed in order} == answers


def test_a_choice_is_the_same_however_many_there_are_beside_it() -> None:
    served = t6_model(UNIFORM)
    two, four = (
        outputs(generation(served, temperature=1.0, n=n, seed=5, max_tokens=10, ignore_eos=True)) for n in (2, 4)
    )
    assert four[:2] == two


def test_choice_i_of_seed_s_is_the_only_choice_of_seed_s_plus_i() -> None:
    served = t6_model(UNIFORM)
    choices = outputs(generation(served, temperature=1.0, n=3, seed=5, max_tokens=10))
    assert choices == [output(served, temperature=1.0, seed=5 + i, max_tokens=10) for i in range(3)]


def test_without_a_seed_each_request_differs_and_each_server_does_the_same() -> None:
    def first_two(seed: int) -> list[Output]:
        served = t6_model(UNIFORM, seed=seed)
        return [output(served, temperature=1.0, max_tokens=20, ignore_eos=True) for _ in range(2)]

    one, two = first_two(0)
    assert one != two
    assert first_two(0) == [one, two]
    assert first_two(1) != [one, two]


def test_choices_take_turns() -> None:
    order = [
        index
        for index, _ in generation(t6_model(), temperature=1.0, n=2, seed=0, max_tokens=3, ignore_eos=True).steps()
    ]
    assert order == [0, 1, 0, 1, 0, 1]


def test_forced_tokens_are_taken_and_the_rest_computed() -> None:
    """Of the row 0.5, 1.5, 3, 4, 6, -1 the forced B has rank 4; after the forced ones comes the best."""
    made = generation(t6_model(), forced=[[B, A]], max_tokens=3, logprobs=1)
    steps = [step for _, step in made.steps()]
    assert [list(step.token_ids) for step in steps] == [[B], [A], [STARS]]
    assert steps[0].logprobs is not None
    first = steps[0].logprobs[0]
    assert (list(first.token_ids), list(first.ranks)) == ([B, STARS], [4, 1])
    assert list(first.logprobs) == pytest.approx([-4.683346, -0.183346], abs=2e-6)


def test_each_choice_has_its_own_forced_tokens() -> None:
    choices = outputs(generation(t6_model(), temperature=1.0, n=3, seed=0, forced=[[A, B], [], [EOS]], max_tokens=2))
    assert choices[0].token_ids == [A, B]
    assert choices[2] == Output([EOS], "", "stop", None)


def test_a_forced_token_is_context_for_the_next() -> None:
    """The bigram table: what follows depends on the token before, here a forced one."""
    served = model(FIXTURES / "bigram512" / "script.yaml")
    table = np.load(FIXTURES / "bigram512" / "logits.npz")["table"]
    assert output(served, (300,), forced=[[276]], max_tokens=2).token_ids == [276, int(table[276].argmax())]


def test_prompt_logprobs_are_those_of_each_token_after_the_ones_before() -> None:
    table = np.load(FIXTURES / "bigram512" / "logits.npz")["table"].astype(np.float64)
    made = generation(model(FIXTURES / "bigram512" / "script.yaml"), (300, 292, 297), prompt_logprobs=0)
    first, *positions = made.prompt_logprobs
    assert first is None
    for before, token_id, position in zip((300, 292), (292, 297), positions, strict=True):
        expected = table[before][token_id] - np.log(np.exp(table[before]).sum())
        assert position is not None
        assert list(position.token_ids) == [token_id]
        assert position.logprobs == pytest.approx([expected], abs=2e-5)


@pytest.mark.parametrize(
    ("prompt", "code", "value", "words"),
    [
        ((), "empty_prompt", None, "The decoder prompt cannot be empty"),
        ((A, 6), "unknown_token", 6, "Token id 6 is out of vocabulary"),
    ],
)
def test_a_prompt_that_the_model_cannot_take_is_refused(
    prompt: tuple[int, ...], code: str, value: int | None, words: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        generation(t6_model(), prompt)
    assert (caught.value.code, caught.value.value) == (code, value)
    assert error_reply(caught.value)[1]["error"]["message"] == words


def test_nan_is_refused() -> None:
    """Where everything is masked there is no distribution; JSON has no NaN to say so."""
    made = generation(
        t6_model(logprobs_mode="processed_logprobs"), bad_words_token_ids=[[i] for i in range(6)], logprobs=0
    )
    with pytest.raises(ValidationError) as caught:
        list(made.steps())
    assert error_reply(caught.value)[1]["error"]["message"] == "Out of range float values are not JSON compliant"


def test_everything_masked_takes_token_0_where_no_logprobs_are_asked_for() -> None:
    found = output(t6_model(), bad_words_token_ids=[[i] for i in range(6)], max_tokens=2)
    assert found.token_ids == [0, 0]


def test_what_a_custom_processor_raises_fails_the_request_with_type_and_message() -> None:
    def broken(row: np.ndarray) -> np.ndarray:
        raise KeyError("no such label")

    with pytest.raises(GenerationError, match="KeyError: 'no such label'") as caught:
        output(t6_model(custom_processors=[broken]))
    assert isinstance(caught.value.__cause__, KeyError)


def test_logprobs_are_left_out_unless_asked_for() -> None:
    def first(**params: Any) -> Any:
        return next(generation(t6_model(), **params).steps())[1].logprobs

    assert first() is None
    assert len(first(logprobs=0)) == 1
