"""The loop: context → logits → mask → raw values → processed values → token → text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Any, NamedTuple, TypeVar

from stubserver.config import Settings
from stubserver.engine.grammar import Grammar, compile_constraint
from stubserver.engine.model import Model
from stubserver.engine.output_text import OutputText
from stubserver.engine.trace_replay import check_enabled, check_trace, follow_trace
from stubserver.errors import GenerationError, ValidationError
from stubserver.sampling.logits import Logits
from stubserver.sampling.logprobs import LogprobsMode, TokenLogprobs, gather_token_ids, gather_top
from stubserver.sampling.params import SamplingParams, check_model
from stubserver.sampling.pipeline import StepState, process_logits
from stubserver.sampling.sampler import draw, make_rng
from stubserver.sampling.sampling_mask import check_sampling_mask, sampling_mask
from stubserver.script.context import Answer, Context, ScriptRequest
from stubserver.tokenizer.detokenizer import CONTEXT_TOKENS, decode_entries

T = TypeVar("T")


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


@dataclass(eq=False)
class Generation:
    """One prompt of a request.

    answer: the script, bound to this request. constraint: (kind, value) of structured outputs.
    forced: token ids per choice that decoding has to follow. `check` comes before the rest.
    record: is told of every step, where somebody keeps a journal. aborted: ends all choices at their next step.
    """

    model: Model
    request: ScriptRequest
    params: SamplingParams
    answer: Answer
    constraint: tuple[str, Any] | None = None
    forced: Sequence[Sequence[int]] = ()
    grammar: str | None = field(default=None, init=False)
    record: Recorder | None = field(default=None, init=False)
    aborted: bool = field(default=False, init=False)

    def check(self) -> None:
        """Refuse what this model can't do. Raises ValidationError. In a stream, the 200 has gone out by then."""
        settings = self.model.settings
        check_model(self.params, self.model.vocab_size, settings.max_logprobs)
        check_thinking(self.params, settings)
        check_trace(self.params, self.model, constrained=self.constraint is not None)
        self.grammar = compile_constraint(*self.constraint) if self.constraint else None
        if settings.return_sampling_mask:
            check_sampling_mask(self.params)
        check_enabled(self.params, settings)
        check_room(self.model, len(self.request.prompt_token_ids))
        check_prompt(self.model, self.request.prompt_token_ids)
        if self.params.trace_decode_token_ids:
            self.params = follow_trace(self.params, settings.max_model_len - len(self.request.prompt_token_ids))
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
        model, params = generation.model, generation.params
        self._generation = generation
        self._index = index
        self._forced = generation.forced[index] if index < len(generation.forced) else ()
        self._grammar = Grammar(generation.grammar, model.grammar_tokens) if generation.grammar else None
        self._rng = None if params.greedy else make_rng(_choice_seed(model, params, index))
        self._detokenizer = model.tokenizer.detokenizer(
            generation.request.prompt_token_ids, skip_special_tokens=params.skip_special_tokens
        )
        self._text = OutputText(params.stop, params.include_stop_str_in_output)
        self._output: list[int] = []
        # Both have the list itself, which grows.
        prompt = generation.request.prompt_token_ids
        self._context = Context(generation.request, prompt, self._output, model.settings.seed)
        self._state = StepState(
            prompt, self._output, ending_token_ids(model, params), self._grammar is not None, model.custom_processors
        )

    def steps(self) -> Iterator[Step]:
        """A step a token; the last one has the finish reason."""
        model, request = self._generation.model, self._generation.request
        stats = model.stats.begin(len(request.prompt_token_ids))
        while not self._generation.aborted:
            step = self._next()
            stats.advance()
            if step.finish_reason is not None:
                stats.finish(step.finish_reason)
            yield step
            if step.finish_reason is not None:
                return
        # Finished, but not counted as that: vLLM's metrics don't either.
        yield Step([], self._text.take(finished=True), [] if self._generation.params.wants_logprobs else None, "abort")

    def _next(self) -> Step:
        generation, output = self._generation, self._output
        logits = generation.answer.next_logits(self._context)
        raw = self._grammar.apply(logits) if self._grammar else logits
        processed = process(generation.model, raw, generation.params, self._state)
        token_id = self._choose(processed)
        if generation.record is not None:
            generation.record(self._index, token_id, raw, processed)
        logprobs = [self._report(raw, processed, token_id)] if generation.params.wants_logprobs else None
        mask = [sampling_mask(processed)] if generation.model.settings.return_sampling_mask else None
        output.append(token_id)
        if self._grammar:
            self._grammar.accept(token_id)
        finish_reason, stop_reason = _finish(generation, output)
        stop = self._add_text(token_id, ended=finish_reason == "stop")
        if stop is not None:
            finish_reason, stop_reason = "stop", stop
        text = self._text.take(finished=finish_reason is not None)
        return Step([token_id], text, logprobs, finish_reason, stop_reason, mask)

    def _choose(self, processed: Logits) -> int:
        if len(self._output) < len(self._forced):
            return self._forced[len(self._output)]
        return processed.best if self._rng is None else draw(processed, self._rng)

    def _report(self, raw: Logits, processed: Logits, token_id: int) -> PositionLogprobs:
        model, params = self._generation.model, self._generation.params
        logits = raw if model.settings.logprobs_mode.startswith("raw") else processed
        if params.logprob_token_ids:
            found = gather_token_ids(logits, model.settings.logprobs_mode, token_id, params.logprob_token_ids)
        else:
            found = gather_top(logits, model.settings.logprobs_mode, token_id, params.logprobs or 0)
        return decode_logprobs(model, found, self._output[-CONTEXT_TOKENS:])

    def _add_text(self, token_id: int, *, ended: bool) -> str | None:
        """Take the token into the text; the stop string that is complete by it, if one is."""
        params = self._generation.params
        if ended and not params.include_stop_str_in_output:
            # A token that stops the generation is no part of the text.
            return None
        return self._text.append(self._detokenizer.step(token_id), look_for_stop=len(self._output) > params.min_tokens)


