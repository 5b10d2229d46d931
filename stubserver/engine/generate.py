"""The loop: context → logits → mask → raw values → processed values → token → text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import NamedTuple, TypeVar

import numpy as np

from stubserver.engine.grammar import Grammar
from stubserver.engine.model import Model
from stubserver.engine.output_text import OutputText
from stubserver.engine.terms import Terms
from stubserver.engine.trace_replay import follow_trace
from stubserver.errors import GenerationError, ValidationError
from stubserver.sampling.logits import Kept, Logits
from stubserver.sampling.logprobs import LogprobsMode, TokenLogprobs, gather_token_ids, gather_top
from stubserver.sampling.params import SamplingParams
from stubserver.sampling.pipeline import StepState, process_logits
from stubserver.sampling.sampler import draw, make_rng
from stubserver.sampling.sampling_mask import sampling_mask
from stubserver.script.context import Answer, Context, ScriptRequest
from stubserver.tokenizer.detokenizer import CONTEXT_TOKENS, REPLACEMENT, decode_entries

T = TypeVar("T")

MOST_KEPT = 64
"""Entries of a report that is kept."""


@dataclass(slots=True, eq=False)
class PositionLogprobs:
    """The values reported for one position, with their tokens as text; the sampled (or prompt) token first.

    kept: where others keep what they make of values that will be met again; None for others.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    tokens: Sequence[str]
    ranks: Sequence[int]
    kept: Kept | None = None


class Step(NamedTuple):
    """A piece of one choice: one token, or all of a beam's.

    `text` is what can be shown by now: it may lag behind the tokens. `logprobs`: a position a token, if asked for.
    `sampling_mask`: per token, the ids that it was drawn from, if the server returns them.
    """

    token_ids: Sequence[int]
    text: str
    logprobs: Sequence[PositionLogprobs] | None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    sampling_mask: Sequence[Sequence[int]] | None = None


Recorder = Callable[[int, int, Logits, Logits], None]
"""Takes (choice, token id, raw, processed) of a step."""


class Generation:
    """One prompt of a request.

    answer: the script, bound to this request. forced: token ids per choice that decoding has to follow. tokenized:
    whether the prompt's ids are the tokenizer's own, so that they need no check. `check` comes before the rest.
    record: is told of every step, where somebody keeps a journal. aborted: ends all choices at their next step.
    """

    def __init__(
        self,
        terms: Terms,
        request: ScriptRequest,
        answer: Answer,
        forced: Sequence[Sequence[int]] = (),
        *,
        tokenized: bool = False,
    ) -> None:
        self.terms = terms
        self.model = terms.model
        self.params = terms.params
        self.request = request
        self.answer = answer
        self.forced = forced
        self.tokenized = tokenized
        self.record: Recorder | None = None
        self.aborted = False

    def check(self) -> None:
        """Refuse what this model can't do. Raises ValidationError. In a stream, the 200 has gone out by then."""
        if not self.terms.accepted:
            self.terms.check()
        prompt, limit = self.request.prompt_token_ids, self.model.settings.max_model_len
        if len(prompt) >= limit:
            raise no_room(len(prompt), limit)
        if not (self.tokenized and prompt):
            check_prompt(self.model, prompt)
        if self.params.trace_decode_token_ids:
            self.params = follow_trace(self.params, limit - len(prompt))
            self.terms = Terms(self.model, self.params)
            self.forced = [self.params.trace_decode_token_ids or ()]

    def steps(self) -> Iterator[tuple[int, Step]]:
        """(choice, step) of all n choices in turn, a token of each, until the last one has finished."""
        return in_turn([_choose_tokens(self, index, _rng(self.terms, index)) for index in range(self.params.n)])

    @cached_property
    def prompt_logprobs(self) -> list[PositionLogprobs | None]:
        """Values of the prompt's tokens, of each after what precedes it; None for the first.

        No parameter of the request applies to them: the processed modes report the raw values.
        """
        model, prompt = self.model, self.request.prompt_token_ids
        mode: LogprobsMode = "raw_logits" if model.settings.logprobs_mode.endswith("logits") else "raw_logprobs"
        positions: list[PositionLogprobs | None] = [None]
        for position in range(1, len(prompt)):
            logits = self.logits(prompt[:position], ())
            found = gather_top(logits, mode, prompt[position], self.params.prompt_logprobs or 0)
            # The first token has no entry, so it is no context to those that follow, in vLLM too.
            positions.append(decode_logprobs(model, found, prompt[max(1, position - CONTEXT_TOKENS) : position]))
        return positions

    def logits(self, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int]) -> Logits:
        """What the script says comes after these tokens."""
        return self.answer.next_logits(
            Context(self.request, prompt_token_ids, output_token_ids, self.model.settings.seed)
        )


