"""AnyJev's vLLM backend reads labels: it fills in -30 for each one that the server doesn't report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

INSTALL = "pip install 'llm-stubserver[clients]'"
pytest.importorskip("anyjev", reason=INSTALL)
pytest.importorskip("transformers", reason=INSTALL)

from anyjev.backends.vllm import VLLMBackend  # noqa: E402

FIXTURES = Path(__file__).parents[2] / "fixtures"
LABELS = {" A": 276, " B": 327, " C": 328, " D": 329}
FILLED_IN = -30.0
TOLERANCE = 2e-5
"""The float32 noise of the recordings."""


def read_labels(url: str) -> list[float]:
    backend = VLLMBackend(url, "bigram", tokenizer_name=str(FIXTURES / "bigram512"), workers=1)
    [values] = backend.next_token_logprobs(["Answer:"], [list(LABELS.values())])
    return list(values)


def recorded_labels(mode: str) -> list[float]:
    """What vLLM answered to the same request, with AnyJev's number for what it left out."""
    lines = (FIXTURES / "vllm-0.32.0" / f"{mode}.jsonl").read_text().splitlines()[1:]
    exchange = next(e for e in map(json.loads, lines) if (e["group"], e["name"]) == ("labels", "allowed4_logprobs4"))
    [top] = exchange["response"]["body"]["choices"][0]["logprobs"]["top_logprobs"]
    return [top.get(label, FILLED_IN) for label in LABELS]


def test_raw_logprobs_hide_three_of_four_labels(raw_server: str) -> None:
    values = read_labels(raw_server)
    assert values == pytest.approx([-30.0, -30.0, -5.7781, -30.0], abs=5e-5)
    assert values == pytest.approx(recorded_labels("raw_logprobs"), abs=TOLERANCE)


def test_processed_logprobs_show_all_labels(processed_server: str) -> None:
    values = read_labels(processed_server)
    assert values == pytest.approx([-9.5290, -6.1227, -0.0290, -3.6384], abs=5e-5)
    assert values == pytest.approx(recorded_labels("processed_logprobs"), abs=TOLERANCE)
