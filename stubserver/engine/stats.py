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

import numpy as np
from numpy.typing import ArrayLike

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
PREEMPTION_BUCKETS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)

# Counts.
ITERATION_TOKENS_BUCKETS = (
    *(1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0),
)
PARAMS_N_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)


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

    def add_counts(self, other: Histogram) -> None:
        """What another one with the same bounds has counted."""
        self._counts = [left + right for left, right in zip(self.counts, other.counts, strict=True)]
        self._sum += other.sum

    def add_many(self, value: float, times: int) -> None:
        """The same value, so many times."""
        self._counts[bisect_left(self.bounds, value)] += times
        self._sum += value * times

    def cumulative(self) -> list[int]:
        """How many values are at most as large as each bound; the last one counts them all."""
        return list(accumulate(self.counts))

    def add(self, values: ArrayLike) -> None:
        """Count these values, [N]."""
        found = np.asarray(values, dtype=np.float64)
        if found.size:
            in_bucket = np.bincount(np.searchsorted(self.bounds, found), minlength=len(self._counts))
            self._counts = [left + int(right) for left, right in zip(self._counts, in_bucket, strict=True)]
            self._sum += float(found.sum())

    def _sort(self) -> None:
        self.add(self._new)
        self._new.clear()


class Stats:
    """The counters of one model. clock: seconds from any fixed point.

    prompt_tokens and generation_tokens, the times to tokens and the steps count while requests run; `finished` (which
    begins with the finish_reasons) and `ended`, the other histograms by name, at their end. A step is one request's:
    the prompt and the first token, then a token each. Nothing ever waits, is preempted or comes from a cache.
    """

    def __init__(
        self, max_model_len: int, finish_reasons: Sequence[str], clock: Callable[[], float] = perf_counter
    ) -> None:
        token_buckets = request_tokens_buckets(max_model_len)
        self.clock = clock
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.finished = Counter(dict.fromkeys(finish_reasons, 0))
        self.inter_token_latency = Histogram(INTER_TOKEN_LATENCY_BUCKETS)
        self._time_to_first_token = Histogram(TIME_TO_FIRST_TOKEN_BUCKETS)
        self._first_steps = Histogram(ITERATION_TOKENS_BUCKETS)
        self._begun: list[tuple[float, int]] = []
        self._ended: list[tuple[int, int, float, float, float, int, Choices | None]] = []
        self._histograms = {
            "request_prompt_tokens": Histogram(token_buckets),
            "request_generation_tokens": Histogram(token_buckets),
            "request_max_num_generation_tokens": Histogram(token_buckets),
            "request_params_n": Histogram(PARAMS_N_BUCKETS),
            "request_params_max_tokens": Histogram(token_buckets),
            "request_time_per_output_token_seconds": Histogram(INTER_TOKEN_LATENCY_BUCKETS),
            "e2e_request_latency_seconds": Histogram(REQUEST_LATENCY_BUCKETS),
            "request_queue_time_seconds": Histogram(REQUEST_LATENCY_BUCKETS),
            "request_inference_time_seconds": Histogram(REQUEST_LATENCY_BUCKETS),
            "request_prefill_time_seconds": Histogram(REQUEST_LATENCY_BUCKETS),
            "request_decode_time_seconds": Histogram(REQUEST_LATENCY_BUCKETS),
            "request_num_preemptions": Histogram(PREEMPTION_BUCKETS),
            "request_prefill_kv_computed_tokens": Histogram(token_buckets),
        }

    def begin(self, prompt_tokens: int, max_tokens: int = 0, choices: Choices | None = None) -> RequestStats:
        """An engine request with a prompt of this length starts now.

        max_tokens: what it may generate; 0 for an embedding, which has no parameters. choices: of a prompt that has
        several, what they share.
        """
        return RequestStats(self, prompt_tokens, max_tokens, choices)

    @property
    def ended(self) -> dict[str, Histogram]:
        """Name, without `vllm:` → histogram of what is counted at the end of a request."""
        if self._ended:
            self._count_ended()
        return self._histograms

    @property
    def time_to_first_token(self) -> Histogram:
        """Seconds, of each request that has one."""
        self._count_begun()
        return self._time_to_first_token

    @property
    def steps(self) -> Histogram:
        """How many tokens each step has seen."""
        self._count_begun()
        steps = Histogram(ITERATION_TOKENS_BUCKETS)
        steps.add_counts(self._first_steps)
        steps.add_many(1.0, self.inter_token_latency.cumulative()[-1])
        return steps

    def first_step(self, prompt_tokens: int, tokens: int, seconds: float) -> None:
        """A prompt has been read, and is followed by so many tokens."""
        self.prompt_tokens += prompt_tokens
        self._begun.append((seconds, prompt_tokens + tokens))
        if len(self._begun) >= BATCH:
            self._count_begun()

    def end(
        self,
        reason: str,
        prompt_tokens: int,
        tokens: int,
        times: tuple[float, float, float],
        max_tokens: int,
        choices: Choices | None,
    ) -> None:
        """A request has ended that began, had its first token and its last at these times."""
        self.finished[reason] += 1
        self._ended.append((prompt_tokens, tokens, *times, max_tokens, choices))
        if len(self._ended) >= 4 * BATCH:
            self._count_ended()

    def _count_begun(self) -> None:
        if self._begun:
            seconds, tokens = zip(*self._begun, strict=True)
            self._time_to_first_token.add(seconds)
            self._first_steps.add(tokens)
            self._begun.clear()

    def _count_ended(self) -> None:
        """At once, as columns: one by one they would take a tenth of a label read."""
        *columns, choices = zip(*self._ended, strict=True)
        prompt_tokens, tokens, started, first, last, max_tokens = map(np.array, columns)
        # Of a prompt with one choice, and of the last one of several.
        longest = [tokens[alone := (max_tokens > 0) & np.array([each is None for each in choices])]]
        n = [np.ones(int(alone.sum()))]
        several = ((each, one) for each, one in zip(choices, tokens, strict=True) if each is not None)
        for each, one in several if any(choices) else ():
            if each.add(int(one)):
                longest.append(np.array([each.longest]))
                n.append(np.array([each.n]))
        for name, values in {
            "request_prompt_tokens": prompt_tokens,
            "request_generation_tokens": tokens,
            "request_max_num_generation_tokens": np.concatenate(longest),
            "request_params_n": np.concatenate(n),
            "request_params_max_tokens": max_tokens[max_tokens > 0],
            "request_time_per_output_token_seconds": (last - first) / np.maximum(tokens - 1, 1),
            "e2e_request_latency_seconds": last - started,
            "request_queue_time_seconds": np.zeros(len(tokens)),
            "request_inference_time_seconds": last - started,
            "request_prefill_time_seconds": first - started,
            "request_decode_time_seconds": last - first,
            "request_num_preemptions": np.zeros(len(tokens)),
            "request_prefill_kv_computed_tokens": prompt_tokens,
        }.items():
            self._histograms[name].add(values)
        self._ended.clear()


