"""GET /metrics: counted exactly, after requests that the reader can count too."""

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
        for sample in family.samples:
            assert LABELS.items() <= sample.labels.items()
            rest = tuple(value for name, value in sample.labels.items() if name not in LABELS)
            found[(sample.name, *rest)] = sample.value
    return found


def counted(app):
    """The counts, without those of time and those that are 0."""
    found = {" ".join(key).removeprefix("vllm:"): value for key, value in metrics(app).items() if value}
    return {key: value for key, value in found.items() if "seconds" not in key and "_bucket" not in key}


def test_before_the_first_request(app):
    assert counted(app) == {}
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
        "prompt_tokens_total": sum(prompts),
        "generation_tokens_total": sum(outputs),
        "request_success_total length": 8,
        "request_success_total stop": 3,
        "request_prompt_tokens_count": len(prompts),
        "request_prompt_tokens_sum": sum(prompts),
        "request_generation_tokens_count": len(outputs),
        "request_generation_tokens_sum": sum(outputs),
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


def test_names_and_buckets_of_the_running_vllm(app):
    names = {
        ("vllm:num_requests_running", "gauge"),
        ("vllm:num_requests_waiting", "gauge"),
        ("vllm:prompt_tokens", "counter"),
        ("vllm:generation_tokens", "counter"),
        ("vllm:request_success", "counter"),
        ("vllm:request_prompt_tokens", "histogram"),
        ("vllm:request_generation_tokens", "histogram"),
        ("vllm:time_to_first_token_seconds", "histogram"),
        ("vllm:inter_token_latency_seconds", "histogram"),
        ("vllm:e2e_request_latency_seconds", "histogram"),
    }
    families = list(text_string_to_metric_families(app.get("/metrics").text))
    assert {(family.name, family.type) for family in families} == names
    bounds = [key[1] for key in metrics(app) if key[0] == "vllm:request_prompt_tokens_bucket"]
    assert bounds == ["1.0", "2.0", "5.0", "10.0", "20.0", "50.0", "100.0", "200.0", "500.0", "+Inf"]
    bounds = [key[1] for key in metrics(app) if key[0] == "vllm:e2e_request_latency_seconds_bucket"]
    assert bounds[:4] == ["0.3", "0.5", "0.8", "1.0"]
    assert bounds[-2:] == ["7680.0", "+Inf"]


def test_metrics_need_no_api_key():
    app = TestClient(create_app(BIGRAM, api_key="secret"))
    assert app.get("/metrics").status_code == 200
