"""What went over HTTP, counted as prometheus-fastapi-instrumentator counts it for GET /metrics, in plain Python.

Sources: version 8.1.0 of that package, `metrics.py`, as vLLM 0.32.0 sets it up, and a running server.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from stubserver.engine.stats import Histogram

BATCH = 1024
"""How many requests are sorted at once: a request only leaves its record behind."""

# Seconds. Of all requests, and of those of one handler and method.
FINE_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0),
    *(7.5, 10.0, 30.0, 60.0),
)
COARSE_BUCKETS = (0.1, 0.5, 1.0)


class Sizes:
    """How many bodies there were, and their bytes."""

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0

    def add(self, sizes: Sequence[int]) -> None:
        """Count these."""
        self.count += len(sizes)
        self.sum += sum(sizes)


def _bytes(content_length: str | None) -> int:
    return int(content_length) if content_length and content_length.isdecimal() else 0


class HttpStats:
    """The counters of one server.

    requests: (handler, method, status such as "2xx") → how many. A handler is the path of an endpoint as declared.
    uncounted: requests to paths with one of these anywhere in them are left out.
    """

    def __init__(self, uncounted: Sequence[str] = ()) -> None:
        self._uncounted = uncounted
        self.reset()

    def counts(self, path: str) -> bool:
        """Whether requests to this path are counted."""
        return not any(part in path for part in self._uncounted)

    def reset(self) -> None:
        """As at start."""
        self._new: defaultdict[tuple[str, str, int], list[tuple[str | None, int, float]]] = defaultdict(list)
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.request_bytes: defaultdict[str, Sizes] = defaultdict(Sizes)
        self.response_bytes: defaultdict[str, Sizes] = defaultdict(Sizes)
        self.all_durations = Histogram(FINE_BUCKETS)
        self.durations: defaultdict[tuple[str, str], Histogram] = defaultdict(lambda: Histogram(COARSE_BUCKETS))

    def observe(
        self, handler: str, method: str, status: int, content_length: str | None, response_bytes: int, seconds: float
    ) -> None:
        """A request has been answered. content_length: what it said of its own length."""
        new = self._new[handler, method, status]
        new.append((content_length, response_bytes, seconds))
        if len(new) >= BATCH:
            self.sort()

    def sort(self) -> None:
        """Count what was left behind; to be called before the counters are read."""
        for (handler, method, status), records in self._new.items():
            lengths, sizes, durations = zip(*records, strict=True)
            self.requests[handler, method, f"{status // 100}xx"] += len(records)
            self.request_bytes[handler].add([_bytes(length) for length in lengths])
            self.response_bytes[handler].add(sizes)
            self.all_durations.add(durations)
            self.durations[handler, method].add(durations)
        self._new.clear()
