"""What can be answered from a recorded row: two of six tokens were recorded, the other four share what is left."""

from __future__ import annotations

from typing import Any

import pytest
from engine_helpers import SPACE_A, STARS, A, B, generation, t6_model

from stubserver.engine.recorded import Wanted, count_known_top, find_dependences, find_problems, recorded_ids
from stubserver.errors import UnrecordedError
from stubserver.sampling.logits import Logits
from stubserver.sampling.params import SamplingParams
from stubserver.script.context import Recorded

MODEL = t6_model({"probs": {"A": 0.7, "B": 0.1}})
ROW: Logits = generation(MODEL).logits([A], ())


def wanted(
    mode: Any = "raw_logprobs", *, starts: Any = (), grammar: bool = False, forced: Any = (), **params: Any
) -> Wanted:
    """Greedy unless the parameters say otherwise."""
    return Wanted(SamplingParams(**{"temperature": 0.0, **params}), mode, MODEL.tokenizer, starts, grammar, forced)


def problems(known_top: int = 1, position: int = 0, **fields: Any) -> list[str]:
    return list(find_problems(wanted(**fields), ROW, position, known_top))


def test_recorded_tokens_are_told_by_their_values() -> None:
    assert recorded_ids(ROW) == {A, B}


def test_how_many_of_the_likeliest_are_known() -> None:
    """The script says it; else 0.7 is above all that is left (0.2), and 0.1 isn't."""
    assert [count_known_top(Recorded((2, 0)), ROW, position) for position in range(3)] == [2, 0, 1]
    assert count_known_top(None, ROW, 0) == 1


ANSWERED: list[dict[str, Any]] = [
    {},
    {"logprobs": 1},
    {"logprobs": 2, "known_top": 2},
    {"logprob_token_ids": [A, B]},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "allowed_token_ids": [A, B]},
    {"mode": "processed_logprobs", "logprobs": 4, "allowed_token_ids": [A, B]},
    {"starts": [A]},
    {"starts": [STARS], "position": 1, "allowed_token_ids": [A]},
    {"top_p": 0.5, "min_p": 0.1},
    {"forced": [[STARS]]},
    {"forced": [[B, STARS]], "logprobs": 0},
]


@pytest.mark.parametrize("fields", ANSWERED, ids=str)
def test_what_a_row_answers(fields: dict[str, Any]) -> None:
    assert problems(**fields) == []


OPEN: list[tuple[dict[str, Any], str]] = [
    ({"logprob_token_ids": [A, SPACE_A]}, "' A' (2) was never recorded here; recorded is 'A' (0), 'B' (1)"),
    ({"logit_bias": {STARS: 1.0}, "allowed_token_ids": [A]}, "' **' (4) was never recorded here"),
    ({"starts": [STARS], "allowed_token_ids": [A]}, "' **' (4) was never recorded here"),
    ({"forced": [[A], [STARS]], "logprobs": 0}, "' **' (4) was never recorded here"),
    ({"forced": [[A, STARS]], "logprobs": 0, "position": 1}, "' **' (4) was never recorded here"),
    ({"trace_decode_token_ids": [STARS], "logprobs": 0}, "' **' (4) was never recorded here"),
    ({"prompt_logprobs": 0}, "the values of a prompt's own tokens are not in the script"),
    ({"logprobs": 2}, "2 top logprobs are asked for, and 1 were recorded without a gap"),
    ({"logprobs": -1}, "6 top logprobs are asked for, and 1 were recorded without a gap"),
    ({"logprobs": 2, "allowed_token_ids": [A, B]}, "2 top logprobs are asked for, and 1 were recorded without a gap"),
    ({"known_top": 0}, "the likeliest token was not recorded"),
    ({"min_tokens": 1, "bad_words": ["x"]}, "bad_words, min_tokens may bring up a token that was never recorded"),
    ({"grammar": True}, "a grammar may allow tokens that were never recorded"),
    ({"starts": [B]}, "a grammar may allow tokens that were never recorded"),
    ({"temperature": 1.0}, "temperature 1 may draw a token that was never recorded"),
    ({"temperature": 1.0, "top_k": -1}, "temperature 1 may draw a token that was never recorded"),
    ({"temperature": 0.5, "top_k": 2}, "temperature 0.5 may draw a token that was never recorded"),
]


@pytest.mark.parametrize(("fields", "said"), OPEN, ids=str)
def test_what_it_leaves_open(fields: dict[str, Any], said: str) -> None:
    [problem] = problems(**fields)
    assert problem.startswith(said)


BENT: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 2.0, "top_k": 2}, "temperature, top_k"),
    ({"presence_penalty": 1.0, "top_p": 0.9, "logit_bias": {A: 1.0}}, "presence_penalty, top_p, logit_bias"),
    ({"grammar": True}, "a grammar"),
    ({"starts": [A]}, "a grammar"),
]


@pytest.mark.parametrize(("fields", "names"), BENT, ids=str)
def test_what_processed_values_rest_on(fields: dict[str, Any], names: str) -> None:
    assert list(find_dependences(wanted("processed_logprobs", **fields))) == [f"rests on unrecorded tokens: {names}"]
    assert list(find_dependences(wanted("raw_logprobs", **fields))) == []
    assert list(find_dependences(wanted("processed_logprobs", **fields, allowed_token_ids=[A, B]))) == []


@pytest.mark.parametrize("fields", [{}, {"temperature": 1.0}, {"top_k": -1}, {"bad_words": ()}], ids=str)
def test_what_leaves_them_as_they_are(fields: dict[str, Any]) -> None:
    assert list(find_dependences(wanted("processed_logprobs", **fields))) == []


def test_a_generation_says_what_it_rests_on() -> None:
    step = {"probs": {"A": 0.7, "B": 0.1}}
    assert generation(t6_model(step)).notes is None
    assert generation(t6_model(step, unrecorded="refuse")).notes == []
    marked = generation(t6_model(step, unrecorded="mark"), logprobs=2)
    said = "rests on unrecorded tokens: 2 top logprobs are asked for, and 1 were recorded without a gap"
    assert marked.notes == [said]
    with pytest.raises(UnrecordedError, match="2 top logprobs are asked for"):
        generation(t6_model(step, unrecorded="refuse"), logprobs=2)


def test_a_later_step_is_held_to_its_own_row() -> None:
    steps = {"probs": {"A": 0.7, "B": 0.1}}, {"probs": {"B": 0.1}}
    refused = generation(t6_model(*steps, unrecorded="refuse"), max_tokens=2)
    with pytest.raises(UnrecordedError, match="the likeliest token was not recorded"):
        list(refused.steps())
    marked = generation(t6_model(*steps, unrecorded="mark"), max_tokens=2)
    assert len(list(marked.steps())) == 2
    [note] = set(marked.notes or ())
    assert note.startswith("rests on unrecorded tokens: the likeliest token was not recorded")
