"""Answers from recordings: what of a request can't be answered without an invented number.

A row of a script of recordings names the recorded tokens; all others have one and the same value, their share of what
is left of 1, by which they are told. What a reply may show:

- raw values of recorded tokens, for they are the recording's own; of the likeliest ones as many as are known without a
  gap, which the script says for each step (`recorded`);
- processed values where `allowed_token_ids` keeps recorded tokens only, for a softmax over those needs no others;
- the likeliest token, and what follows it, as far as that was recorded.

Everything else is refused, or noted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stubserver.engine.terms import EngineRequest
from stubserver.errors import UnrecordedError
from stubserver.memory import remembered
from stubserver.sampling.logits import Logits
from stubserver.sampling.logprobs import LogprobsMode
from stubserver.sampling.params import SamplingParams
from stubserver.script.context import Answer, Context, Recorded, ScriptRequest
from stubserver.tokenizer.base import Tokenizer

PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")

MOVERS = (*PENALTIES, "logit_bias", "bad_words", "min_tokens")
"""Parameters that may take the likeliest token its place."""

MASKS = ("top_p", "min_p")

_NEUTRAL = SamplingParams()


@dataclass(frozen=True)
class Wanted:
    """What a request asks for, as far as recordings have to have it.

    starts: the first tokens of the labels of a structured choice. grammar: whether another grammar says what may come.
    forced: per choice, the tokens that decoding has to follow.
    """

    params: SamplingParams
    mode: LogprobsMode
    tokenizer: Tokenizer
    starts: Sequence[int] = ()
    grammar: bool = False
    forced: Sequence[Sequence[int]] = ()

    def token_ids(self, position: int) -> list[int]:
        """The tokens that it names, or will see the value of, as the output's token number `position`."""
        params = self.params
        named = [*(params.allowed_token_ids or ()), *(params.logprob_token_ids or ()), *(params.logit_bias or ())]
        paths = [*self.forced, params.trace_decode_token_ids or ()] if params.wants_logprobs else []
        following = [path[position] for path in paths if position < len(path)]
        return [*named, *following, *(() if position else self.starts)]

    @property
    def is_restricted(self) -> bool:
        """Whether only the tokens that it names can come out."""
        return bool(self.params.allowed_token_ids)

    @property
    def is_processed(self) -> bool:
        """Whether it gets the values that tokens are drawn by."""
        return self.mode.startswith("processed")

    def count_top(self, vocab_size: int) -> int:
        """How many of the likeliest tokens it wants to see."""
        count = 0 if self.params.logprob_token_ids else self.params.logprobs or 0
        return vocab_size if count == -1 else count


def keep_to_recorded(
    answer: Answer,
    request: ScriptRequest,
    asked: EngineRequest,
    forced: Sequence[Sequence[int]],
) -> tuple[Answer, list[str]]:
    """(the answer, checked with every row that it gives; a list that says what the values rest on, empty if exact).

    Raises UnrecordedError, by what the first row and the request tell; the checked answer raises it too.
    """
    model, params, settings = asked.model, asked.params, asked.model.settings
    kind, value = asked.constraint or (None, ())
    labels = [label for label in value if label] if kind == "choice" else []
    starts = [model.tokenizer.encode(label, add_special_tokens=False)[0] for label in labels]
    mode = model.behaviour.mode(params, settings)
    wanted = Wanted(params, mode, model.tokenizer, starts, kind not in (None, "choice"), forced)
    checked = _CheckedAnswer(answer, len(request.prompt_token_ids), wanted, refuses=settings.unrecorded == "refuse")
    checked.start(Context(request, request.prompt_token_ids, (), settings.seed))
    return answer._replace(next_logits=checked.next_logits), checked.notes


class _CheckedAnswer:
    """One request's way through the recordings. notes: what the values rest on."""

    def __init__(self, answer: Answer, prompt_len: int, wanted: Wanted, *, refuses: bool) -> None:
        self.notes: list[str] = []
        self._answer = answer
        self._prompt_len = prompt_len
        self._wanted = wanted
        self._refuses = refuses
        self._best: dict[int, int] = {}

    def start(self, context: Context) -> None:
        """Say what can be said before the first token."""
        self._check(self._answer.next_logits(context), 0)
        self.notes += find_dependences(self._wanted)

    def next_logits(self, context: Context) -> Logits:
        """The recorded row after this context. Raises UnrecordedError."""
        row, position = self._answer.next_logits(context), len(context.output_token_ids)
        if len(context.prompt_token_ids) < self._prompt_len:
            return row  # a prompt that is scored: refused, or noted, from the start
        self._best[position] = int(row.values.argmax())
        self._object(self._strays(context.output_token_ids))
        if position:
            self._check(row, position)
        return row

    def _strays(self, output: Sequence[int]) -> Iterator[str]:
        """A row says what follows the tokens that were recorded before it, and no others."""
        for position, token_id in enumerate(output):
            if self._best.get(position, token_id) != token_id:
                shown = show_tokens([token_id], self._wanted.tokenizer)
                yield f"nothing was recorded after {shown} as token {position} of the output"

    def _check(self, row: Logits, position: int) -> None:
        known_top = count_known_top(self._answer.recorded, row, position)
        self._object(find_problems(self._wanted, row, position, known_top))

    def _object(self, problems: Iterable[str]) -> None:
        for problem in problems:
            if self._refuses:
                raise UnrecordedError(
                    f"The answer would rest on what was never recorded: {problem}. "
                    "Record it, or serve with --unrecorded mark."
                )
            self.notes.append(f"rests on unrecorded tokens: {problem}")


