"""Sampling masks: of hand-computed rows, and of random ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import SPACE_A, SPACE_B, STARS, T6, only

from stubserver.config.settings import Settings
from stubserver.dialects.vllm.behaviour import VLLM_0_32_0
from stubserver.dialects.vllm.checks import check_sampling_mask
from stubserver.dialects.vllm.wire.errors import error_reply
from stubserver.engine.behaviour import Circumstances
from stubserver.errors import GenerationError
from stubserver.sampling.logits import Logits
from stubserver.sampling.logprobs import gather_top
from stubserver.sampling.params import SamplingParams
from stubserver.sampling.sampler import draw, make_rng
from stubserver.sampling.sampling_mask import sampling_mask
from stubserver.sampling.stages import Stage, StepState, process_logits
from stubserver.tokenizer.hf import load_tokenizer

WIDTH = 24

rows = st.lists(st.floats(-10, 10, width=32), min_size=WIDTH, max_size=WIDTH)
token_ids = st.lists(st.integers(0, WIDTH - 1), min_size=1, max_size=WIDTH, unique=True)
restrictions = {
    "temperature": st.floats(0.3, 2),
    "top_k": st.integers(1, WIDTH + 2),
    "top_p": st.floats(0.01, 1),
    "min_p": st.just(0.0) | st.floats(0, 0.5),
    "allowed_token_ids": st.none() | token_ids,
    "bad_words_token_ids": st.just(()) | token_ids.map(lambda banned: [[token_id] for token_id in banned[:3]]),
}
"""What only takes tokens away, and the temperature."""

params = st.builds(SamplingParams, **restrictions)
any_params = st.builds(
    SamplingParams,
    **restrictions,
    logit_bias=st.none() | st.dictionaries(st.integers(0, WIDTH - 1), st.floats(-20, 20), max_size=4),
    repetition_penalty=st.floats(0.5, 2),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
)


MASKS = Circumstances(
    Settings(return_sampling_mask=True, logprobs_mode="processed_logprobs"),
    WIDTH,
    constraint=None,
    prompt_len=1,
    tokenizer=load_tokenizer("builtin"),
)


def v2(params: SamplingParams) -> Sequence[Stage]:
    return VLLM_0_32_0.stages(params, Settings(model_runner="v2"))


def process(row: list[float], params: SamplingParams) -> Logits:
    return process_logits(Logits.of(row), params, StepState([0, 1], [2, 3, 2], ending_token_ids=[5]), v2(params))


@pytest.mark.parametrize(
    ("fields", "mask"),
    [
        ({"top_k": 2}, [SPACE_B, STARS]),
        ({"top_k": 3}, [SPACE_A, SPACE_B, STARS]),
        # Probabilities 0.83, 0.11, 0.04 and less: the least ones go that have at most 0.1 together.
        ({"top_k": 6, "top_p": 0.9}, [SPACE_B, STARS]),
        ({"top_k": 1}, [STARS]),
        ({"top_k": 6, "allowed_token_ids": [STARS, SPACE_A]}, [SPACE_A, STARS]),
    ],
)
def test_mask_of_t6(fields: dict[str, object], mask: list[int]) -> None:
    params = SamplingParams(**fields)  # type: ignore[arg-type]
    processed = process_logits(Logits.of(T6), params, StepState([], []), v2(params))
    assert sampling_mask(processed) == mask


def test_logprobs_of_the_mask_of_t6() -> None:
    """(4 - 6) / 0.5 = -4, so the two are exp(-4) to 1."""
    params = SamplingParams(temperature=0.5, top_k=2)
    processed = process_logits(Logits.of(T6), params, StepState([], []), v2(params))
    found = processed.logprobs[processed.positions(sampling_mask(processed))]
    assert found == pytest.approx([-4.018150, -0.018150], abs=1e-6)


def test_tokens_that_tie_with_the_last_one_are_all_in() -> None:
    params = SamplingParams(top_k=2)
    processed = process_logits(Logits.of([1, 2, 2, 2, 0]), params, StepState([], []), v2(params))
    assert sampling_mask(processed) == [1, 2, 3]


def test_infinities_and_nan_are_out() -> None:
    assert sampling_mask(Logits.of([np.inf, 1, -np.inf, np.nan, 0])) == [1, 4]
    assert sampling_mask(only([0, 1, -np.inf, 2], 1, 2)) == [1]


@given(rows, any_params)
def test_mask_is_the_finite_processed_logits(row: list[float], params: SamplingParams) -> None:
    processed = process(row, params)
    assert sampling_mask(processed) == [i for i, value in enumerate(processed.dense().tolist()) if value > -np.inf]


@given(rows, any_params, st.integers(0, 2**32))
def test_a_full_read_sums_to_1_over_the_mask_and_the_token_is_in_it(
    row: list[float], params: SamplingParams, seed: int
) -> None:
    processed = process(row, params)
    mask = sampling_mask(processed)
    if not mask:  # everything was forbidden: vLLM takes token 0 then
        return
    token_id = draw(processed, make_rng(seed))
    found = gather_top(processed, "processed_logprobs", token_id, -1)
    finite = {i: value for i, value in zip(found.token_ids, found.logprobs, strict=True) if value > -np.inf}
    assert sorted(finite) == mask
    assert sum(np.exp(list(finite.values()))) == pytest.approx(1, abs=1e-5)
    assert token_id in mask


@given(rows, params)
def test_raw_logprobs_renormalised_over_the_mask_are_the_processed_ones(
    row: list[float], params: SamplingParams
) -> None:
    processed = process(row, params)
    mask = sampling_mask(processed)
    if not mask:
        return
    scaled = Logits.of(row).logprobs[mask].astype(np.float64) / params.temperature
    renormalised = scaled - np.log(np.exp(scaled).sum())
    assert renormalised == pytest.approx(processed.logprobs[processed.positions(mask)], abs=2e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": 0.0, "top_k": 5}, "sampling distribution replay requires temperature > 0"),
        (
            {"temperature": 1.0},
            "sampling distribution replay requires top_k > 0 to bound sampling mask size, reduce transfer overhead, "
            "and avoid potential OOMs",
        ),
        (
            {"temperature": 1.0, "top_k": -1},
            "sampling distribution replay requires top_k > 0 to bound sampling mask size, reduce transfer overhead, "
            "and avoid potential OOMs",
        ),
        ({"temperature": 0.0}, "sampling distribution replay requires temperature > 0"),
    ],
)
def test_refusals(fields: dict[str, float], message: str) -> None:
    """The words are for the log: the server keeps them to itself."""
    with pytest.raises(GenerationError) as caught:
        check_sampling_mask(SamplingParams(**fields), MASKS)  # type: ignore[arg-type]
    assert caught.value.message == message
    error = {"message": "", "type": "InternalServerError", "param": None, "code": 500}
    assert error_reply(caught.value) == (500, {"error": error})


def test_temperature_and_top_k_are_all_it_takes() -> None:
    check_sampling_mask(SamplingParams(temperature=0.01, top_k=1), MASKS)
