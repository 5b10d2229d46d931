"""The loop: context → logits → mask → raw values → processed values → token → text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import repeat
from typing import NamedTuple, TypeVar

from stubserver.engine.grammar import Grammar
from stubserver.engine.model import Model
from stubserver.engine.output_text import OutputText
from stubserver.engine.terms import Terms
from stubserver.engine.trace_replay import follow_trace
from stubserver.errors import GenerationError, ValidationError
from stubserver.sampling.logits import Logits
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


class PositionLogprobs(NamedTuple):
    """The values reported for one position, with their tokens as text; the sampled (or prompt) token first."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    tokens: Sequence[str]
    ranks: Sequence[int]


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

    answer: the script, bound to this request. forced: token ids per choice that decoding has to follow. `check` comes
    before the rest. record: is told of every step, where somebody keeps a journal. aborted: ends all choices at their
    next step.
    """

    def __init__(
        self, terms: Terms, request: ScriptRequest, answer: Answer, forced: Sequence[Sequence[int]] = ()
    ) -> None:
        self.terms = terms
        self.model = terms.model
        self.params = terms.params
        self.request = request
        self.answer = answer
        self.forced = forced
        self.record: Recorder | None = None
        self.aborted = False

    def check(self) -> None:
        """Refuse what this model can't do. Raises ValidationError. In a stream, the 200 has gone out by then."""
        self.terms.check()
        prompt = self.request.prompt_token_ids
        check_room(self.model, len(prompt))
        check_prompt(self.model, prompt)
        if self.params.trace_decode_token_ids:
            self.params = follow_trace(self.params, self.model.settings.max_model_len - len(prompt))
            self.terms = Terms(self.model, self.params)
            self.forced = [self.params.trace_decode_token_ids or ()]

    def steps(self) -> Iterator[tuple[int, Step]]:
        """(choice, step) of all n choices in turn, a token of each, until the last one has finished."""
        return in_turn([_Choice(self, index).steps() for index in range(self.params.n)])

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


class _Choice:
    """One of the n outputs of a generation, as it grows."""

    def __init__(self, generation: Generation, index: int) -> None:
        terms, request = generation.terms, generation.request
        model, params, prompt = terms.model, terms.params, request.prompt_token_ids
        self._generation = generation
        self._terms = terms
        self._index = index
        self._forced = generation.forced[index] if index < len(generation.forced) else ()
        self._grammar = Grammar(terms.grammar, model.grammar_tokens) if terms.grammar else None
        self._rng = None if terms.greedy else make_rng(_choice_seed(model, params, index))
        self._detokenizer = model.tokenizer.detokenizer(prompt, skip_special_tokens=params.skip_special_tokens)
        self._text = OutputText(params.stop, params.include_stop_str_in_output)
        self._room = min(params.max_tokens, model.settings.max_model_len - len(prompt))
        self._output: list[int] = []
        # Both have the list itself, which grows.
        self._context = Context(request, prompt, self._output, model.settings.seed)
        self._state = StepState(
            prompt, self._output, terms.ending_token_ids, terms.grammar is not None, model.custom_processors
        )

    def steps(self) -> Iterator[Step]:
        """A step a token; the last one has the finish reason."""
        generation = self._generation
        stats = self._terms.model.stats.begin(len(generation.request.prompt_token_ids))
        while not generation.aborted:
            step = self._next()
            stats.advance()
            if step.finish_reason is not None:
                stats.finish(step.finish_reason)
                yield step
                return
            yield step
        # Finished, but not counted as that: vLLM's metrics don't either.
        yield Step([], self._text.take(finished=True), [] if self._terms.reported else None, "abort")

    def _next(self) -> Step:
        generation, terms, output = self._generation, self._terms, self._output
        logits = generation.answer.next_logits(self._context)
        raw = self._grammar.apply(logits) if self._grammar else logits
        processed = process(terms.model, raw, terms.params, self._state)
        token_id = self._choose(processed)
        if generation.record is not None:
            generation.record(self._index, token_id, raw, processed)
        logprobs = [self._report(raw if terms.reports_raw else processed, token_id)] if terms.reported else None
        mask = [sampling_mask(processed)] if terms.model.settings.return_sampling_mask else None
        output.append(token_id)
        if self._grammar:
            self._grammar.accept(token_id)
        finish_reason, stop_reason = self._finish(token_id)
        stop = self._add_text(token_id, ended=finish_reason == "stop")
        if stop is not None:
            finish_reason, stop_reason = "stop", stop
        text = self._text.take(finished=finish_reason is not None)
        return Step([token_id], text, logprobs, finish_reason, stop_reason, mask)

    def _choose(self, processed: Logits) -> int:
        if len(self._output) < len(self._forced):
            return self._forced[len(self._output)]
        return processed.best if self._rng is None else draw(processed, self._rng)

    def _report(self, logits: Logits, token_id: int) -> PositionLogprobs:
        """The values to return; those of shared logits are put together once."""
        key = (self._terms.reported, token_id)
        position: PositionLogprobs | None = None if logits.kept is None else logits.kept.get(key)
        if position is None:
            found = _gather(logits, self._terms, token_id)
            position = decode_logprobs(self._terms.model, found, self._output[-CONTEXT_TOKENS:])
            if logits.kept is not None and _is_worth_keeping(position, self._terms.model):
                logits.kept.keep(key, position)
        return position

    def _finish(self, token_id: int) -> tuple[str | None, int | str | None]:
        """(finish reason, stop reason) by the last token and the lengths, in the order of `v1/core/sched/utils.py`."""
        stop_reasons = self._terms.stop_reasons
        if token_id in stop_reasons:
            return "stop", stop_reasons[token_id]
        return ("length" if len(self._output) >= self._room else None), None

    def _add_text(self, token_id: int, *, ended: bool) -> str | None:
        """Take the token into the text; the stop string that is complete by it, if one is."""
        params = self._terms.params
        if ended and not params.include_stop_str_in_output:
            # A token that stops the generation is no part of the text.
            return None
        return self._text.append(self._detokenizer.step(token_id), look_for_stop=len(self._output) > params.min_tokens)


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


def check_room(model: Model, prompt_len: int) -> None:
    """Refuse a prompt that leaves no room for a token. Raises ValidationError.

    Source: vLLM 0.32.0, `v1/engine/input_processor.py`.
    """
    limit = model.settings.max_model_len
    if prompt_len < limit:
        return
    if prompt_len > limit:
        raise ValidationError(
            f"The decoder prompt (length {prompt_len}) is longer than the maximum model length of {limit}. "
            "Make sure that `max_model_len` is no smaller than the number of text tokens."
        )
    raise ValidationError(
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


def _choice_seed(model: Model, params: SamplingParams, index: int) -> int:
    return model.next_seed() if params.seed is None else params.seed + index
