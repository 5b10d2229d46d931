"""The servers of the contract suite as data: what each says, what is asked of it, and what a right client makes of it.

Each answers any prompt, as a completion or a chat, by the same row of logits over the built-in vocabulary. Right values
are the softmax of the labels' logits, so a reader can redo them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stubserver.tokenizer.files import TOKENIZER_FILE
from stubserver.tokenizer.hf import BUILTIN, load_tokenizer

if TYPE_CHECKING:
    from stubserver.script.context import Context

Row = Mapping[int | str, float]
"""Token → logit, tokens as scripts write them."""

PROMPT: Final = "Is this review positive? The food was good.\nAnswer:"
LABELS: Final = ("Positive", "Negative", "Neutral", "Mixed")

REST: Final = -20.0
"""The logit of every other token: all of them together weigh less than the tolerance."""

OTHERS: Final = range(2000, 2040)
"""Tokens that are no labels and no beginnings of any; more than the 20 that a server returns at most by default."""

RAW: Final = "raw_logprobs"
PROCESSED: Final = "processed_logprobs"


class Right(Enum):
    """What a right client may do."""

    VALUES = auto()
    """Return the right values."""

    VALUES_OR_NAMED = auto()
    """That, if it has a way to them; or raise one of its `missing_label_errors`, which names a missing label."""

    VALUES_OR_MISSING = auto()
    """The same, but the error needs no name."""

    VALUES_OR_RAISE = auto()
    """That, or raise anything: what counts is that no wrong number comes back."""


@dataclass(frozen=True)
class Scene:
    """A server, the labels that are asked for, and what is right.

    server: what it does, for people. labels: as scripts write tokens; a text may be several tokens. values: the right
    logprobs of the labels; several such lists if each is right. exact: whether a common factor makes them wrong.
    missing: labels that the error has to name one of. change: what to change in a client that fails.
    """

    server: str
    script: Any
    values: tuple[tuple[float, ...], ...]
    right: Right
    change: str
    labels: tuple[int | str, ...] = LABELS
    mode: str = PROCESSED
    settings: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[Mapping[str, Any], ...] = ()
    missing: tuple[str, ...] = ()
    exact: bool = False
    prompt: str = PROMPT


def says(row: Row) -> dict[str, Any]:
    """A script that answers everything by this row."""
    return {"default": {"logits": dict(row), "rest": REST}}


def among(row: Row, tokens: Sequence[int | str], of: Sequence[int | str] = ()) -> tuple[float, ...]:
    """The logprobs of these tokens, normalised over `of`; left out, over themselves."""
    total = log(sum(exp(row[token]) for token in of or tokens))
    return tuple(row[token] - total for token in tokens)


def label_row(labels: Sequence[int | str], *logits: float, others: float) -> Row:
    """These logits for the labels, one for 40 other tokens."""
    return {**dict(zip(labels, logits, strict=True)), **dict.fromkeys(OTHERS, others)}


PLAIN: Final = label_row(LABELS, 3.0, 2.0, 1.0, 0.0, others=-0.5)
"""The labels are the four best tokens, with 56% of the mass."""

ONE_OUTSIDE: Final = label_row(LABELS, 5.0, 4.5, 4.0, 0.0, others=3.0)
"""40 other tokens are better than the last label."""

OFF_TOPIC: Final[Row] = {**PLAIN, OTHERS[0]: 4.0}
"""The same with a better token that is no label."""

ONE_OUTSIDE_OFF_TOPIC: Final[Row] = {**ONE_OUTSIDE, OTHERS[0]: 6.0}

ANSWERS_PLAIN: Final[dict[str, Any]] = {"script": says(PLAIN), "values": (among(PLAIN, LABELS),)}


# What is there

EXACT: Final = Scene(
    "processed mode, and the labels are the best tokens",
    script=says(PLAIN),
    values=(among(PLAIN, LABELS), among(PLAIN, LABELS, of=list(PLAIN))),
    exact=True,
    right=Right.VALUES,
    change="Return the server's logprobs, or their exp, as they are, or normalised over the labels: no rounding, no "
    "temperature, no second softmax.",
)

RAW_PRESENT: Final = Scene(
    "raw mode, the labels are the best tokens, and 44% of the mass is elsewhere",
    **ANSWERS_PLAIN,
    mode=RAW,
    right=Right.VALUES,
    change="Raw logprobs are those of the whole vocabulary: renormalise over the labels.",
)

SAMPLED_AMONG_TOP: Final = Scene(
    "the sampled label is one of the N best tokens, so there are N entries",
    **ANSWERS_PLAIN,
    right=Right.VALUES,
    change="The sampled token is one of the entries of top_logprobs: don't add its own logprob to them.",
)

_LAST_BELOW: Final[Row] = {**dict(zip(LABELS, (3.0, 2.0, 1.0, 0.0), strict=True)), OTHERS[0]: 0.5}

SAMPLED_BELOW_TOP: Final = Scene(
    "raw mode, and the sampled label is only the fifth best token, so N = 4 gives 5 entries",
    script=says(_LAST_BELOW),
    values=(among(_LAST_BELOW, LABELS),),
    mode=RAW,
    settings={"logits_processors": [f"{__name__}:sample_the_last_label"]},
    right=Right.VALUES,
    change="A sampled token that isn't one of the N best comes on top of them, as the first entry: read all entries, "
    "each once.",
)


def sample_the_last_label(logits: Any) -> Any:
    """A custom logits processor: only the last label can be sampled, which raw logprobs don't show."""
    last = load_tokenizer(BUILTIN).one_token(LABELS[-1])
    return np.where(np.arange(len(logits)) == last, logits, np.float32(-np.inf))


