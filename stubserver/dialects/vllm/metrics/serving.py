"""GET /metrics: what the models have done, in Prometheus' text format, under vLLM's names.

Every name is there that vLLM has for a text model. What there is none of here (a KV cache, preemptions, a GPU's
operations) is 0, and nothing ever waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from stubserver.dialects.vllm.metrics.families import CACHE_CONFIG, FAMILIES, NO_ENGINE, Family
from stubserver.engine.model import Model
from stubserver.engine.stats import Histogram, Stats
from stubserver.serving.dialect import Route
from stubserver.serving.http_stats import HttpStats
from stubserver.serving.state import STARTED, ServerState, server_state

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

Labels = dict[str, str]

_COUNTS: dict[str, Callable[[Stats], int]] = {
    "prompt_tokens": lambda stats: stats.prompt_tokens,
    "prompt_tokens_by_source/local_compute": lambda stats: stats.prompt_tokens,
    "generation_tokens": lambda stats: stats.generation_tokens,
    "engine_sleep_state/awake": lambda stats: 1,
}
"""Family, or family and label → its value; all others are 0."""

_WHILE_RUNNING: dict[str, Callable[[Stats], Histogram]] = {
    "iteration_tokens_total": lambda stats: stats.steps,
    "time_to_first_token_seconds": lambda stats: stats.time_to_first_token,
    "inter_token_latency_seconds": lambda stats: stats.inter_token_latency,
}


async def show_metrics(request: Request) -> Response:
    """The metrics, in the text format whatever the client accepts, as vLLM. Query: `name[]`, those to show."""
    # Imported here, for a server whose metrics nobody reads is to start without it.
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    registry, names = _registry(server_state(request)), request.query_params.getlist("name[]")
    text = generate_latest(registry.restricted_registry(names) if names else registry)
    return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})


async def hand_to_client(request: Request) -> Response:
    """As prometheus_client's own app does, which vLLM mounts for all other methods and for paths that begin so."""
    return _ClientsResponse(_registry(server_state(request)))


class _ClientsResponse(Response):
    """What prometheus_client answers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()
        self._registry = registry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        from prometheus_client import make_asgi_app

        added = [header for header in self.raw_headers if header[0] != b"content-length"]

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await make_asgi_app(registry=self._registry)(scope, receive, sending)


def _registry(state: ServerState) -> CollectorRegistry:
    from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

    registry = CollectorRegistry(auto_describe=True)
    for collector in (GCCollector, PlatformCollector, ProcessCollector):
        collector(registry=registry)
    registry.register(_Collector(state))
    return registry


class _Collector:
    """prometheus_client's seam: a state → its metrics."""

    def __init__(self, state: ServerState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Every metric, with a sample (or a histogram) per model."""
        models = self._state.models
        for family in FAMILIES:
            yield _metric(family, models, self._state.in_flight)
        yield _cache_config()
        yield from _http(self._state.http)


def _metric(family: Family, models: Iterable[Model], in_flight: int) -> Metric:
    metric = _new(f"vllm:{family.name}", family.help, family.kind)
    for number, model in enumerate(models):
        labels = {"model_name": model.name} if family.name in NO_ENGINE else _labels(model)
        if family.kind == "histogram":
            stats = model.stats
            found = _WHILE_RUNNING.get(family.name)
            _add_histogram(metric, labels, found(stats) if found else stats.ended[family.name])
        elif family.name == "num_requests_running":
            # Counted for the server as a whole, and not yet told apart by model: the sum is right.
            _add_value(metric, labels, in_flight if number == 0 else 0)
        else:
            for own, value in _values(family, model.stats):
                _add_value(metric, {**labels, **own}, value)
    return metric


def _values(family: Family, stats: Stats) -> Iterator[tuple[Labels, int]]:
    """(labels of their own, value) of the samples of one model."""
    if family.name == "request_success":
        yield from (({family.label: reason}, count) for reason, count in stats.finished.items())
    elif family.label:
        for value in family.values:
            read = _COUNTS.get(f"{family.name}/{value}")
            yield {family.label: value}, read(stats) if read else 0
    else:
        read = _COUNTS.get(family.name)
        yield {}, read(stats) if read else 0


def _cache_config() -> Metric:
    metric = _new("vllm:cache_config_info", "Information of the LLMEngine CacheConfig", "gauge")
    _add_value(metric, {"engine": "0", **CACHE_CONFIG}, 1)
    return metric


def _http(stats: HttpStats) -> Iterator[Metric]:
    """Names and help: prometheus-fastapi-instrumentator 8.1.0, `metrics.py`."""
    stats.sort()
    requests = _new("http_requests", "Total number of requests by method, status and handler.", "counter")
    for (handler, method, status), count in stats.requests.items():
        _add_value(requests, {"handler": handler, "method": method, "status": status}, count)
    yield requests
    for name, direction, sizes in (
        ("request", "incoming requests", stats.request_bytes),
        ("response", "outgoing responses", stats.response_bytes),
    ):
        metric = _new(
            f"http_{name}_size_bytes",
            f"Content length of {direction} by handler. Only value of header is respected. Otherwise ignored. "
            "No percentile calculated. ",
            "summary",
        )
        for handler, size in sizes.items():
            _add_sum(metric, {"handler": handler}, size.count, size.sum)
        yield metric
    fine = _new(
        "http_request_duration_highr_seconds",
        "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. ",
        "histogram",
    )
    _add_histogram(fine, {}, stats.all_durations)
    yield fine
    coarse = _new(
        "http_request_duration_seconds",
        "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. ",
        "histogram",
    )
    for (handler, method), durations in stats.durations.items():
        _add_histogram(coarse, {"handler": handler, "method": method}, durations)
    yield coarse


def _new(name: str, documentation: str, kind: str) -> Metric:
    from prometheus_client import Metric

    return Metric(name, documentation, kind)


def _add_value(metric: Metric, labels: Labels, value: float) -> None:
    if metric.type == "counter":
        metric.add_sample(f"{metric.name}_total", labels, value)
        _add_created(metric, labels)
    else:
        metric.add_sample(metric.name, labels, value)


def _add_sum(metric: Metric, labels: Labels, count: int, total: float) -> None:
    metric.add_sample(f"{metric.name}_count", labels, count)
    metric.add_sample(f"{metric.name}_sum", labels, total)
    _add_created(metric, labels)


def _add_histogram(metric: Metric, labels: Labels, histogram: Histogram) -> None:
    counts = histogram.cumulative()
    for bound, count in zip([*map(str, histogram.bounds), "+Inf"], counts, strict=True):
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": bound}, count)
    _add_sum(metric, labels, counts[-1], histogram.sum)


def _add_created(metric: Metric, labels: Labels) -> None:
    metric.add_sample(f"{metric.name}_created", labels, STARTED)


def _labels(model: Model) -> Labels:
    return {"engine": "0", "model_name": model.name}


ROUTE, APP = Route(show_metrics), Route(hand_to_client)
