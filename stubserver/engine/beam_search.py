"""Beam search: the `n` best sequences. Facts: vLLM 0.32.0, `entrypoints/generate/beam_search/online.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stubserver.engine.generate import Generation, Step, check_finite, process
from stubserver.engine.terms import Terms
from stubserver.errors import ValidationError
from stubserver.sampling.logprobs import PositionLogprobs, gather_top
from stubserver.sampling.params import SamplingParams
from stubserver.sampling.stages import StepState


@dataclass(frozen=True, slots=True)
class _Beam:
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[PositionLogprobs, ...] = ()
    score: float = 0.0
    ended: bool = False


def beam_search(generation: Generation, length_penalty: float) -> list[Step]:
    """The best beams, best first, each as one step with all its tokens.

    A beam grows by the 2 n best tokens of each position, by the values of the server's logprobs mode; of the request's
    parameters only n, max_tokens, temperature, ignore_eos, include_stop_str_in_output and skip_special_tokens count.
    """
    params = generation.params
    width = params.n
    # Each position is a request of its own to the engine, with nothing but the temperature.
    terms = Terms(generation.model, SamplingParams(temperature=params.temperature, max_tokens=1))
    beams, ended = [_Beam()], list[_Beam]()
    for _ in range(params.max_tokens):
        grown = [longer for beam in beams for longer in _grow(generation, terms, beam)]
        ended += [beam for beam in grown if beam.ended]
        going_on = sorted((beam for beam in grown if not beam.ended), key=lambda beam: -beam.score)
        beams = going_on[:width]
        if not beams:
            break
    prompt_len = len(generation.request.prompt_token_ids)
    ranked = sorted(ended + beams, key=lambda beam: -_normalized(beam, prompt_len, length_penalty))
    return [_step(generation, beam) for beam in ranked[:width]]


def _grow(generation: Generation, terms: Terms, beam: _Beam) -> list[_Beam]:
    position = _position(generation, terms, beam.token_ids)
    eos, params = generation.model.tokenizer.eos_token_id, generation.params
    longer = []
    for token_id, logprob in zip(position.token_ids, position.logprobs, strict=True):
        ends = token_id == eos and not params.ignore_eos
        kept = () if ends and not params.include_stop_str_in_output else (token_id,)
        longer.append(_Beam((*beam.token_ids, *kept), (*beam.logprobs, position), beam.score + logprob, ends))
    return longer


def _position(generation: Generation, terms: Terms, token_ids: Sequence[int]) -> PositionLogprobs:
    model = generation.model
    prompt = (*generation.request.prompt_token_ids, *token_ids)
    raw = generation.logits(generation.request.prompt_token_ids, token_ids)
    processed = process(terms, raw, StepState(prompt, (), custom_processors=model.custom_processors))
    reported = raw if terms.reports_raw else processed
    found = gather_top(reported, terms.mode, processed.best, generation.params.logprobs or 0)
    check_finite(found.logprobs)
    tokens = [model.tokenizer.token_text(token_id) for token_id in found.token_ids]
    return PositionLogprobs(found.token_ids, found.logprobs, tokens, found.ranks)


def _normalized(beam: _Beam, prompt_len: int, length_penalty: float) -> float:
    """The score per token, prompt included, the ending one not. Raises ValidationError for a penalty beyond floats."""
    try:
        length: float = max(prompt_len + len(beam.token_ids), 1) ** length_penalty
        return beam.score / length
    except ArithmeticError as error:
        raise ValidationError(str(error)) from error


def _step(generation: Generation, beam: _Beam) -> Step:
    params, tokenizer = generation.params, generation.model.tokenizer
    shown = beam.token_ids[:-1] if beam.ended and params.include_stop_str_in_output else beam.token_ids
    text = tokenizer.decode(shown, skip_special_tokens=params.skip_special_tokens)
    if beam.ended:
        return Step(beam.token_ids, text, beam.logprobs[: len(beam.token_ids)], "stop", tokenizer.eos_token_id)
    return Step(beam.token_ids, text, beam.logprobs, "length")