def concurrent_scenes(count: int = 6) -> list[Scene]:
    """Prompts with a row each, to be asked all at once; the first is answered last."""
    prompts = [f"Review {number}: is it positive?\nAnswer:" for number in range(count)]
    rows = [label_row(LABELS, number / 2, 1.0, 0.0, -1.0, others=-3.0) for number in range(count)]
    rules = [
        {
            # The exact prompt for who scores it by `echo`; the other for chats, whose template stands around it.
            "when": {"prompt": prompt if exactly else {"contains": prompt}},
            "steps": [{"logits": dict(row), "rest": REST}],
            "then": "repeat",
            "faults": [{"kind": "latency", "first": 0.015 * (count - number)}],
        }
        for number, (prompt, row) in enumerate(zip(prompts, rows, strict=True))
        for exactly in (True, False)
    ]
    return [
        Scene(
            f"{count} prompts at once, with different values each, and the first is answered last",
            script={"rules": rules, **says(PLAIN)},
            values=(among(row, LABELS),),
            prompt=prompt,
            right=Right.VALUES,
            change="Keep each reply with its own prompt: results in the order of the prompts, not of the replies, and "
            "nothing shared between reads.",
        )
        for prompt, row in zip(prompts, rows, strict=True)
    ]


# What is missing

RAW_MISSING: Final = Scene(
    "raw mode, and 40 other tokens are better than the last label",
    script=says(ONE_OUTSIDE),
    values=(among(ONE_OUTSIDE, LABELS),),
    mode=RAW,
    missing=LABELS[3:],
    right=Right.VALUES_OR_NAMED,
    change="Raise an error that names the label. Its value comes with logprob_token_ids or structured_outputs, or from "
    "a server with --logprobs-mode processed_logprobs and allowed_token_ids.",
)

NUMBERS: Final = ("One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight")
_NUMBERS_ROW: Final = label_row(NUMBERS, *map(float, range(8, 0, -1)), others=0.0)
_CAP: Final = 5
_EIGHT_LABELS: Final[dict[str, Any]] = {
    "labels": NUMBERS,
    "script": says(_NUMBERS_ROW),
    "values": (among(_NUMBERS_ROW, NUMBERS),),
}

CAP_REFUSED: Final = Scene(
    f"more than {_CAP} logprobs are refused with a 400, and there are 8 labels",
    **_EIGHT_LABELS,
    settings={"max_logprobs": _CAP},
    right=Right.VALUES_OR_RAISE,
    change="Let the 400 through as an error, or ask for the labels in several requests.",
)

CAP_TRUNCATED: Final = Scene(
    f"{_CAP} logprobs come back however many were asked for, and there are 8 labels",
    **_EIGHT_LABELS,
    settings={"profile": {name: {"treat": "truncate", "above": _CAP} for name in ("logprobs", "top_logprobs")}},
    right=Right.VALUES_OR_MISSING,
    change="A 200 doesn't mean that all labels are there: look for each, and raise if one is missing.",
)

