"""Constraints that wait: a model that reasons first is held to a grammar only after that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Waiting(NamedTuple):
    """What a constraint waits for: one of the tokens `ends`.

    starts: tokens that open what is waited for anew. bounds: tokens before which a prompt isn't looked at.
    """

    ends: frozenset[int]
    starts: frozenset[int] = frozenset()
    bounds: frozenset[int] = frozenset()

    def is_open(self, prompt_token_ids: Sequence[int]) -> bool:
        """Whether the output still has to bring an end, after this prompt."""
        told = self.ends | self.starts | self.bounds
        last = next((token_id for token_id in reversed(prompt_token_ids) if token_id in told), None)
        return last not in self.ends
