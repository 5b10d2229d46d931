"""Where a test's cassette stands."""

from __future__ import annotations

import re
from pathlib import Path

_UNSAFE = re.compile(r"[^\w.\[\]-]+")
"""What file systems may not take, of the names that tests have."""


def cassette_for_test(test_file: Path, test_name: str) -> Path:
    """`tests/test_x.py`, `test_y[a/b]` → `tests/cassettes/test_x/test_y[a-b].jsonl`."""
    return test_file.parent / "cassettes" / test_file.stem / f"{_UNSAFE.sub('-', test_name)}.jsonl"
