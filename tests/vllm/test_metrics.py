"""GET /metrics: counted exactly, after requests that the reader can count too."""

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from stubserver.app import create_app

BIGRAM = Path(__file__).parents[2] / "fixtures" / "bigram512" / "script.yaml"

LABELS = {"model_name": "bigram", "engine": "0"}


@pytest.fixture
def app():
    return TestClient(create_app(BIGRAM))


def metrics(app):
    """(name, labels beside model and engine) → value."""
    reply = app.get("/metrics")
    assert reply.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    found = {}
    for family in text_string_to_metric_families(reply.text):
        if not re.match("vllm:(?!cache_config|admission)", family.name):
            continue
        for sample in family.samples:
            assert LABELS.items() <= sample.labels.items()
            rest = tuple(value for name, value in sample.labels.items() if name not in LABELS)
            found[(sample.name, *rest)] = sample.value
    return found


def counted(app):
    """The counts, without those of time and those that are 0."""
    found = {" ".join(key).removeprefix("vllm:"): value for key, value in metrics(app).items() if value}
    return {key: value for key, value in found.items() if not re.search("seconds|_bucket|_created", key)}


def test_before_the_first_request(app):
    assert counted(app) == {"engine_sleep_state awake": 1}
    found = metrics(app)
    reasons = [key[1] for key in found if key[0] == "vllm:request_success_total"]
    assert reasons == ["stop", "length", "abort", "error", "repetition"]
    assert found["vllm:num_requests_waiting",] == 0


def test_a_series_of_requests(app):
    completion = {"prompt": [300, 292], "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    app.post("/v1/completions", json=completion)
    app.post("/v1/completions", json={**completion, "stream": True})
    app.post(
        "/v1/completions", json={**completion, "prompt": [[300], [292, 351]], "n": 2, "max_tokens": 1, "temperature": 1}
    )
    app.post("/generative_scoring", json={"query": [300], "items": [[1], [2, 3]], "label_token_ids": [334]})
    stopped = app.post("/v1/completions", json={**completion, "stop_token_ids": list(range(512))}).json()
    assert stopped["choices"][0]["finish_reason"] == "stop"
    app.post("/v1/embeddings", json={"input": ["The sky", "The"]})
    app.post("/v1/completions", json={**completion, "logprobs": 99})
    app.post("/tokenize", json={"prompt": "The sky"})
    prompts = [2, 2, 1, 1, 2, 2, 2, 3, 2, 2, 1]
    outputs = [3, 3, 1, 1, 1, 1, 1, 1, 1, 0, 0]
    assert counted(app) == {
        "engine_sleep_state awake": 1,
        "prompt_tokens_total": sum(prompts),
        "generation_tokens_total": sum(outputs),
        "request_success_total length": 8,
        "request_success_total stop": 3,
        "request_prompt_tokens_count": len(prompts),
        "request_prompt_tokens_sum": sum(prompts),
        "request_generation_tokens_count": len(outputs),
        "request_generation_tokens_sum": sum(outputs),
        "prompt_tokens_by_source_total local_compute": sum(prompts),
        "iteration_tokens_total_count": 15,
        "iteration_tokens_total_sum": sum(prompts) + sum(outputs),
        "request_max_num_generation_tokens_count": 7,
        "request_max_num_generation_tokens_sum": 11,
        "request_params_n_count": 7,
        "request_params_n_sum": 9,
        "request_params_max_tokens_count": 9,
        "request_params_max_tokens_sum": 15,
        "request_num_preemptions_count": len(prompts),
        "request_prefill_kv_computed_tokens_count": len(prompts),
        "request_prefill_kv_computed_tokens_sum": sum(prompts),
    }
    found = metrics(app)
    assert found["vllm:request_prompt_tokens_bucket", "1.0"] == 3
    assert found["vllm:request_prompt_tokens_bucket", "2.0"] == 10
    assert found["vllm:request_prompt_tokens_bucket", "+Inf"] == 11
    assert found["vllm:time_to_first_token_seconds_count",] == 11
    assert found["vllm:inter_token_latency_seconds_count",] == 4
    assert found["vllm:e2e_request_latency_seconds_count",] == 11
    assert 0 < found["vllm:time_to_first_token_seconds_sum",] < found["vllm:e2e_request_latency_seconds_sum",] < 10


def test_decisions_count_a_request_each(app):
    questions = {"a": {"type": "noul"}, "b": {"type": "noul"}}
    usage = app.post("/v1/systemone", json={"state": "x", "questions": questions}).json()["usage"]
    found = metrics(app)
    assert found["vllm:request_success_total", "length"] == 2
    assert found["vllm:prompt_tokens_total",] == usage["input_tokens"]
    assert found["vllm:generation_tokens_total",] == usage["output_tokens"]


def test_running_requests(app):
    app.app.state.server.served.in_flight = 3
    assert metrics(app)["vllm:num_requests_running",] == 3


RECORDED = {
    family["name"]: family
    for family in json.loads((BIGRAM.parents[1] / "vllm-0.32.0-http" / "metrics.json").read_text(encoding="utf-8"))[
        "families"
    ]
}
"""Every family of a running vLLM 0.32.0, after requests: its type, help, series, labels and buckets."""


def described(text):
    """The same of a text."""
    families, current = {}, {}
    for line in text.splitlines():
        if line.startswith("# HELP"):
            current = {"name": line.split(" ", 3)[2], "help": line.split(" ", 3)[3]}
        elif line.startswith("# TYPE"):
            families[current["name"]] = {**current, "type": line.split()[3], "labels": [], "series": [], "buckets": []}
        else:
            series, labels = re.fullmatch(r"([\w:]+)(?:{(.*)})? .*", line).groups()
            names = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or ""))
            family = families[current["name"]]
            bound = names.pop("le", None)
            if bound is not None and bound not in family["buckets"]:
                family["buckets"].append(bound)
            if series not in family["series"]:
                family["series"].append(series)
            family["labels"] = sorted(names)
    return families