def count_known_top(recorded: Recorded | None, row: Logits, position: int) -> int:
    """How many of the likeliest tokens of all were recorded, without a gap.

    Where the script doesn't say so, those that are at least as likely as all that is left.
    """
    if recorded is not None and position < len(recorded.top_logprobs):
        return recorded.top_logprobs[position]
    probs = np.exp(row.logprobs[list(recorded_ids(row))].astype(np.float64))
    return int((probs >= 1 - probs.sum()).sum())


@remembered(most=64)
def recorded_ids(row: Logits) -> frozenset[int]:
    """The tokens of a row that were recorded: all whose value isn't the one that the others share."""
    values, counts = np.unique(row.values, return_counts=True)
    shared = values[counts.argmax()]
    if counts.max() == 1:
        return frozenset(range(row.vocab_size))
    return frozenset(np.flatnonzero(row.values != shared).tolist())


def find_problems(wanted: Wanted, row: Logits, position: int, known_top: int) -> Iterator[str]:
    """What can't be answered from the row of the output's token number `position`, counted from 0.

    known_top: how many of the likeliest tokens of all were recorded.
    """
    known = recorded_ids(row)
    missing = [token_id for token_id in wanted.token_ids(position) if token_id not in known]
    if missing:
        shown, recorded = (show_tokens(token_ids, wanted.tokenizer) for token_ids in (missing, sorted(known)))
        yield f"{shown} was never recorded here; recorded is {recorded}"
    if wanted.params.prompt_logprobs is not None:
        yield "the values of a prompt's own tokens are not in the script"
    count = wanted.count_top(row.vocab_size)
    if count > known_top and not (wanted.is_restricted and wanted.is_processed):
        yield f"{count} top logprobs are asked for, and {known_top} were recorded without a gap"
    if not wanted.is_restricted:
        yield from _open_draws(wanted, row, known_top)


def _open_draws(wanted: Wanted, row: Logits, known_top: int) -> Iterator[str]:
    """Why a token that was never recorded may come out."""
    params, movers = wanted.params, _given(wanted.params, MOVERS)
    if not known_top:
        yield "the likeliest token was not recorded; allowed_token_ids chooses among those that were"
    elif movers:
        yield f"{', '.join(movers)} may bring up a token that was never recorded"
    elif wanted.grammar or not _choice_is_sure(wanted, row):
        yield "a grammar may allow tokens that were never recorded; allowed_token_ids says which are meant"
    elif params.temperature != 0 and not 0 < params.top_k <= known_top:
        yield (
            f"temperature {params.temperature:g} may draw a token that was never recorded: "
            "send temperature 0, allowed_token_ids, or a top_k"
        )


def _choice_is_sure(wanted: Wanted, row: Logits) -> bool:
    """Whether the likeliest label beats every unrecorded token, for a choice may begin with a part of a label."""
    probs = np.exp(row.logprobs.astype(np.float64))
    left = 1 - probs[list(recorded_ids(row))].sum()
    return not wanted.starts or bool(max(probs[token_id] for token_id in wanted.starts) >= left)


def find_dependences(wanted: Wanted) -> Iterator[str]:
    """What goes out although it rests on how the tokens that weren't recorded share what is left."""
    if wanted.mode.endswith("logits"):
        yield "rests on unrecorded values: logprobs stand for logits"
    if not wanted.is_processed or wanted.is_restricted:
        return
    bent = _given(wanted.params, (*PENALTIES, *MASKS))
    bent += ["temperature"] if wanted.params.temperature not in (0, 1) else []
    bent += ["top_k"] if wanted.params.top_k > 0 else []
    bent += _given(wanted.params, ("logit_bias", "bad_words"))
    bent += ["a grammar"] if wanted.grammar or wanted.starts else []
    if bent:
        yield f"rests on unrecorded tokens: {', '.join(bent)}"


def _given(params: SamplingParams, names: Sequence[str]) -> list[str]:
    """Those of the parameters that do something."""
    return [name for name in names if (getattr(params, name) or None) != (getattr(_NEUTRAL, name) or None)]


def show_tokens(token_ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """Tokens for people: text and id of each, of the first few if they are many."""
    names = [f"{tokenizer.decode([token_id])!a} ({token_id})" for token_id in token_ids[:8]]
    return ", ".join(names) + (f" and {len(token_ids) - 8} more" if len(token_ids) > 8 else "")
