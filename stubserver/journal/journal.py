"""The journal: what was asked, what was answered, and why.

What may be a secret (Authorization, API keys, cookies) is left out before anything is kept.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from threading import Lock
from typing import Final

from starlette.types import Scope

from stubserver.journal.entry import Entry
from stubserver.journal.generation_record import GenerationRecord
from stubserver.serving.framing import Framing

MAX_ROW_BYTES: Final = 64 * 2**20
"""How much the rows may take that label values are read from; beyond it, the oldest requests lose theirs."""


class Journal:
    """The last `size` requests. One event loop writes; any thread may read and clear."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = Lock()
        self.clear()

    def clear(self) -> None:
        """Forget everything, and count from 1 again."""
        with self._lock:
            self._numbers = count(1)
            self._entries: deque[Entry] = deque(maxlen=self.size)
            self._rows: deque[tuple[GenerationRecord, int]] = deque()
            self._row_bytes = 0

    def open(self, scope: Scope, framing: Framing) -> Entry:
        """A new entry for a request that has just come. framing: of the stream that it may get."""
        entry = Entry(next(self._numbers), scope, framing)
        self._entries.append(entry)
        return entry

    def count_rows(self, record: GenerationRecord) -> None:
        """Count the rows of a generation that has ended; the oldest ones make room if they are too many."""
        with self._lock:
            self._rows.append((record, record.row_bytes()))
            self._row_bytes += self._rows[-1][1]
            while self._row_bytes > MAX_ROW_BYTES:
                oldest, size = self._rows.popleft()
                self._row_bytes -= size
                oldest.drop_rows()

    def entries(self) -> list[Entry]:
        """All entries, the oldest first."""
        return list(self._entries)

    @property
    def forgotten(self) -> int:
        """How many requests had to make room for later ones."""
        entries = self.entries()
        return entries[0].number - 1 if entries else 0
