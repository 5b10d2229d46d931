"""What the engine did for one prompt of a request.

While it runs, references are kept and nothing is computed; everything else is worked out when somebody reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, Final, NamedTuple

from stubserver.engine.label_values import LabelValue, asks_for_labels, label_values, labels_asked
from stubserver.engine.model import Model
from stubserver.headers import Headers, decoded
from stubserver.journal.json_values import describe_label
from stubserver.sampling.logits import Logits
from stubserver.sampling.params import SamplingParams
from stubserver.script.context import ScriptRequest
from stubserver.script.passed_over import explain_passed_over
from stubserver.tokenizer.base import Tokenizer

SMALL_ROW: Final = 256
"""Unmasked tokens of a row that isn't counted: what a label read leaves."""

MAX_STEPS: Final = 4096
"""How many sampled tokens of a prompt are kept."""

MAX_LABEL_STEPS: Final = 64
"""How many of them with the values of the labels."""


class StepRecord(NamedTuple):
    """One sampled token; `position` counts from 0 in its choice.

    labels: the values of the tokens that the request named (allowed_token_ids, logprob_token_ids, logit_bias). None if
    the rows that they were read from had to make room.
    """

    choice: int
    position: int
    token_id: int
    token: str
    labels: list[LabelValue] | None


_Step = tuple[int, int, Logits | None, Logits | None]
"""(choice, token id, raw, processed)."""


class GenerationRecord:
    """What the engine did for one prompt of a request. A beam search has no steps.

    headers: the request's that may be kept. rule: the one that answered; None if the default did, or none.
    has_own_rows: whether it keeps rows that are worth counting: such as nobody else keeps, and that aren't small.
    """

    __slots__ = (
        *("_asked", "_headers", "_label_steps", "_model", "_params", "_path", "_script", "_steps"),
        *("has_own_rows", "prompt", "prompt_token_ids", "rule"),
    )

    def __init__(self, headers: Headers, model: Model, request: ScriptRequest, params: SamplingParams) -> None:
        self.rule: str | None = None
        self.prompt = request.prompt
        self.prompt_token_ids = request.prompt_token_ids
        self._path, self._headers = request.endpoint, headers
        self._model = model
        self._script = model.script
        # Not the request itself: it has all headers.
        self._asked: tuple[str, Mapping[str, Any], bool] | None = (request.model, request.body, request.scores_prompt)
        self._params = params
        self._steps: list[_Step] = []
        self._label_steps = MAX_LABEL_STEPS if asks_for_labels(params) else 0
        self.has_own_rows = False

    def add(self, choice: int, token_id: int, raw: Logits, processed: Logits) -> None:
        """Take a step of the engine."""
        count = len(self._steps)
        if count < self._label_steps:
            self._steps.append((choice, token_id, raw, processed))
            if raw.memo is None or len(processed.values) > SMALL_ROW:
                self.has_own_rows = True
        elif count < MAX_STEPS:
            self._steps.append((choice, token_id, None, None))

    def row_bytes(self) -> int:
        """What the kept rows take. A shared raw row is the script's own, and takes nothing."""
        return sum(_row_bytes(raw, processed) for _, _, raw, processed in self._steps if raw and processed)

    def drop_rows(self) -> None:
        """Give up the rows, and with them the labels' values."""
        self._steps = [(choice, token_id, None, None) for choice, token_id, _, _ in self._steps]

    def shorten(self, longest: int) -> None:
        """Keep no more of a request that was too long than so much of its prompt."""
        self.prompt, self._asked = self.prompt[:longest], None

    @property
    def model(self) -> str:
        """The name of the model that answered."""
        return self._model.name

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's."""
        return self._model.tokenizer

    @property
    def logprobs_mode(self) -> str:
        """What the model's logprobs report."""
        return self._model.settings.logprobs_mode

    @property
    def logprobs_asked(self) -> int | None:
        """How many top logprobs of the output the request asked for; None if for none."""
        return self._params.logprobs

    @property
    def wants_logprobs(self) -> bool:
        """Whether the request asked for logprobs of the output."""
        return self._params.wants_logprobs

    @property
    def steps(self) -> list[StepRecord]:
        """The sampled tokens, in the order in which they were sampled."""
        positions: dict[int, Iterator[int]] = {}
        return [self._read(step, next(positions.setdefault(step[0], count()))) for step in list(self._steps)]

    @property
    def outputs(self) -> list[list[int]]:
        """The sampled token ids of each choice."""
        choices: dict[int, list[int]] = {}
        for choice, token_id, _, _ in list(self._steps):
            choices.setdefault(choice, []).append(token_id)
        return [choices[choice] for choice in sorted(choices)]

    @property
    def passed_over(self) -> dict[str, str]:
        """The rules that were tried and didn't match → what differed. Those after the one that matched weren't tried.

        A header that may carry a secret isn't kept, so that its conditions count as failed. Of a request that was too
        long to be kept nothing can be said.
        """
        if self._asked is None:
            return {}
        model, body, scores_prompt = self._asked
        headers = decoded(self._headers)
        request = ScriptRequest(self._path, model, self.prompt, self.prompt_token_ids, body, headers, scores_prompt)
        return explain_passed_over(self._script, request, self.rule)

    def describe(self) -> dict[str, Any]:
        """All of it as JSON values; a masked token's are null."""
        return {
            "model": self.model,
            "logprobs_mode": self.logprobs_mode,
            "rule": self.rule,
            "passed_over": self.passed_over,
            "prompt": self.prompt,
            "prompt_token_ids": list(self.prompt_token_ids),
            "steps": [_describe_step(step) for step in self.steps],
        }

    def _read(self, step: _Step, position: int) -> StepRecord:
        choice, token_id, raw, processed = step
        tokenizer, asked = self._model.tokenizer, labels_asked(self._params)
        labels = label_values(tokenizer, raw, processed, asked) if raw and processed else None
        return StepRecord(choice, position, token_id, tokenizer.token_text(token_id), labels if asked else [])


def _row_bytes(raw: Logits, processed: Logits) -> int:
    own = [] if raw.memo is not None else [raw]
    return sum(row.values.nbytes for row in (*own, *([] if processed is raw else [processed])))


def _describe_step(step: StepRecord) -> dict[str, Any]:
    labels = None if step.labels is None else [describe_label(value) for value in step.labels]
    return {**step._asdict(), "labels": labels}
