"""The container: masking, the top, the logprobs; and that a masked row behaves as the same row written out."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference import EOS, INF, SPACE_A, SPACE_B, STARS, T6, A, B, ids, log_softmax, masked_row, only

from stubserver.sampling import processors as ops
from stubserver.sampling.logits import Logits, SparseLogits


def test_a_row_is_kept_as_float32() -> None:
    logits = Logits.of(np.array([0.1, 2.0], dtype=np.float64))
    assert logits.values.dtype == np.float32
    assert logits.values.tolist() == [np.float32(0.1), 2.0]
    assert logits.vocab_size == 2


def test_keep_masks_the_rest() -> None:
    logits = only(T6, B, STARS)
    assert logits.values.tolist() == [1.5, 6.0]
    assert logits.token_ids.tolist() == [B, STARS]
    assert logits.dense().tolist() == [-INF, 1.5, -INF, -INF, 6.0, -INF]


def test_keep_twice_is_the_intersection() -> None:
    assert only(T6, A, B, STARS).keep(ids(B, SPACE_A, STARS)).token_ids.tolist() == [B, STARS]
    assert only(T6, A).keep(ids(B)).dense().tolist() == [-INF] * 6


def test_mask_sets_to_minus_infinity() -> None:
    assert Logits.of(T6).mask([A, STARS]).dense().tolist() == [-INF, 1.5, 3.0, 4.0, -INF, -1.0]
    assert only(T6, A, B).mask([B, STARS]).dense().tolist() == [0.5] + [-INF] * 5


def test_positions_leave_masked_tokens_out() -> None:
    assert Logits.of(T6).positions([STARS, A]) == [4, 0]
    assert only(T6, B, STARS).positions([STARS, A, B, EOS]) == [1, 0]


def test_top_is_by_value_and_then_by_id() -> None:
    logits = Logits.of([1.0, 3.0, 2.0, 3.0, 2.0, 2.0])
    assert [logits.ids_at(logits.top(count)) for count in range(7)] == [
        [],
        [1],
        [1, 3],
        [1, 3, 2],
        [1, 3, 2, 4],
        [1, 3, 2, 4, 5],
        [1, 3, 2, 4, 5, 0],
    ]


def test_top_asked_for_less_after_more_and_more_after_less_is_the_same() -> None:
    logits = Logits.of(T6)
    assert logits.ids_at(logits.top(1)) == [STARS]
    assert logits.ids_at(logits.top(3)) == [STARS, SPACE_B, SPACE_A]
    assert logits.ids_at(logits.top(2)) == [STARS, SPACE_B]


def test_top_has_no_masked_tokens() -> None:
    logits = only(T6, A, B, STARS).mask([STARS])
    assert logits.ids_at(logits.top(6)) == [B, A]


def test_masked_are_the_lowest_masked_ids() -> None:
    assert Logits.of(T6).masked(3) == []
    assert only(T6, A, SPACE_A).masked(3) == [B, SPACE_B, STARS]
    assert only(T6, A, SPACE_A).mask([A]).masked(10) == [A, B, SPACE_B, STARS, EOS]
    assert only(T6, A).masked(0) == []


def test_logprobs_of_the_kept_are_over_the_kept() -> None:
    """B - A is 1, so B is -log(1 + exp(-1)) = -0.313262."""
    assert only(T6, A, B).logprobs.tolist() == pytest.approx([-1.313262, -0.313262], abs=1e-6)


def test_logprobs_are_nan_where_everything_is_masked() -> None:
    assert np.isnan(Logits.of([-INF, -INF]).logprobs).all()
    assert only(T6, A).keep(ids(B)).logprobs.tolist() == []


@pytest.mark.parametrize(("size", "rows"), [(512, 200), (151_936, 5)])
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_logprobs_are_those_of_float64(size: int, rows: int, scale: float) -> None:
    rng = np.random.default_rng(size)
    for _ in range(rows):
        row = (rng.standard_normal(size) * scale).astype(np.float32)
        assert np.abs(Logits.of(row).logprobs - log_softmax(row)).max() < 2e-5


@pytest.mark.parametrize("size", [512, 151_936])
def test_top_is_that_of_a_stable_sort(size: int) -> None:
    """Values rounded to whole numbers, so that there are ties everywhere."""
    row = np.round(np.random.default_rng(size).standard_normal(size) * 5)
    order = sorted(range(size), key=lambda token_id: (-row[token_id], token_id))
    for count in (1, 20, 100):
        assert Logits.of(row).top(count).tolist() == order[:count]


VOCAB = 7
# Rows shorter than 8 are summed one by one, so that the zeros of masked tokens change no bit of a sum.
VALUES = st.one_of(st.integers(-3, 3).map(float), st.floats(-30, 30, width=32), st.just(-INF))
ROWS = st.lists(VALUES, min_size=VOCAB, max_size=VOCAB)
TOKENS = st.integers(0, VOCAB - 1)
TOKEN_LISTS = st.lists(TOKENS, max_size=10)
KEPT = st.sets(TOKENS).map(sorted)

Operation = Callable[[Logits], Logits]

OPERATIONS: dict[str, st.SearchStrategy[Operation]] = {
    "allowed_token_ids": TOKEN_LISTS.map(lambda seen: lambda logits: ops.apply_allowed_token_ids(logits, seen)),
    "logit_bias": st.dictionaries(TOKENS, st.floats(-100, 100)).map(
        lambda bias: lambda logits: ops.apply_logit_bias(logits, bias)
    ),
    "min_tokens": st.tuples(TOKEN_LISTS, st.booleans()).map(
        lambda drawn: lambda logits: ops.apply_min_tokens(logits, drawn[0], drawn[1])
    ),
    "bad_words": st.tuples(st.lists(st.lists(TOKENS, min_size=1, max_size=3)), TOKEN_LISTS).map(
        lambda drawn: lambda logits: ops.apply_bad_words(logits, *drawn)
    ),
    "repetition": st.tuples(st.floats(0.1, 10), TOKEN_LISTS).map(
        lambda drawn: lambda logits: ops.apply_repetition_penalty(logits, *drawn)
    ),
    "frequency": st.tuples(st.floats(-2, 2), TOKEN_LISTS).map(
        lambda drawn: lambda logits: ops.apply_frequency_penalty(logits, *drawn)
    ),
    "presence": st.tuples(st.floats(-2, 2), TOKEN_LISTS).map(
        lambda drawn: lambda logits: ops.apply_presence_penalty(logits, *drawn)
    ),
    "forced": TOKENS.map(lambda token_id: lambda logits: ops.apply_forced_token(logits, token_id)),
    "custom": st.just(lambda logits: ops.apply_custom_processor(logits, lambda row: row[::-1])),
    "temperature": st.floats(0.01, 2).map(lambda value: lambda logits: ops.apply_temperature(logits, value)),
    "min_p": st.floats(0, 1).map(lambda value: lambda logits: ops.apply_min_p(logits, value)),
    "top_k": st.integers(1, VOCAB + 1).map(lambda value: lambda logits: ops.apply_top_k(logits, value)),
    "top_p": st.floats(0.01, 1).map(lambda value: lambda logits: ops.apply_top_p(logits, value)),
}


def test_every_operation_has_a_property() -> None:
    assert len(OPERATIONS) == sum(name.startswith("apply_") for name in vars(ops))


@pytest.mark.parametrize("name", OPERATIONS)
@settings(derandomize=True, deadline=None)
@given(data=st.data(), row=ROWS, kept=KEPT)
def test_an_operation_on_kept_tokens_is_that_on_the_row_with_the_others_masked(
    name: str, data: st.DataObject, row: list[float], kept: list[int]
) -> None:
    operation = data.draw(OPERATIONS[name])
    on_kept = operation(Logits.of(row).keep(ids(*kept)))
    on_row = operation(Logits.of(masked_row(row, *kept)))
    assert on_kept.dense().tolist() == on_row.dense().tolist()


@settings(derandomize=True, deadline=None)
@given(row=ROWS, kept=KEPT, count=st.integers(0, VOCAB + 2))
def test_reading_kept_tokens_is_reading_the_row_with_the_others_masked(
    row: list[float], kept: list[int], count: int
) -> None:
    sparse, dense = Logits.of(row).keep(ids(*kept)), Logits.of(masked_row(row, *kept))
    assert sparse.ids_at(sparse.top(count)) == dense.ids_at(dense.top(count))
    assert sparse.masked(count) == dense.masked(count)


PROBABLE = st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=30)


@settings(derandomize=True, deadline=None)
@given(row=PROBABLE, top_p=st.floats(0.01, 0.99))
def test_top_p_is_that_of_float64(row: list[float], top_p: float) -> None:
    probs = np.exp(log_softmax(row))
    order = sorted(range(len(row)), key=lambda token_id: (row[token_id], token_id))
    mass = np.cumsum(probs[order])
    assume(np.abs(mass - (1 - top_p)).min() > 1e-5)  # float32 may decide such a case differently
    expected = {token_id for token_id, sum_so_far in zip(order, mass, strict=True) if sum_so_far > 1 - top_p}
    kept = np.isfinite(ops.apply_top_p(Logits.of(row), top_p).values)
    assert set(np.flatnonzero(kept)) == expected | {order[-1]}


@settings(derandomize=True, deadline=None)
@given(row=PROBABLE, min_p=st.floats(0.01, 1))
def test_min_p_is_that_of_float64(row: list[float], min_p: float) -> None:
    shares = np.exp(np.array(row) - max(row))
    assume(np.abs(shares[shares < 1] - min_p).min(initial=1.0) > 1e-5)
    kept = np.isfinite(ops.apply_min_p(Logits.of(row), min_p).values)
    assert kept.tolist() == (shares >= min_p).tolist()


@settings(derandomize=True, deadline=None)
@given(row=PROBABLE, top_k=st.integers(1, 31))
def test_top_k_is_that_of_a_sort(row: list[float], top_k: int) -> None:
    last = sorted(row, reverse=True)[:top_k][-1]
    kept = np.isfinite(ops.apply_top_k(Logits.of(row), top_k).values)
    assert kept.tolist() == [value >= last for value in row]


def test_of_equal_values_the_lowest_ids_are_the_top() -> None:
    """The partition's own order plays no part."""
    assert Logits.of(np.zeros(100)).top(10).tolist() == list(range(10))


