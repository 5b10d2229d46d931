"""One rule: which requests it answers, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stubserver.script.conditions import Condition
from stubserver.script.context import Recorded, ScriptRequest, Segment
from stubserver.script.rows import Row


@dataclass(frozen=True, eq=False)
class Rule:
    """name: for messages. after: the row of every step after the last one; None if that is an error.

    prompt, prompt_token_ids: what the prompt has to be, if it has to be exactly something; `conditions` say so too.
    segments: what the steps' text is in a chat message. faults: what goes wrong with the reply; nothing to the script.
    recorded: what is known of steps that were recorded.
    """

    name: str
    conditions: tuple[Condition, ...]
    steps: tuple[Row, ...]
    after: Row | None
    prompt: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    segments: tuple[Segment, ...] = ()
    faults: tuple[Any, ...] = ()
    recorded: Recorded | None = None

    def matches(self, request: ScriptRequest) -> bool:
        """Whether every condition holds."""
        return all(condition.holds(request) for condition in self.conditions)

    def matches_beside_prompt(self, request: ScriptRequest) -> bool:
        """Whether every condition that isn't about the prompt holds."""
        return all(condition.subject.is_prompt or condition.holds(request) for condition in self.conditions)

    def row(self, index: int) -> Row | None:
        """The row of the step with this index, counted from 0; None if the rule says no more."""
        return self.steps[index] if index < len(self.steps) else self.after
