"""The choice of the token, by the largest value or by chance."""

from math import sqrt

import numpy as np
import pytest
from reference import EOS, INF, SPACE_B, STARS, T6, A, B, ids, log_softmax, only

from stubserver.sampling.logits import Logits
from stubserver.sampling.sampler import draw, make_rng


def draws(logits: Logits, count: int, seed: int = 0) -> list[int]:
    rng = make_rng(seed)
    return [draw(logits, rng) for _ in range(count)]


def test_the_largest_is_the_best() -> None:
    assert Logits.of(T6).best == STARS
    assert only(T6, A, B, EOS).best == B


def test_of_equals_the_lowest_id_is_the_best() -> None:
    assert Logits.of([1.0, 2.0, 2.0]).best == 1
    assert only([2.0, 1.0, 2.0, 2.0], 1, 2, 3).best == 2


@pytest.mark.parametrize(
    "logits",
    [Logits.of([-INF] * 6), only(T6, STARS).mask([STARS]), only(T6, STARS).keep(ids(SPACE_B))],
    ids=["row of -inf", "masked after keep", "nothing kept"],
)
def test_where_everything_is_masked_token_0_comes_out(logits: Logits) -> None:
    assert logits.best == 0
    assert draws(logits, 3) == [0, 0, 0]


@pytest.mark.parametrize("kept", [range(6), [A, B, SPACE_B], [STARS]], ids=str)
def test_draws_are_as_frequent_as_they_are_probable(kept: list[int]) -> None:
    """10,000 draws: each count within 5 standard deviations of its binomial distribution."""
    count = 10_000
    logits = only(T6, *kept)
    found = np.bincount(draws(logits, count), minlength=6)
    probs = dict(zip(kept, np.exp(log_softmax([T6[token_id] for token_id in kept])), strict=True))
    for token_id in range(6):
        prob = probs.get(token_id, 0.0)
        assert abs(found[token_id] - count * prob) <= 5 * sqrt(count * prob * (1 - prob)) + 1e-9


def test_tokens_of_minus_infinity_are_never_drawn() -> None:
    """At the ends and in the middle; the others are equal, so that each comes out."""
    logits = Logits.of([-INF, 0.0, -INF, 0.0, -INF])
    assert set(draws(logits, 1000)) == {1, 3}


class Zero:
    """A generator whose every number is the lowest that there is."""

    def random(self) -> float:
        return 0.0


def test_the_lowest_random_number_draws_the_first_token_that_has_a_probability() -> None:
    assert draw(Logits.of([-INF, 0.0, 0.0]), Zero()) == 1


def test_the_same_seed_draws_the_same() -> None:
    logits = Logits.of(np.zeros(1000))
    assert draws(logits, 20, seed=7) == draws(logits, 20, seed=7)
    assert draws(logits, 20, seed=7) != draws(logits, 20, seed=8)


def test_a_draw_is_the_same_from_kept_tokens_and_from_the_row() -> None:
    kept = [A, B, SPACE_B]
    row = Logits.of([value if token_id in kept else -INF for token_id, value in enumerate(T6)])
    assert draws(only(T6, *kept), 100) == draws(row, 100)


@pytest.mark.parametrize("seed", [-(2**63), -1, 0, 2**63 - 1])
def test_every_64_bit_seed_is_a_seed(seed: int) -> None:
    assert 0 <= make_rng(seed).random() < 1
