"""What counts when, with a clock that a reader can follow."""

from itertools import count

import pytest
from engine_helpers import A, generation, says, t6_model

from stubserver.engine.stats import Histogram, Stats, request_tokens_buckets


def ticking(*seconds):
    """A clock that shows these times, one after the other."""
    return iter(seconds).__next__


def test_histogram_bounds_are_inclusive():
    histogram = Histogram((1.0, 2.0, 5.0))
    for value in (0, 1, 1.5, 2, 5, 5.1):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1, 1]
    assert histogram.cumulative() == [2, 4, 5, 6]
    assert histogram.sum == pytest.approx(14.6)


@pytest.mark.parametrize(
    ("max_model_len", "bounds"),
    [(1, (1,)), (4, (1, 2)), (100, (1, 2, 5, 10, 20, 50, 100)), (512, (1, 2, 5, 10, 20, 50, 100, 200, 500))],
)
def test_token_buckets(max_model_len, bounds):
    assert request_tokens_buckets(max_model_len) == bounds


def test_one_request():
    stats = Stats(512, ("stop", "length"), clock=ticking(10.0, 10.5, 10.75, 11.75))
    request = stats.begin(prompt_tokens=7, max_tokens=5)
    assert (stats.prompt_tokens, stats.generation_tokens) == (0, 0)
    request.advance()
    assert (stats.prompt_tokens, stats.generation_tokens, stats.finished.total()) == (7, 1, 0)
    request.advance()
    request.advance()
    request.finish("length")
    assert (stats.prompt_tokens, stats.generation_tokens) == (7, 3)
    assert stats.finished == {"stop": 0, "length": 1}
    assert (stats.time_to_first_token.sum, sum(stats.time_to_first_token.counts)) == (0.5, 1)
    assert (stats.inter_token_latency.sum, sum(stats.inter_token_latency.counts)) == (1.25, 2)
    assert (stats.steps.sum, sum(stats.steps.counts)) == (7 + 3, 3)
    assert {name: each.sum for name, each in stats.ended.items()} == {
        "request_prompt_tokens": 7,
        "request_generation_tokens": 3,
        "request_max_num_generation_tokens": 3,
        "request_params_n": 1,
        "request_params_max_tokens": 5,
        "request_time_per_output_token_seconds": 1.25 / 2,
        "e2e_request_latency_seconds": 1.75,
        "request_queue_time_seconds": 0,
        "request_inference_time_seconds": 1.75,
        "request_prefill_time_seconds": 0.5,
        "request_decode_time_seconds": 1.25,
        "request_num_preemptions": 0,
        "request_prefill_kv_computed_tokens": 7,
    }
    assert {sum(each.counts) for each in stats.ended.values()} == {1}


def test_every_choice_is_a_request_of_its_own():
    model = t6_model()
    list(generation(model, [A, A, A], n=2, max_tokens=4).steps())
    stats = model.stats
    assert (stats.prompt_tokens, stats.generation_tokens, stats.finished["length"]) == (6, 8, 2)
    assert (stats.ended["request_prompt_tokens"].sum, stats.ended["request_generation_tokens"].sum) == (6, 8)
    assert [sum(each.counts) for each in (stats.time_to_first_token, stats.inter_token_latency)] == [2, 6]


def test_a_finished_request_has_its_reason():
    model = t6_model(says(A), then="eos")
    list(generation(model, max_tokens=9).steps())
    list(generation(model, max_tokens=1).steps())
    assert (model.stats.finished["stop"], model.stats.finished["length"]) == (1, 1)
    # The end-of-sequence token counts, as in usage.
    assert model.stats.generation_tokens == 3


def test_a_request_that_nobody_reads_to_its_end():
    model = t6_model()
    steps = generation(model, max_tokens=100).steps()
    next(steps)
    next(steps)
    del steps
    stats = model.stats
    assert (stats.prompt_tokens, stats.generation_tokens, stats.finished.total()) == (1, 2, 0)
    assert sum(stats.ended["request_prompt_tokens"].counts) == 0


def test_models_count_for_themselves():
    busy, idle = t6_model(), t6_model()
    list(generation(busy, max_tokens=2).steps())
    assert (busy.stats.generation_tokens, idle.stats.generation_tokens) == (2, 0)


def test_the_clock_is_read_once_a_token():
    ticks = count()
    stats = Stats(512, (), clock=lambda: float(next(ticks)))
    request = stats.begin(1)
    for _ in range(5):
        request.advance()
    request.finish("stop")
    assert next(ticks) == 6


def test_the_parameters_of_a_prompt_count_once_when_its_last_choice_has_ended():
    model = t6_model()
    steps = generation(model, n=2, max_tokens=3).steps()
    for _ in range(5):
        next(steps)
    ended = model.stats.ended
    assert (sum(ended["request_params_max_tokens"].counts), sum(ended["request_params_n"].counts)) == (1, 0)
    list(steps)
    ended = model.stats.ended
    assert (ended["request_params_n"].sum, sum(ended["request_params_n"].counts)) == (2, 1)
    assert (ended["request_max_num_generation_tokens"].sum, ended["request_params_max_tokens"].sum) == (3, 6)


def test_an_embedding_has_no_parameters():
    stats = Stats(512, ("stop",), clock=ticking(1.0, 2.0))
    request = stats.begin(4)
    request.advance(tokens=0)
    request.finish("stop")
    assert sum(stats.ended["request_params_n"].counts) == 0
    assert stats.ended["request_prompt_tokens"].sum == 4


def test_many_requests_are_counted_as_they_end():
    stats = Stats(512, ("stop",), clock=lambda: 0.0)
    for _ in range(1000):
        request = stats.begin(2, 1)
        request.advance()
        request.finish("stop")
    assert stats.ended["request_prompt_tokens"].sum == 2000
