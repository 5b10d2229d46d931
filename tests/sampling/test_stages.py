"""Which operation comes before which: in V1, in V2, and where that shows."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import EOS, INF, SPACE_A, SPACE_B, STARS, T6, A, B, log_softmax, only

from stubserver.config.settings import ModelRunner, Settings
from stubserver.dialects.vllm.behaviour import VLLM_0_32_0
from stubserver.sampling.logits import MOST_PROCESSED, Logits
from stubserver.sampling.params import SamplingParams
from stubserver.sampling.stages import LARGEST_REMEMBERED, Stage, StepState, process_logits

RUNNERS: tuple[ModelRunner, ...] = ("v1", "v2")
both_runners = pytest.mark.parametrize("runner", RUNNERS)


def state(
    prompt: tuple[int, ...] = (),
    output: tuple[int, ...] = (),
    custom: Callable[[np.ndarray], np.ndarray] | None = None,
    **fields: Any,
) -> StepState:
    return StepState(prompt, output, custom_processors=() if custom is None else (custom,), **fields)


def stages(runner: ModelRunner, params: SamplingParams) -> Sequence[Stage]:
    return VLLM_0_32_0.stages(params, Settings(model_runner=runner))


def process(runner: ModelRunner, state: StepState, raw: Logits | None = None, **params: Any) -> list[float]:
    params = {"temperature": 0.0, **params}
    wanted = SamplingParams(**params)
    return process_logits(raw or Logits.of(T6), wanted, state, stages(runner, wanted)).dense().tolist()


def add_two(row: np.ndarray) -> np.ndarray:
    return row + 2


def set_stars_to_nine(row: np.ndarray) -> np.ndarray:
    row[STARS] = 9
    return row


@both_runners
def test_without_parameters_nothing_changes(runner: ModelRunner) -> None:
    assert process(runner, state(prompt=(STARS,), output=(A,))) == T6


@both_runners
def test_every_operation_is_in_both_orders(runner: ModelRunner) -> None:
    greedy = SamplingParams(temperature=0.0)
    assert len(stages(runner, greedy)) == len(set(stages("v1", greedy)) & set(stages("v2", greedy))) == 9


@pytest.mark.parametrize(("runner", "expected"), [("v1", (6 + 2) / 2), ("v2", 6 / 2 + 2)])
def test_a_penalty_scales_what_a_custom_processor_adds_in_v1_only(runner: ModelRunner, expected: float) -> None:
    processed = process(runner, state(prompt=(STARS,), custom=add_two), repetition_penalty=2.0)
    assert processed == [2.5, 3.5, 5.0, 6.0, expected, 1.0]


@pytest.mark.parametrize(("runner", "expected"), [("v1", 9 - 0.5), ("v2", 9.0)])
def test_a_penalty_comes_after_what_a_custom_processor_sets_in_v1_only(runner: ModelRunner, expected: float) -> None:
    assert process(runner, state(output=(STARS,), custom=set_stars_to_nine), presence_penalty=0.5)[STARS] == expected


@pytest.mark.parametrize(("runner", "expected"), [("v1", 9 / 2), ("v2", 9.0)])
def test_a_custom_processor_brings_a_bad_word_back(runner: ModelRunner, expected: float) -> None:
    """In both orders the bad words come before it; V1 still penalises the token that is back."""
    there = state(prompt=(STARS,), custom=set_stars_to_nine)
    bad_words = {"bad_words_token_ids": [[STARS]], "repetition_penalty": 2.0}
    assert process(runner, there, **bad_words) == [0.5, 1.5, 3.0, 4.0, expected, -1.0]


@both_runners
def test_a_custom_processor_meets_masks_and_biases_alike(runner: ModelRunner) -> None:
    """6 + 1, doubled; the masked ones stay masked."""
    processed = process(
        runner,
        state(custom=lambda row: row * 2, ending_token_ids=(EOS,)),
        logit_bias={STARS: 1.0},
        allowed_token_ids=[A, STARS, EOS],
        min_tokens=1,
    )
    assert processed == [1.0, -INF, -INF, -INF, 14.0, -INF]


@both_runners
def test_custom_processors_run_in_turn(runner: ModelRunner) -> None:
    """(6 + 2) · 3, not 6 · 3 + 2."""
    two = StepState((), (), custom_processors=(add_two, lambda row: row * 3))
    assert process(runner, two)[STARS] == 24.0


@both_runners
def test_a_bias_is_added_before_the_penalties(runner: ModelRunner) -> None:
    """(6 + 2) / 2 - 3 · 0.25 - 0.5, and not 6 / 2 + 2 - …; the prompt counts for the repetition penalty alone."""
    processed = process(
        runner,
        state(prompt=(SPACE_B,), output=(STARS, STARS, STARS)),
        logit_bias={STARS: 2.0},
        repetition_penalty=2.0,
        frequency_penalty=0.25,
        presence_penalty=0.5,
    )
    assert processed == [0.5, 1.5, 3.0, 2.0, 2.75, -1.0]


@both_runners
def test_a_bias_brings_no_masked_token_back(runner: ModelRunner) -> None:
    processed = process(
        runner,
        state(ending_token_ids=(EOS,)),
        allowed_token_ids=[A, SPACE_A, EOS],
        bad_words_token_ids=[[A]],
        min_tokens=1,
        logit_bias=dict.fromkeys(range(6), 100.0),
    )
    assert processed == [-INF, -INF, 103.0, -INF, -INF, -INF]


@both_runners
@pytest.mark.parametrize(("output", "expected"), [((), -INF), ((A,), -INF), ((A, A), -1.0)])
def test_min_tokens_masks_endings_until_as_many_are_out(
    runner: ModelRunner, output: tuple[int, ...], expected: float
) -> None:
    assert process(runner, state(output=output, ending_token_ids=(EOS,)), min_tokens=2)[EOS] == expected


@both_runners
def test_min_tokens_leaves_the_end_of_a_grammar(runner: ModelRunner) -> None:
    over = state(ending_token_ids=(EOS,), constrained=True)
    assert process(runner, over, raw=only(T6, EOS), min_tokens=2)[EOS] == -1.0


@both_runners
def test_greedy_leaves_temperature_and_truncation_out(runner: ModelRunner) -> None:
    assert process(runner, state(), temperature=0.0, top_k=1, top_p=0.1, min_p=0.9) == T6
    assert process(runner, state(), temperature=9e-6, top_k=1, top_p=0.1, min_p=0.9) == T6


@both_runners
def test_temperature_comes_after_the_penalties(runner: ModelRunner) -> None:
    """(6 - 1) / 0.5, not 6 / 0.5 - 1."""
    assert process(runner, state(output=(STARS,)), temperature=0.5, presence_penalty=1.0)[STARS] == 10.0


@both_runners
def test_temperature_comes_before_min_p(runner: ModelRunner) -> None:
    """Shares of the largest at T=1: exp(-1) = 0.37 and exp(-2) = 0.14; at T=2: 0.61 and 0.37."""
    row = Logits.of([0.0, -1.0, -2.0])
    assert process(runner, state(), raw=row, temperature=1.0, min_p=0.3) == [0.0, -1.0, -INF]
    assert process(runner, state(), raw=row, temperature=2.0, min_p=0.3) == [0.0, -0.5, -1.0]


@both_runners
def test_top_p_is_over_what_top_k_left(runner: ModelRunner) -> None:
    """0.4, 0.3, 0.2, 0.1. Of two, 0.3 is 3/7 = 0.43 and goes with top_p 0.55; of all, 0.1 + 0.2 = 0.3 go alone."""
    row = Logits.of(np.log([0.4, 0.3, 0.2, 0.1]))
    kept_of = {k: np.isfinite(process(runner, state(), raw=row, temperature=1.0, top_k=k, top_p=0.55)) for k in (0, 2)}
    assert kept_of[0].tolist() == [True, True, False, False]
    assert kept_of[2].tolist() == [True, False, False, False]


@both_runners
def test_min_p_comes_before_top_p(runner: ModelRunner) -> None:
    """0.5, 0.3, 0.2; min_p drops the 0.2, then 0.3 is 3/8 = 0.375 and goes with top_p 0.6; of all, only the 0.2 goes."""
    row = Logits.of(np.log([0.5, 0.3, 0.2]))
    kept_of = {p: np.isfinite(process(runner, state(), raw=row, temperature=1.0, min_p=p, top_p=0.6)) for p in (0, 0.5)}
    assert kept_of[0].tolist() == [True, True, False]
    assert kept_of[0.5].tolist() == [True, False, False]


TOKENS = st.integers(0, 5)
LISTS = st.lists(TOKENS, max_size=6)
PARAMS = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 0.5, 1.0])},
    optional={
        "top_k": st.integers(1, 6),
        "top_p": st.floats(0.1, 1),
        "min_p": st.floats(0, 1),
        "repetition_penalty": st.floats(0.5, 2),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "min_tokens": st.integers(0, 4),
        "allowed_token_ids": st.lists(TOKENS, min_size=1),
        "logit_bias": st.dictionaries(TOKENS, st.floats(-100, 100)),
        "bad_words_token_ids": st.lists(st.lists(TOKENS, min_size=1, max_size=3)),
    },
)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(params=PARAMS, prompt=LISTS, output=LISTS, endings=LISTS)
def test_without_custom_processors_the_orders_are_the_same(
    params: dict[str, Any], prompt: list[int], output: list[int], endings: list[int]
) -> None:
    there = state(tuple(prompt), tuple(output), ending_token_ids=endings)
    assert process("v1", there, **params) == process("v2", there, **params)


@settings(derandomize=True, deadline=None)
@given(params=PARAMS, prompt=LISTS, output=LISTS)
def test_the_best_token_survives_truncation(params: dict[str, Any], prompt: list[int], output: list[int]) -> None:
    """Whatever is dropped, the token that greedy sampling takes stays finite, and the rest is normalised."""
    there = state(tuple(prompt), tuple(output), ending_token_ids=(EOS,))
    greedy = process("v2", there, **{**params, "temperature": 0.0})
    sampled = np.array(process("v2", there, **{**params, "temperature": 1.0}))
    if max(greedy) == -INF:
        assert not np.isfinite(sampled).any()
    else:
        assert np.isfinite(sampled[np.array(greedy) == max(greedy)]).any()
        assert np.exp(Logits.of(sampled).logprobs).sum() == pytest.approx(1, abs=1e-5)
        assert Logits.of(sampled).logprobs[np.isfinite(sampled)] == pytest.approx(
            log_softmax(sampled)[np.isfinite(sampled)], abs=2e-5
        )


def test_the_input_is_left_as_it_was() -> None:
    raw = Logits.of(T6)
    raw.values.flags.writeable = False
    everything = SamplingParams(
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        min_p=0.01,
        repetition_penalty=1.2,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        min_tokens=9,
        allowed_token_ids=[A, B, STARS, EOS],
        logit_bias={A: 1.0},
        bad_words_token_ids=[[B]],
    )
    there = state((A,), (STARS,), add_two, ending_token_ids=(EOS,))
    processed = process_logits(raw, everything, there, stages("v1", everything))
    assert processed.dense().tolist() != T6
    assert raw.dense().tolist() == T6


@settings(derandomize=True, deadline=None)
@given(row=st.lists(st.integers(-4, 4).map(float), min_size=6, max_size=6), data=st.data())
def test_a_shared_row_becomes_what_any_other_row_becomes(row: list[float], data: st.DataObject) -> None:
    """Also the second time, when the result is the kept one."""
    params = SamplingParams(
        temperature=data.draw(st.sampled_from([0.0, 0.5, 1.0])),
        top_k=data.draw(st.integers(0, 6)),
        top_p=data.draw(st.sampled_from([0.5, 1.0])),
        allowed_token_ids=data.draw(st.sampled_from([None, [0, 3]])),
        repetition_penalty=data.draw(st.sampled_from([1.0, 1.5])),
        min_tokens=data.draw(st.sampled_from([0, 2])),
    )
    shared = Logits.of(row).shared()
    for output in ((), (0, 3, 3)):
        state = StepState((1,), output, ending_token_ids=(5,))
        fresh = process_logits(Logits.of(row), params, state, stages("v2", params))
        for _ in range(2):
            assert (
                process_logits(shared, params, state, stages("v2", params)).dense().tolist() == fresh.dense().tolist()
            )


def test_what_is_remembered_of_a_row_is_bounded() -> None:
    shared, asked = Logits.of([1.0, 2.0, 3.0]).shared(), [SamplingParams(temperature=0.0) for _ in range(40)]
    for params in asked:
        process_logits(shared, params, StepState((), ()), stages("v1", params))
    assert shared.memo is not None
    assert list(shared.memo.processed) == asked[-MOST_PROCESSED:]
    wide, params = Logits.of(np.zeros(LARGEST_REMEMBERED + 1)).shared(), SamplingParams(temperature=0.5)
    process_logits(wide, params, StepState((), ()), stages("v1", params))
    assert wide.memo is not None
    assert wide.memo.processed == {}
