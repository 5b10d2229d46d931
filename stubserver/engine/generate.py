"""The loop: context → logits → mask → raw values → processed values → token → text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import repeat
from math import isnan, nan
from typing import TypeVar

import numpy as np

from stubserver.engine.model import Model
from stubserver.engine.output_text import OutputText
from stubserver.engine.pieces import Step as Step
from stubserver.engine.pieces import merge_steps
from stubserver.engine.recorded import keep_to_recorded
from stubserver.engine.repetition import FINISH_REASON, STOP_REASON, repeats_itself
from stubserver.engine.stats import Choices
from stubserver.engine.terms import EngineRequest, Terms
from stubserver.engine.waiting import Waiting
from stubserver.errors import GenerationError, ValidationError
from stubserver.memory import Memo
from stubserver.sampling.logits import Logits
from stubserver.sampling.logprobs import (
    LogprobsMode,
    PositionLogprobs,
    TokenLogprobs,
    gather_token_ids,
    gather_top,
)
from stubserver.sampling.sampler import draw, make_rng
from stubserver.sampling.sampling_mask import sampling_mask
from stubserver.sampling.stages import StepState, process_logits
from stubserver.script.context import Answer, Context, ScriptRequest
from stubserver.tokenizer.detokenizer import CONTEXT_TOKENS, REPLACEMENT, decode_entries

T = TypeVar("T")

MOST_ENTRIES = 64
"""Entries of a report that is remembered."""

MOST_SHOWN = 16
"""In how many ways such a report is remembered as the wire shows it."""


Recorder = Callable[[int, int, Logits, Logits], None]
"""Takes (choice, token id, raw, processed) of a step."""


class Generation:
    """One prompt of a request.

    answer: the script, bound to this request. forced: token ids per choice that decoding has to follow. tokenized:
    whether the prompt's ids are the tokenizer's own, so that they need no check. record: is told of every step, where
    somebody keeps a journal. replica: which of the server's is meant; there is one, 0. aborted: ends all choices at
    their next step. choices: what several choices share that are counted together. notes: what its values rest on that
    was never recorded; None where nobody asks. Raises UnrecordedError.
    """

    def __init__(
        self,
        asked: EngineRequest,
        request: ScriptRequest,
        answer: Answer,
        forced: Sequence[Sequence[int]] = (),
        *,
        tokenized: bool = False,
        record: Recorder | None = None,
    ) -> None:
        self.asked = asked
        self.model = asked.model
        self.params = asked.params
        self.request = request
        self.answer = answer
        self.notes: list[str] | None = None
        if asked.keeps_to_recorded:
            self.answer, self.notes = keep_to_recorded(answer, request, asked, forced)
        self.forced = forced
        self.tokenized = tokenized
        self.record = record
        self.replica = 0
        self.aborted = False
        self.choices = Choices(asked.params.n) if asked.params.n > 1 else None

    @property
    def awaits(self) -> Waiting | None:
        """What has to come before the constraint holds; None if nothing has to."""
        waiting = self.asked.waiting
        return waiting if waiting and waiting.is_open(self.request.prompt_token_ids) else None

    def check(self) -> None:
        """Refuse what this model can't do. Raises RequestError. In a stream, the 200 has gone out by then."""
        self.asked.grammar  # noqa: B018 - raises
        self._check_replica()
        self._check_prompt()
        self.asked.terms  # noqa: B018 - raises

    def _check_replica(self) -> None:
        if self.replica != 0:
            raise ValidationError(f"There is no replica {self.replica}.", code="unknown_replica", value=self.replica)

    def _check_prompt(self) -> None:
        prompt, limit = self.request.prompt_token_ids, self.model.settings.max_model_len
        if len(prompt) >= limit:
            raise ValidationError(
                f"The prompt has {len(prompt)} tokens, and the context holds {limit}, the next one included.",
                code="prompt_too_long",
                length=len(prompt),
                limit=limit,
            )
        if not (self.tokenized and prompt):
            check_prompt(self.model, prompt)

    def steps(self) -> Iterator[tuple[int, Step]]:
        """(choice, step) of all n choices in turn, a piece of each, until the last one has finished."""
        choices = [_choose_tokens(self, index) for index in range(self.params.n)]
        interval = self.params.stream_interval or 1
        return in_turn([merge_steps(steps, interval) for steps in choices] if interval > 1 else choices)

    @cached_property
    def prompt_logprobs(self) -> list[PositionLogprobs | None]:
        """Values of the prompt's tokens, of each after what precedes it; None for the first.

        No parameter of the request applies to them: the processed modes report the raw values.
        """
        model, prompt = self.model, self.request.prompt_token_ids
        mode: LogprobsMode = "raw_logits" if self.asked.terms.mode.endswith("logits") else "raw_logprobs"
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


