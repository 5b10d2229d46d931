"""What a request's first token would be drawn from, stage by stage, without drawing it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stubserver.engine.generate import Generation, process
from stubserver.engine.label_values import LabelValue, label_values, labels_asked
from stubserver.sampling.logits import Logits


class TopToken(NamedTuple):
    """A token among the best of a row."""

    token_id: int
    token: str
    logit: float
    logprob: float


class Explanation(NamedTuple):
    """raw, processed: the best tokens before and after everything that is done to the logits.

    masked_by: label → the stage that made it impossible: `script` if it was from the start, `structured_outputs` or a
    stage of the pipeline (`allowed_token_ids`, `top_k`, …).
    """

    raw: list[TopToken]
    processed: list[TopToken]
    labels: list[LabelValue]
    masked_by: dict[int, str]


def explain(generation: Generation, top: int) -> Explanation:
    """The first position of a generation. Raises RequestError for what the request would be refused for."""
    generation.check()
    rows = dict(_stages(generation))
    raw, processed = rows.get("structured_outputs", rows["script"]), list(rows.values())[-1]
    labels = labels_asked(generation.params)
    masked_by = {label: stage for label in labels if (stage := _masking_stage(rows, label)) is not None}
    tokenizer = generation.model.tokenizer
    values = label_values(tokenizer, raw, processed, labels)
    return Explanation(_top(generation, raw, top), _top(generation, processed, top), values, masked_by)


def _stages(generation: Generation) -> Iterator[tuple[str, Logits]]:
    """(stage, the row after it), in the order in which they are run; those that change nothing too."""
    terms = generation.asked.terms
    logits = generation.logits(generation.request.prompt_token_ids, ())
    yield "script", logits
    grammar = None if generation.awaits else terms.start_grammar()
    if grammar is not None:
        logits = grammar.apply(logits)
        yield "structured_outputs", logits
    state = terms.state(generation.request.prompt_token_ids, ())
    process(terms, logits, state)  # only for its error, if a custom processor fails
    for stage in terms.stages:
        logits = stage(logits, terms.params, state)
        yield stage.__name__, logits


def _masking_stage(rows: dict[str, Logits], label: int) -> str | None:
    """The stage after which the label stays masked; None if it doesn't."""
    found = None
    for stage, row in rows.items():
        if not _is_masked(row, label):
            found = None
        elif found is None:
            found = stage
    return found


def _is_masked(row: Logits, token_id: int) -> bool:
    position = row.position(token_id)
    return position is None or float(row.values[position]) == float("-inf")


def _top(generation: Generation, row: Logits, count: int) -> list[TopToken]:
    best = row.top(count)
    text = generation.model.tokenizer.token_text
    values = zip(row.ids_at(best), row.values[best].tolist(), row.logprobs[best].tolist(), strict=True)
    return [TopToken(token_id, text(token_id), logit, logprob) for token_id, logit, logprob in values]
