"""The bigram script: a table in which the last token of the context finds its row."""

from __future__ import annotations

from stubserver.errors import UnscriptedError
from stubserver.sampling.logits import Floats, Logits
from stubserver.script.context import Answer, Context, ScriptRequest


class BigramScript:
    """table: float32 [V, V], read-only; row i holds the logits of what follows token i."""

    has_faults = False

    def __init__(self, table: Floats) -> None:
        self._table = table
        self._rows: list[Logits | None] = [None] * len(table)
        self._answer = Answer(self.next_logits)

    @property
    def vocab_size(self) -> int:
        """V: the length of every row."""
        return len(self._table)

    def bind(self, request: ScriptRequest) -> Answer:
        """The table answers every request."""
        return self._answer

    def next_logits(self, context: Context) -> Logits:
        """The row of the last token, the same object every time. Raises UnscriptedError for an empty context."""
        token_ids = context.output_token_ids or context.prompt_token_ids
        if not token_ids:
            raise UnscriptedError("The bigram table has no row for an empty context.")
        token_id = token_ids[-1]
        if not 0 <= token_id < len(self._rows):
            raise UnscriptedError(f"The bigram table has no row for token {token_id}: it has {len(self._rows)} rows.")
        row = self._rows[token_id]
        if row is None:
            row = self._rows[token_id] = Logits.of(self._table[token_id]).shared()
        return row