class TestSparse:
    """A row written down small is the same row."""

    @given(
        st.dictionaries(st.integers(0, 299), st.floats(-50, 50, width=32), max_size=6),
        st.floats(-50, 50, width=32) | st.just(-INF),
        st.lists(st.integers(0, 299), min_size=1, max_size=8, unique=True),
    )
    def test_kept_tokens(self, listed: dict[int, float], rest: float, kept: list[int]) -> None:
        whole = np.array([listed.get(token_id, rest) for token_id in range(300)])
        sparse = SparseLogits(listed, rest, 300).keep(ids(*sorted(kept)))
        assert sparse.values.dtype == np.float32
        assert sparse.dense().tolist() == Logits.of(whole).keep(ids(*sorted(kept))).dense().tolist()

    def test_many_kept_tokens(self) -> None:
        sparse = SparseLogits({7: 2.0}, -1.0, 1000).keep(ids(*range(999)))
        assert sparse.dense().tolist() == [-1.0] * 7 + [2.0] + [-1.0] * 991 + [-INF]

    def test_whole(self) -> None:
        sparse = SparseLogits({A: 0.5, STARS: 6.0}, 1.5, 6)
        assert sparse.values.tolist() == [0.5, 1.5, 1.5, 1.5, 6.0, 1.5]
        assert sparse.ids_at(sparse.top(3)) == [STARS, B, SPACE_A]
        assert sparse.logprobs.tolist() == Logits.of(sparse.values).logprobs.tolist()
        with pytest.raises(ValueError, match="read-only"):
            sparse.values[0] = 0