TOP_TRUNCATED: Final = Scene(
    "each top_logprobs has only its first entry",
    **ANSWERS_PLAIN,
    faults=({"kind": "truncate_top", "keep": 1},),
    right=Right.VALUES_OR_MISSING,
    change="Look for each label among the entries, and raise if one is missing.",
)

LOGPROBS_NULL: Final = Scene(
    "logprobs is null",
    **ANSWERS_PLAIN,
    faults=({"kind": "logprobs"},),
    right=Right.VALUES_OR_RAISE,
    change="Raise: no logprobs, no values.",
)

LOGPROBS_ABSENT: Final = Scene(
    "choices have no logprobs at all",
    **ANSWERS_PLAIN,
    faults=({"kind": "logprobs", "value": "missing"},),
    right=Right.VALUES_OR_RAISE,
    change="Raise: no logprobs, no values.",
)

_IGNORING: Final = {
    "profile": dict.fromkeys(
        ("allowed_token_ids", "logit_bias", "structured_outputs", "response_format", "logprob_token_ids"), "ignore"
    ),
}

IGNORED: Final = Scene(
    "a 200, but allowed_token_ids, logit_bias, structured_outputs and logprob_token_ids have no effect, and the best "
    "token is no label",
    script=says(OFF_TOPIC),
    values=(among(OFF_TOPIC, LABELS),),
    settings=_IGNORING,
    right=Right.VALUES_OR_RAISE,
    change="Don't rely on the mask: renormalise over the labels, or raise if their probabilities don't add up to 1.",
)

IGNORED_MISSING: Final = Scene(
    "a 200, but allowed_token_ids, logit_bias, structured_outputs and logprob_token_ids have no effect, and 40 other "
    "tokens are better than the last label",
    script=says(ONE_OUTSIDE_OFF_TOPIC),
    values=(among(ONE_OUTSIDE_OFF_TOPIC, LABELS),),
    settings=_IGNORING,
    right=Right.VALUES_OR_RAISE,
    change="Don't rely on the mask: look for each label, and raise if one is missing.",
)


# Which token is the label

SPACED: Final = (" Positive", " Negative")
_SPACED_ABOVE: Final[Row] = {"Positive": 3.0, "Negative": 2.0, " Positive": 4.0, " Negative": 1.0}
_SPACED_BELOW: Final[Row] = {" Positive": 3.0, " Negative": 2.0, "Positive": 4.0, "Negative": 1.0}
_EXACT_TEXT: Final = 'Compare texts as they are: no strip(), and no space put in front. "A" and " A" are two tokens.'

WITHOUT_SPACE: Final = Scene(
    'the labels are "Positive" and "Negative", and " Positive" and " Negative" have other values',
    labels=LABELS[:2],
    script=says(_SPACED_ABOVE),
    values=(among(_SPACED_ABOVE, LABELS[:2]),),
    right=Right.VALUES_OR_MISSING,
    change=_EXACT_TEXT,
)

WITH_SPACE: Final = Scene(
    'the labels are " Positive" and " Negative", and "Positive" and "Negative" have other values',
    labels=SPACED,
    script=says(_SPACED_BELOW),
    values=(among(_SPACED_BELOW, SPACED),),
    right=Right.VALUES_OR_RAISE,
    change=_EXACT_TEXT,
)

_BYTE_LABELS: Final = ("bytes:E2", "Positive", "Negative")
_BYTE_ROW: Final[Row] = {"bytes:E3": 3.5, "bytes:E2": 3.0, "Positive": 2.0, "Negative": 1.0, "bytes:F0": 0.5}

BYTES: Final = Scene(
    "the first label is a byte that is no whole character; the reply shows it, and other bytes, as an empty text",
    labels=_BYTE_LABELS,
    script=says(_BYTE_ROW),
    values=(among(_BYTE_ROW, _BYTE_LABELS),),
    right=Right.VALUES_OR_RAISE,
    change="Read by id (return_tokens_as_token_ids), or refuse a label whose text isn't its bytes.",
)


_BY_ID: Final = (
    "Read by id (return_tokens_as_token_ids), or raise where two tokens share a label's text. In completions they "
    "share one key, which has the later value."
)