def _choose_tokens(generation: Generation, index: int, rng: np.random.Generator | None) -> Iterator[Step]:
    """The steps of one of the n outputs, a token each; the last one has the finish reason. rng: None if greedy."""
    terms, request, record = generation.terms, generation.request, generation.record
    model, params, prompt = terms.model, terms.params, request.prompt_token_ids
    forced = generation.forced[index] if index < len(generation.forced) else ()
    grammar = Grammar(terms.grammar, model.grammar_tokens, terms.ending_token_ids) if terms.grammar else None
    detokenizer = model.tokenizer.detokenizer(prompt, skip_special_tokens=params.skip_special_tokens)
    # Without stop strings, text shows as it comes.
    shown = OutputText(params.stop, params.include_stop_str_in_output) if params.stop else None
    room = min(params.max_tokens, model.settings.max_model_len - len(prompt))
    output: list[int] = []
    context = Context(request, prompt, output, model.settings.seed)  # with the list itself, which grows
    next_logits = generation.answer.next_logits
    stats = model.stats.begin(len(prompt))

    while not generation.aborted:
        raw = next_logits(context)
        if grammar is not None:
            raw = grammar.apply(raw)
        # What was kept is found without what it takes to make it.
        processed = raw.kept and raw.kept.get(params)
        if not processed:
            processed = process(model, raw, params, terms.state(prompt, output))
        if len(output) < len(forced):
            token_id = forced[len(output)]
        else:
            token_id = processed.best if rng is None else draw(processed, rng)
        if record is not None:
            record(index, token_id, raw, processed)
        reported = raw if terms.reports_raw else processed
        logprobs = [_report(terms, reported, token_id, output)] if terms.reported else None
        mask = [sampling_mask(processed)] if terms.returns_mask else None
        if grammar is not None:
            grammar.accept(token_id, is_forced=len(output) < len(forced))
        output.append(token_id)

        finish_reason, stop_reason = _ending(terms, token_id, is_last=len(output) >= room)
        # A token that stops the generation is no part of the text.
        hidden = finish_reason == "stop" and not params.include_stop_str_in_output
        text = "" if hidden else detokenizer.step(token_id)
        if shown is not None:
            stop = shown.append(text, look_for_stop=len(output) > params.min_tokens)
            if stop is not None:
                finish_reason, stop_reason = "stop", stop
            text = shown.take(finished=finish_reason is not None)

        stats.advance()
        if finish_reason is not None:
            stats.finish(finish_reason)
            yield Step([token_id], text, logprobs, finish_reason, stop_reason, mask)
            return
        yield Step([token_id], text, logprobs, None, None, mask)
    # Finished, but not counted as that: vLLM's metrics don't either.
    yield Step([], shown.take(finished=True) if shown else "", [] if terms.reported else None, "abort")


def _ending(terms: Terms, token_id: int, *, is_last: bool) -> tuple[str | None, int | str | None]:
    """(finish reason, stop reason) by a token and the lengths. Order: vLLM 0.32.0, `v1/core/sched/utils.py`."""
    if token_id in terms.stop_reasons:
        return "stop", terms.stop_reasons[token_id]
    return ("length" if is_last else None), None


def _rng(terms: Terms, index: int) -> np.random.Generator | None:
    if terms.greedy:
        return None
    seed = terms.params.seed
    return make_rng(terms.model.next_seed() if seed is None else seed + index)