def in_turn(sources: Sequence[Iterator[T]]) -> Iterator[tuple[int, T]]:
    """(number of the source, item): an item of each source in turn, until all have ended."""
    if len(sources) == 1:
        yield from zip(repeat(0), sources[0], strict=False)
        return
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


def check_thinking(params: SamplingParams, settings: Settings) -> None:
    """Refuse a budget for thoughts where the server doesn't know thoughts. Raises ValidationError."""
    if params.thinking_token_budget is not None and not settings.reasoning_parser:
        raise ValidationError(
            "thinking_token_budget is set but reasoning_config is not configured. Please set --reasoning-parser and/or "
            "--reasoning-config to use thinking_token_budget."
        )


def check_prompt(model: Model, prompt_token_ids: Sequence[int]) -> None:
    """Refuse a prompt that the model can't take. Raises ValidationError."""
    if not prompt_token_ids:
        raise ValidationError("The decoder prompt cannot be empty")
    for worst in (max(prompt_token_ids), min(prompt_token_ids)):
        if not 0 <= worst < max(model.vocab_size, model.tokenizer.vocab_size):
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


def _choice_seed(model: Model, params: SamplingParams, index: int) -> int:
    return model.next_seed() if params.seed is None else params.seed + index


def ending_token_ids(model: Model, params: SamplingParams) -> Sequence[int]:
    """EOS and the stop ids: what is masked while fewer than min_tokens tokens are out."""
    eos = model.tokenizer.eos_token_id
    return [*params.stop_token_ids, *([] if eos is None else [eos])]


def _finish(generation: Generation, output: Sequence[int]) -> tuple[str | None, int | str | None]:
    """(finish reason, stop reason) by the last token and the lengths. Order: vLLM 0.32.0, `v1/core/sched/utils.py`."""
    model, params, last = generation.model, generation.params, output[-1]
    if last == model.tokenizer.eos_token_id and not params.ignore_eos:
        return "stop", None
    if last in params.stop_token_ids:
        return "stop", last
    length = len(generation.request.prompt_token_ids) + len(output)
    if length >= model.settings.max_model_len or len(output) >= params.max_tokens:
        return "length", None
    return None, None