def one_text_scenes(directory: Path) -> list[Scene]:
    """The token " Positive" has a twin, another id with the same text. `directory`: for the tokenizer's files."""
    text = SPACED[0]
    twin = add_twin(directory, text)
    labels = (text, twin, SPACED[1])
    row: Row = dict(zip(labels, (3.0, 2.0, 1.0), strict=True))
    last: Row = {**row, twin: 0.0}
    both: Row = {**last, text: log(exp(last[text]) + exp(last[twin]))}
    by_id = (
        "Read by id (return_tokens_as_token_ids), or raise where two tokens share a label's text. In completions they "
    )
    by_id += "share one key, which has the later value."
    return [
        Scene(
            f"two of the labels are different ids with one text, {text!r}",
            labels=labels,
            script=says(row),
            values=(among(row, labels),),
            settings={"tokenizer": str(directory)},
            right=Right.VALUES_OR_RAISE,
            change=_BY_ID,
        ),
        Scene(
            f"raw mode, and another token has the text of the first label, {text!r}",
            labels=SPACED,
            script=says(last),
            # The id's value, or the text's, which is the sum of both.
            values=(among(last, SPACED), among(both, SPACED)),
            mode=RAW,
            settings={"tokenizer": str(directory)},
            right=Right.VALUES_OR_RAISE,
            change=_BY_ID,
        ),
    ]


def add_twin(directory: Path, text: str) -> int:
    """Save the built-in tokenizer with a second id for a text that begins with a space; returns that id."""
    tokenizer = load_tokenizer(BUILTIN)
    tokenizer.save(directory)
    file = directory / TOKENIZER_FILE
    content = json.loads(file.read_text(encoding="utf-8"))
    # Byte-level pieces write a space as "Ġ". One with a real space is never made by a merge, but decodes to itself.
    content["model"]["vocab"][text] = tokenizer.vocab_size
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return tokenizer.vocab_size


_FIRST: Final[Row] = {"Not": 2.0, "Very": 1.0, " safe": 0.5, " sure": 0.0}
_AFTER: Final[Mapping[str, Row]] = {"Not": {" safe": 0.0, " sure": 1.0}, "Very": {" safe": 0.0}}


def two_token_labels() -> Callable[[Context], tuple[Row, float]]:
    """A script: after "Not" and "Very" their second tokens, everywhere else all of the tokens."""
    tokenizer = load_tokenizer(BUILTIN)
    after = {tokenizer.one_token(first): row for first, row in _AFTER.items()}
    return lambda context: (after.get(context.token_ids[-1], _FIRST), REST)


_TWO_TOKENS: Final[Row] = {
    first + second: _FIRST[first] + logprob
    for first, row in _AFTER.items()
    for second, logprob in zip(map(str, row), among(row, list(row)), strict=True)
}

SEVERAL_TOKENS: Final = Scene(
    "labels of two tokens: two of them begin with the same one, two end with the same one",
    labels=tuple(_TWO_TOKENS),
    script=two_token_labels(),
    values=(among(_TWO_TOKENS, list(_TWO_TOKENS)),),
    right=Right.VALUES_OR_RAISE,
    change="Refuse a label that isn't one token, or add up the logprobs of all of its tokens: encode(label)[0] and "
    "encode(label)[-1] are other labels.",
)


# What goes wrong on the way

NOT_A_NUMBER: Final = Scene(
    "the value of the second label is NaN",
    **ANSWERS_PLAIN,
    faults=({"kind": "nan", "token": load_tokenizer(BUILTIN).one_token(LABELS[1])},),
    right=Right.VALUES_OR_RAISE,
    change="Check the values with math.isfinite, and raise.",
)

RATE_LIMITED: Final = Scene(
    "the first request gets a 429 with Retry-After: 0, the next one is answered",
    **ANSWERS_PLAIN,
    faults=({"kind": "status", "status": 429, "headers": {"Retry-After": 0}, "times": 1},),
    right=Right.VALUES_OR_RAISE,
    change="Ask again, or raise: a reply that isn't a 200 has no values.",
)

ERROR_INSIDE: Final = Scene(
    "a 200 whose body (or first event) is an error object",
    **ANSWERS_PLAIN,
    faults=({"kind": "error_event"},),
    right=Right.VALUES_OR_RAISE,
    change="Raise if there is an `error` in the reply, or no choices.",
)