def _report(terms: Terms, logits: Logits, token_id: int, output: Sequence[int]) -> PositionLogprobs:
    """The values to return for the token after `output`; those of shared logits are put together once."""
    kept, key = logits.kept, (terms.reported, token_id)
    position: PositionLogprobs | None = None if kept is None else kept.get(key)
    if position is None:
        found = _gather(logits, terms, token_id)
        position = decode_logprobs(terms.model, found, output[-CONTEXT_TOKENS:])
        if kept is not None and _is_worth_keeping(position, terms.model):
            position.kept = Kept()
            kept.keep(key, position)
    return position


def in_turn(sources: Sequence[Iterator[T]]) -> Iterator[tuple[int, T]]:
    """(number of the source, item): an item of each source in turn, until all have ended."""
    return zip(repeat(0), sources[0], strict=False) if len(sources) == 1 else _in_turn(sources)


def _in_turn(sources: Sequence[Iterator[T]]) -> Iterator[tuple[int, T]]:
    going_on = dict(enumerate(sources))
    while going_on:
        for number, source in list(going_on.items()):
            try:
                yield number, next(source)
            except StopIteration:
                del going_on[number]


def process(model: Model, raw: Logits, params: SamplingParams, state: StepState) -> Logits:
    """Processed logits of one step. Raises GenerationError if a custom logits processor fails."""
    try:
        return process_logits(raw, params, state, model.settings.model_runner)
    except Exception as error:
        if not model.custom_processors:
            raise
        raise GenerationError(f"{type(error).__name__}: {error} (in a custom logits processor)") from error


def check_finite(values: Iterable[float]) -> None:
    """Refuse NaN, which JSON can't carry; vLLM fails such a request too. Raises ValidationError."""
    if any(value != value for value in values):
        raise ValidationError("Out of range float values are not JSON compliant: nan")


def check_prompt(model: Model, prompt_token_ids: Sequence[int]) -> None:
    """Refuse a prompt that the model can't take. Raises ValidationError."""
    if not prompt_token_ids:
        raise ValidationError("The decoder prompt cannot be empty")
    for worst in (max(prompt_token_ids), min(prompt_token_ids)):
        if not 0 <= worst < model.prompt_vocab_size:
            raise ValidationError(f"Token id {worst} is out of vocabulary")


def no_room(prompt_len: int, limit: int) -> ValidationError:
    """What vLLM says of a prompt that leaves no room for a token. Source: 0.32.0, `v1/engine/input_processor.py`."""
    if prompt_len > limit:
        return ValidationError(
            f"The decoder prompt (length {prompt_len}) is longer than the maximum model length of {limit}. "
            "Make sure that `max_model_len` is no smaller than the number of text tokens."
        )
    return ValidationError(
        f"The decoder prompt (length {prompt_len}) plus the number of requested output tokens (at least 1) is longer "
        f"than the maximum model length of {limit}. Make sure that `max_model_len` is no smaller than the number of "
        "text tokens (prompt + requested output tokens)."
    )


def decode_logprobs(model: Model, found: TokenLogprobs, context: Sequence[int]) -> PositionLogprobs:
    """Values with their tokens as text; `context`: the tokens before, which may begin a character.

    Raises ValidationError for NaN: JSON can't carry it, and vLLM fails such a request too.
    """
    check_finite(found.logprobs)
    tokens = decode_entries(model.tokenizer, found.token_ids, context)
    return PositionLogprobs(found.token_ids, found.logprobs, tokens, found.ranks)


def _gather(logits: Logits, terms: Terms, token_id: int) -> TokenLogprobs:
    mode, params = terms.model.settings.logprobs_mode, terms.params
    if params.logprob_token_ids:
        return gather_token_ids(logits, mode, token_id, params.logprob_token_ids)
    return gather_top(logits, mode, token_id, params.logprobs or 0)


def _is_worth_keeping(position: PositionLogprobs, model: Model) -> bool:
    """Small, and the same wherever it stands: what a part of a character shows depends on the tokens before."""
    if len(position.token_ids) > MOST_KEPT:
        return False
    return not any(model.tokenizer.token_text(token_id).endswith(REPLACEMENT) for token_id in position.token_ids)
