"""What a model has done so far, counted as vLLM counts it for GET /metrics, in plain Python: a label read is short.

An "engine request" is one choice of one prompt: `n` choices count their prompt n times. One whose client goes away
keeps the tokens it was given but never finishes. Sources: vLLM 0.32.0, `v1/metrics/stats.py` (what counts when),
`v1/metrics/buckets.py` (the buckets), and a running server.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, count
from time import perf_counter

# Seconds.
REQUEST_LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TIME_TO_FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
INTER_TOKEN_LATENCY_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)


BATCH = 256
"""How many values a histogram puts into its buckets at once: a label read only leaves them behind."""


class Histogram:
    """Observed values, counted by bucket. `bounds`: the largest of each bucket, ascending; one more has the rest."""

    __slots__ = ("_counts", "_new", "_sum", "bounds")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._new: list[float] = []

    def observe(self, value: float) -> None:
        """Count this value."""
        self._new.append(value)
        if len(self._new) >= BATCH:
            self._sort()

    @property
    def counts(self) -> list[int]:
        """Of each bucket alone, [len(bounds) + 1]."""
        self._sort()
        return self._counts

    @property
    def sum(self) -> float:
        """Of all values."""
        self._sort()
        return self._sum

    def cumulative(self) -> list[int]:
        """How many values are at most as large as each bound; the last one counts them all."""
        return list(accumulate(self.counts))

    def _sort(self) -> None:
        for value in self._new:
            self._counts[bisect_left(self.bounds, value)] += 1
            self._sum += value
        self._new.clear()


class Stats:
    """The counters of one model. clock: seconds from any fixed point.

    prompt_tokens and generation_tokens count while requests run; `finished` (which begins with
    the finish_reasons) and the other histograms at their end.
    """

    def __init__(
        self, max_model_len: int, finish_reasons: Sequence[str], clock: Callable[[], float] = perf_counter
    ) -> None:
        token_buckets = request_tokens_buckets(max_model_len)
        self.clock = clock
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.finished = Counter(dict.fromkeys(finish_reasons, 0))
        self.request_prompt_tokens = Histogram(token_buckets)
        self.request_generation_tokens = Histogram(token_buckets)
        self.time_to_first_token = Histogram(TIME_TO_FIRST_TOKEN_BUCKETS)
        self.inter_token_latency = Histogram(INTER_TOKEN_LATENCY_BUCKETS)
        self.e2e_request_latency = Histogram(REQUEST_LATENCY_BUCKETS)

    def begin(self, prompt_tokens: int) -> RequestStats:
        """An engine request with a prompt of this length starts now."""
        return RequestStats(self, prompt_tokens)


class RequestStats:
    """One engine request on its way; made by `Stats.begin`."""

    __slots__ = ("_last", "_prompt_tokens", "_started", "_stats", "_tokens")

    def __init__(self, stats: Stats, prompt_tokens: int) -> None:
        self._stats = stats
        self._prompt_tokens = prompt_tokens
        self._tokens = 0
        self._last: float | None = None
        self._started = stats.clock()

    def advance(self, tokens: int = 1) -> None:
        """A token is there; with the first one, the prompt has been read. An embedding is a first step of 0 tokens."""
        stats, before = self._stats, self._last
        self._last = now = stats.clock()
        self._tokens += tokens
        stats.generation_tokens += tokens
        if before is None:
            stats.prompt_tokens += self._prompt_tokens
            stats.time_to_first_token.observe(now - self._started)
        else:
            stats.inter_token_latency.observe(now - before)

    def finish(self, reason: str) -> None:
        """The step before was the last one."""
        assert self._last is not None
        stats = self._stats
        stats.finished[reason] += 1
        stats.request_prompt_tokens.observe(self._prompt_tokens)
        stats.request_generation_tokens.observe(self._tokens)
        stats.e2e_request_latency.observe(self._last - self._started)


def request_tokens_buckets(max_model_len: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, … up to the model's context length."""
    return tuple(_up_to(max_model_len))


def _up_to(largest: int) -> Iterator[float]:
    for exponent in count():
        for mantissa in (1, 2, 5):
            bound = mantissa * 10**exponent
            if bound > largest:
                return
            yield float(bound)
