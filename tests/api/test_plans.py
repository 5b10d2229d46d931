"""Work that is kept between requests must never show in an answer."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from stubserver.api.plans import MAX_PLANS, MAX_SPELLING, Plans
from stubserver.api.protocol.completions import CompletionRequest
from stubserver.app import create_app
from stubserver.errors import SchemaError, ValidationError
from stubserver.sampling.params import SamplingParams


def plans() -> Plans[CompletionRequest]:
    return Plans(TypeAdapter(CompletionRequest), "prompt")


def test_requests_that_differ_in_their_prompt_share_a_plan() -> None:
    kept = plans()
    first, prompt = kept.plan({"prompt": "a", "temperature": 0})
    second, other = kept.plan({"prompt": [1, 2], "temperature": 0})
    assert first is second
    assert (prompt, other) == ("a", [1, 2])


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"logprobs": True}, {"logprobs": 1}),
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"temperature": 0}, {"temperature": "0"}),
        ({"stop": "a"}, {"stop": ["a"]}),
        ({"temperature": None}, {}),
    ],
)
def test_fields_count_by_their_exact_spelling(left: dict[str, Any], right: dict[str, Any]) -> None:
    kept = plans()
    assert kept.plan({"prompt": "a", **left})[0] is not kept.plan({"prompt": "a", **right})[0]


def test_infinity_is_no_null() -> None:
    """Both become null in JSON, so a spelling as JSON would mistake one for the other."""
    kept = plans()
    kept.plan({"prompt": "a", "logprobs": None})
    with pytest.raises(SchemaError):
        kept.plan({"prompt": "a", "logprobs": float("inf")})


@pytest.mark.parametrize("prompt", ["", None, [-1], ["a", 1], {"a": 1}, [True], [[1], "a"]])
def test_a_prompt_that_needs_a_check_gets_it(prompt: Any) -> None:
    kept = plans()
    kept.plan({"prompt": "a"})
    try:
        checked = CompletionRequest.model_validate({"prompt": prompt}).prompt
    except Exception:
        with pytest.raises((SchemaError, ValidationError)):
            kept.plan({"prompt": prompt})
    else:
        assert kept.plan({"prompt": prompt})[1] == checked


def test_refused_fields_are_refused_every_time() -> None:
    kept = plans()
    for _ in range(2):
        with pytest.raises(ValidationError):
            kept.plan({"prompt": "a", "logprobs": -2})


def test_plans_are_bounded_in_number_and_size() -> None:
    kept = plans()
    for number in range(3 * MAX_PLANS):
        kept.plan({"prompt": "a", "seed": number})
    kept.plan({"prompt": "a", "user": "x" * MAX_SPELLING})
    assert len(kept._plans) <= MAX_PLANS
    assert all(len(key) <= MAX_SPELLING for key in kept._plans)


def test_parameters_belong_to_a_model_and_a_length() -> None:
    models = [model for app in (create_app(), create_app()) for model in app.state.server.models]
    plan, _ = plans().plan({"prompt": "a"})
    made: list[tuple[Any, int]] = []

    def make(fields: CompletionRequest, model: Any, prompt_len: int) -> SamplingParams:
        made.append((model, prompt_len))
        return SamplingParams()

    for _ in range(2):
        for model in models:
            for prompt_len in (1, 2):
                plan.once(make, model, prompt_len)
    assert made == [(model, length) for model in models for length in (1, 2)]
