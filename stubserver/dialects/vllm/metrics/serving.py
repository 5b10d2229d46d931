"""GET /metrics: what the models have done, in Prometheus' text format, under vLLM's names.

Names and help: vLLM 0.32.0, `v1/metrics/loggers.py`. Left out is what a server without a GPU could only invent (KV
cache, prefix cache, preemptions, phases of a request). Nothing ever waits here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from stubserver.engine.model import Model
from stubserver.engine.stats import Histogram, Stats
from stubserver.serving.dialect import Route
from stubserver.serving.state import ServerState, server_state

if TYPE_CHECKING:
    from prometheus_client import Metric

_LABELS = ("model_name", "engine")

_COUNTERS: tuple[tuple[str, str, Callable[[Stats], int]], ...] = (
    ("vllm:prompt_tokens", "Number of prefill tokens processed.", lambda stats: stats.prompt_tokens),
    ("vllm:generation_tokens", "Number of generation tokens processed.", lambda stats: stats.generation_tokens),
)

_HISTOGRAMS: tuple[tuple[str, str, Callable[[Stats], Histogram]], ...] = (
    (
        "vllm:request_prompt_tokens",
        "Number of prefill tokens processed.",
        lambda stats: stats.request_prompt_tokens,
    ),
    (
        "vllm:request_generation_tokens",
        "Number of generation tokens processed.",
        lambda stats: stats.request_generation_tokens,
    ),
    (
        "vllm:time_to_first_token_seconds",
        "Histogram of time to first token in seconds.",
        lambda stats: stats.time_to_first_token,
    ),
    (
        "vllm:inter_token_latency_seconds",
        "Histogram of inter-token latency in seconds.",
        lambda stats: stats.inter_token_latency,
    ),
    (
        "vllm:e2e_request_latency_seconds",
        "Histogram of e2e request latency in seconds.",
        lambda stats: stats.e2e_request_latency,
    ),
)


async def show_metrics(request: Request) -> Response:
    """The metrics, in the text format whatever the client accepts, as vLLM."""
    # Imported here, for a server whose metrics nobody reads is to start without it.
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    text = generate_latest(_Collector(server_state(request)))
    return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})


class _Collector:
    """prometheus_client's seam: a state → its metrics."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Every metric, with a sample (or a histogram) per model."""
        models = self._state.models
        yield from _gauges(models, self._state.in_flight)
        yield from _counters(models)
        yield from _histograms(models)


def _gauges(models: Sequence[Model], in_flight: int) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    running = GaugeMetricFamily(
        "vllm:num_requests_running", "Number of requests in model execution batches.", labels=_LABELS
    )
    waiting = GaugeMetricFamily(
        "vllm:num_requests_waiting", "Number of requests waiting to be processed.", labels=_LABELS
    )
    for number, model in enumerate(models):
        # Counted for the server as a whole, and not yet told apart by model: the sum is right.
        running.add_metric(_labels(model), in_flight if number == 0 else 0)
        waiting.add_metric(_labels(model), 0)
    yield running
    yield waiting


def _counters(models: Sequence[Model]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    for name, documentation, read in _COUNTERS:
        family = CounterMetricFamily(name, documentation, labels=_LABELS)
        for model in models:
            family.add_metric(_labels(model), read(model.stats))
        yield family
    family = CounterMetricFamily(
        "vllm:request_success", "Count of successfully processed requests.", labels=(*_LABELS, "finished_reason")
    )
    for model in models:
        for reason, finished in model.stats.finished.items():
            family.add_metric((*_labels(model), reason), finished)
    yield family


def _histograms(models: Sequence[Model]) -> Iterator[Metric]:
    from prometheus_client.core import HistogramMetricFamily

    for name, documentation, read in _HISTOGRAMS:
        family = HistogramMetricFamily(name, documentation, labels=_LABELS)
        for model in models:
            histogram = read(model.stats)
            family.add_metric(_labels(model), _buckets(histogram), histogram.sum)
        yield family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*map(str, histogram.bounds), "+Inf"]
    return list(zip(bounds, histogram.cumulative(), strict=True))


def _labels(model: Model) -> tuple[str, str]:
    return model.name, "0"


ROUTE = Route(show_metrics)