class Choices:
    """What the n choices of one prompt share: they are counted once, when the last one has ended."""

    __slots__ = ("longest", "missing", "n")

    def __init__(self, n: int) -> None:
        self.n = n
        self.missing = n
        self.longest = 0

    def add(self, tokens: int) -> bool:
        """One of them has ended, with so many tokens; whether it was the last one."""
        self.missing -= 1
        self.longest = max(self.longest, tokens)
        return not self.missing


class RequestStats:
    """One engine request on its way; made by `Stats.begin`."""

    __slots__ = ("_choices", "_first", "_last", "_max_tokens", "_prompt_tokens", "_started", "_stats", "_tokens")

    def __init__(self, stats: Stats, prompt_tokens: int, max_tokens: int, choices: Choices | None) -> None:
        self._stats = stats
        self._prompt_tokens = prompt_tokens
        self._max_tokens = max_tokens
        self._choices = choices
        self._tokens = 0
        self._first = 0.0
        self._last: float | None = None
        self._started = stats.clock()

    def advance(self, tokens: int = 1) -> None:
        """A token is there; with the first one, the prompt has been read. An embedding is a first step of 0 tokens."""
        stats, before = self._stats, self._last
        self._last = now = stats.clock()
        self._tokens += tokens
        stats.generation_tokens += tokens
        if before is None:
            self._first = now
            stats.first_step(self._prompt_tokens, tokens, now - self._started)
        else:
            stats.inter_token_latency.observe(now - before)

    def finish(self, reason: str) -> None:
        """The step before was the last one."""
        assert self._last is not None
        times = (self._started, self._first, self._last)
        self._stats.end(reason, self._prompt_tokens, self._tokens, times, self._max_tokens, self._choices)


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