def _choose_tokens(generation: Generation, index: int) -> Iterator[Step]:
    """The steps of one of the n outputs, a token each; the last one has the finish reason."""
    terms, request, record = generation.asked.terms, generation.request, generation.record
    model, params, prompt = terms.model, terms.params, request.prompt_token_ids
    rng = _make_rng(terms, index)
    forced = params.trace_decode_token_ids or (generation.forced[index] if index < len(generation.forced) else ())
    grammar = terms.start_grammar()
    waiting = generation.awaits if grammar is not None else None
    detokenizer = model.tokenizer.detokenizer(prompt, skip_special_tokens=params.skip_special_tokens)
    # Without stop strings, text shows as it comes.
    shown = OutputText(params.stop, params.include_stop_str_in_output) if params.stop else None
    room = min(params.max_tokens, model.settings.max_model_len - len(prompt))
    output: list[int] = []
    context = Context(request, prompt, output, model.settings.seed)  # with the list itself, which grows
    next_logits = generation.answer.next_logits
    stats = model.stats.begin(len(prompt), params.max_tokens, generation.choices)

    while not generation.aborted:
        raw = next_logits(context)
        if grammar is not None and waiting is None:
            raw = grammar.apply(raw)
        # What is remembered is found without what it takes to make it.
        processed = None if raw.memo is None else raw.memo.processed.find(params)
        if processed is None:
            processed = process(terms, raw, terms.state(prompt, output))
        if len(output) < len(forced):
            token_id = forced[len(output)]
        else:
            token_id = processed.best if rng is None else draw(processed, rng)
        if record is not None:
            record(index, token_id, raw, processed)
        reported = raw if terms.reports_raw else processed
        logprobs = [_report(terms, reported, token_id, output)] if terms.reported else None
        mask = [sampling_mask(processed)] if terms.returns_mask else None
        if waiting is not None:
            waiting = None if token_id in waiting.ends else waiting
        elif grammar is not None:
            grammar.accept(token_id, is_forced=len(output) < len(forced))
        output.append(token_id)

        finish_reason, stop_reason = _ending(terms, output, is_last=len(output) >= room)
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


def _ending(terms: Terms, output: Sequence[int], *, is_last: bool) -> tuple[str | None, int | str | None]:
    """(finish reason, stop reason) by the tokens and the lengths. Order: vLLM 0.32.0, `v1/core/sched/utils.py`."""
    if output[-1] in terms.stop_reasons:
        return "stop", terms.stop_reasons[output[-1]]
    if is_last:
        return "length", None
    repetition = terms.params.repetition
    if repetition is not None and len(output) >= terms.params.min_tokens and repeats_itself(output, repetition):
        return FINISH_REASON, STOP_REASON
    return None, None


def _make_rng(terms: Terms, index: int) -> np.random.Generator | None:
    """What a choice is drawn with; None if the best token is taken."""
    if terms.greedy:
        return None
    seed = terms.params.seed
    return make_rng(terms.model.next_seed() if seed is None else seed + index)


def _report(terms: Terms, logits: Logits, token_id: int, output: Sequence[int]) -> PositionLogprobs:
    """The values to return for the token after `output`; those of a row that comes again are put together once."""
    memo, key = logits.memo, (terms.reported, token_id)
    position: PositionLogprobs | None = None if memo is None else memo.reports.find(key)
    if position is None:
        found = _gather(logits, terms, token_id)
        position = decode_logprobs(terms.model, found, output[-CONTEXT_TOKENS:])
        if memo is not None and _stands_alone(position, terms.model):
            position.shown = Memo(MOST_SHOWN)
            memo.reports.keep(key, position)
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


def process(terms: Terms, raw: Logits, state: StepState) -> Logits:
    """Processed logits of one step. Raises GenerationError if a custom logits processor fails."""
    try:
        return process_logits(raw, terms.params, state, terms.stages)
    except Exception as error:
        if not terms.model.custom_processors:
            raise
        raise GenerationError(f"{type(error).__name__}: {error} (in a custom logits processor)") from error


def check_finite(values: Iterable[float]) -> None:
    """Refuse NaN, which a full reply can't carry; in a stream's events it is null. Raises ValidationError."""
    if any(map(isnan, values)):
        raise ValidationError("A value is no number, which JSON can't carry.", code="not_finite", value=nan)


def check_prompt(model: Model, prompt_token_ids: Sequence[int]) -> None:
    """Refuse a prompt that the model can't take. Raises ValidationError."""
    if not prompt_token_ids:
        raise ValidationError("The prompt has no tokens.", code="empty_prompt")
    for worst in (max(prompt_token_ids), min(prompt_token_ids)):
        if not 0 <= worst < model.prompt_vocab_size:
            raise ValidationError(f"There is no token {worst}.", code="unknown_token", value=worst)


def decode_logprobs(model: Model, found: TokenLogprobs, context: Sequence[int]) -> PositionLogprobs:
    """Values with their tokens as text; `context`: the tokens before, which may begin a character."""
    tokens = decode_entries(model.tokenizer, found.token_ids, context)
    return PositionLogprobs(found.token_ids, found.logprobs, tokens, found.ranks)


def _gather(logits: Logits, terms: Terms, token_id: int) -> TokenLogprobs:
    params = terms.params
    if params.logprob_token_ids:
        return gather_token_ids(logits, terms.mode, token_id, params.logprob_token_ids)
    return gather_top(logits, terms.mode, token_id, params.logprobs or 0)


def _stands_alone(position: PositionLogprobs, model: Model) -> bool:
    """Small, and the same wherever it stands: what a part of a character shows depends on the tokens before."""
    if len(position.token_ids) > MOST_ENTRIES:
        return False
    return not any(model.tokenizer.token_text(token_id).endswith(REPLACEMENT) for token_id in position.token_ids)