def test_every_family_is_that_of_the_running_vllm():
    app = TestClient(create_app(BIGRAM, max_model_len=512))
    app.get("/v1/models")
    assert described(app.get("/metrics").text) == {
        name: {key: family[key] for key in ("name", "help", "type", "labels", "series", "buckets")}
        for name, family in RECORDED.items()
    }


@pytest.mark.parametrize("name", [name for name, family in RECORDED.items() if "values" in family])
def test_labels_have_the_values_of_the_running_vllm(app, name):
    (label,) = RECORDED[name]["values"][0]
    lines = [line for line in app.get("/metrics").text.splitlines() if line.startswith(name + "{")]
    assert [re.search(f'{label}="(.*?)"', line)[1] for line in lines] == [
        each[label] for each in RECORDED[name]["values"]
    ]


def http(app):
    """Series of http_*, without those of time → value."""
    found = {}
    for line in app.get("/metrics").text.splitlines():
        if line.startswith("http_") and not re.search("_created|_bucket|seconds_sum", line):
            series, value = line.rsplit(" ", 1)
            found[series] = float(value)
    return found


def test_what_goes_over_http_is_counted_by_handler_method_and_status():
    app = TestClient(create_app(BIGRAM, api_key="secret"), follow_redirects=False)
    key = {"authorization": "Bearer secret"}
    body = b'{"prompt": "A"}'
    for path in ("/health", "/ping", "/version", "/load", "/metrics", "/stub/requests"):
        app.get(path)
    reply = app.post("/tokenize", content=body, headers={"content-type": "application/json"})
    app.post("/tokenize", content=b"{}", headers={"content-type": "application/json"})
    app.get("/v1/models")
    app.get("/v1/models", headers=key)
    app.get("/v1/models/", headers=key)
    app.put("/v1/models", headers=key)
    app.put("/health")
    app.get("/v1/responses/a", headers=key)
    app.get("/v1/responses/b", headers=key)
    app.get("/nope")
    counted = http(app)
    assert {key: value for key, value in counted.items() if key.startswith("http_requests_total")} == {
        'http_requests_total{handler="/tokenize",method="POST",status="2xx"}': 1,
        'http_requests_total{handler="/tokenize",method="POST",status="4xx"}': 1,
        'http_requests_total{handler="/v1/models",method="GET",status="2xx"}': 1,
        'http_requests_total{handler="/v1/models/",method="GET",status="3xx"}': 1,
        'http_requests_total{handler="none",method="PUT",status="4xx"}': 1,
        'http_requests_total{handler="/v1/responses/{response_id}",method="GET",status="4xx"}': 2,
        'http_requests_total{handler="none",method="GET",status="4xx"}': 1,
    }
    assert counted['http_request_size_bytes_sum{handler="/tokenize"}'] == len(body) + len(b"{}")
    assert counted['http_response_size_bytes_sum{handler="/tokenize"}'] > len(reply.content)
    assert counted["http_request_duration_highr_seconds_count"] == 8
    assert counted['http_request_duration_seconds_count{handler="none",method="GET"}'] == 1


def test_names_can_be_chosen(app):
    text = app.get("/metrics", params={"name[]": "vllm:prompt_tokens_total"}).text
    assert {line.split("{")[0] for line in text.splitlines() if line[0] != "#"} == {"vllm:prompt_tokens_total"}


@pytest.mark.parametrize(("method", "path"), [("POST", "/metrics"), ("GET", "/metrics/x"), ("OPTIONS", "/metricsx")])
def test_other_methods_and_paths_that_begin_so_are_answered_by_accept(app, method, path):
    plain = app.request(method, path)
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    asked = app.request(method, path, headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert asked.headers["content-type"].startswith("application/openmetrics-text")
    assert asked.text.endswith("# EOF\n")


def test_metrics_need_no_api_key():
    app = TestClient(create_app(BIGRAM, api_key="secret"))
    assert app.get("/metrics").status_code == 200
