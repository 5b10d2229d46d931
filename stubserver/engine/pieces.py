"""Steps put together: `stream_interval` tokens a piece. Source: vLLM 0.32.0, `v1/engine/output_processor.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stubserver.sampling.logprobs import PositionLogprobs


class Step(NamedTuple):
    """A piece of one choice: one token, several in a row, or all of a beam's.

    `text` is what can be shown by now: it may lag behind the tokens. `logprobs`: a position a token, if asked for.
    `sampling_mask`: per token, the ids that it was drawn from, if the server returns them.
    """

    token_ids: Sequence[int]
    text: str
    logprobs: Sequence[PositionLogprobs] | None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    sampling_mask: Sequence[Sequence[int]] | None = None


def merge_steps(steps: Iterator[Step], interval: int) -> Iterator[Step]:
    """The steps of one choice, `interval` tokens in each but the first, which has one, and the last."""
    waiting: list[Step] = []
    wanted = 1
    for step in steps:
        waiting.append(step)
        if step.finish_reason is not None or sum(len(each.token_ids) for each in waiting) >= wanted:
            yield _joined(waiting)
            waiting, wanted = [], interval


def _joined(steps: Sequence[Step]) -> Step:
    if len(steps) == 1:
        return steps[0]
    last = steps[-1]
    return Step(
        [token_id for step in steps for token_id in step.token_ids],
        "".join(step.text for step in steps),
        None if last.logprobs is None else [position for step in steps for position in step.logprobs or ()],
        last.finish_reason,
        last.stop_reason,
        None if last.sampling_mask is None else [mask for step in steps for mask in step.sampling_mask or ()],
    )
