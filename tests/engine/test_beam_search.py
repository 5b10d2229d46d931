"""Beam search against trying out every sequence."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_helpers import EOS, FIXTURES, SPACE_B, STARS, A, generation, model, output, t6_model

from stubserver.engine.beam_search import beam_search
from stubserver.engine.generate import Step
from stubserver.engine.model import Model
from stubserver.errors import ValidationError

TABLE = np.random.default_rng(7).standard_normal((6, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def bigram(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Six tokens, whose logits depend on the last token."""
    path: Path = tmp_path_factory.mktemp("bigram") / "table.npz"
    np.savez(path, table=TABLE)
    return model({"tokenizer": str(FIXTURES / "t6"), "bigram": str(path)}, max_logprobs=-1)


def search(model: Model, width: int, length_penalty: float = 1.0, **params: Any) -> list[Step]:
    """Every token is a candidate, unless `logprobs` says how many are."""
    params = {"temperature": 1.0, "n": width, "logprobs": -1, **params}
    return beam_search(generation(model, (A,), **params), length_penalty)


def score(token_ids: tuple[int, ...]) -> float:
    """The sum of the logprobs of the tokens after A, in float64."""
    total, before = 0.0, A
    for token_id in token_ids:
        row = TABLE[before].astype(np.float64)
        total += row[token_id] - np.log(np.exp(row).sum())
        before = token_id
    return total


def every_sequence(length: int) -> set[tuple[int, ...]]:
    """All outputs of at most `length` tokens: those that end with EOS, and those that are cut off."""
    cut = [tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens for tokens in product(range(6), repeat=length)]
    return set(cut)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_with_beams_enough_the_best_sequences_come_out(bigram: Model, length: int, length_penalty: float) -> None:
    """36 beams hold every beginning of two tokens. Scores are per token, the prompt's one included and EOS not."""

    def rank(tokens: tuple[int, ...]) -> float:
        return score(tokens) / (1 + len(tokens) - (tokens[-1] == EOS)) ** length_penalty

    everything = every_sequence(length)
    found = [
        tuple(step.token_ids) + ((EOS,) if step.finish_reason == "stop" else ())
        for step in search(bigram, 36, length_penalty, max_tokens=length)
    ]
    assert len(set(found)) == len(found) == min(36, len(everything))
    assert set(found) <= everything
    # A A " A" A and A " A" A A are made of the same pairs, so their order is free.
    assert [rank(tokens) for tokens in found] == pytest.approx(
        sorted(map(rank, everything), reverse=True)[: len(found)], abs=1e-5
    )


def test_one_beam_is_greedy_where_nothing_ends(bigram: Model) -> None:
    (beam,) = search(bigram, 1, max_tokens=5, ignore_eos=True)
    greedy = output(bigram, max_tokens=5, ignore_eos=True)
    assert (list(beam.token_ids), beam.text, beam.finish_reason) == (greedy.token_ids, greedy.text, "length")


def test_a_beam_that_ends_with_eos_leaves_it_out(bigram: Model) -> None:
    """At every position EOS is one of the candidates; ended beams say so."""
    ended = [step for step in search(bigram, 36, max_tokens=2) if step.finish_reason == "stop"]
    assert ended
    for step in ended:
        assert EOS not in step.token_ids
        assert step.stop_reason == EOS
        assert len(step.logprobs or ()) == len(step.token_ids)


def test_an_included_eos_is_among_the_tokens_and_not_in_the_text(bigram: Model) -> None:
    found = search(bigram, 36, max_tokens=2, include_stop_str_in_output=True)
    ended = [step for step in found if step.finish_reason == "stop"]
    assert ended
    for step in ended:
        assert step.token_ids[-1] == EOS
        assert step.text == bigram.tokenizer.decode(step.token_ids[:-1])


def test_every_step_reports_the_candidates() -> None:
    """Two beams look at the four best of 0.5, 1.5, 3, 4, 6, -1; the better one repeats " **", the other has one " B"."""
    first, second = search(t6_model(), 2, logprobs=4, max_tokens=2, ignore_eos=True)
    assert list(first.token_ids) == [STARS, STARS]
    assert sorted(second.token_ids) == [SPACE_B, STARS]
    for position in first.logprobs or ():
        assert list(position.logprobs) == pytest.approx([-0.183346, -2.183346, -3.183346, -4.683346], abs=2e-6)


@pytest.mark.parametrize("length_penalty", [1e308, -1e308])
def test_a_length_penalty_beyond_floats_is_refused(length_penalty: float) -> None:
    """The prompt and a token make a length of 2, and neither 2 to that power nor a score by its inverse is a float."""
    with pytest.raises(ValidationError):
        search(t6_model(), 1, length_penalty, max_tokens=1)
