"""A trainer as client of the real process: rollouts with sampling masks, full and streamed, replayed with numpy."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "replay_mask.py"
TABLE = np.load(ROOT / "fixtures" / "bigram512" / "logits.npz")["table"].astype(np.float64)
PROMPT = [351, 29]


class MaskClient:
    """What a trainer's rollout worker needs: samples, and their logprobs under the trainer's model."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=30)

    def sample(self, **sampling_params: Any) -> list[dict[str, Any]]:
        reply = self._http.post("/inference/v1/generate", json=self._body(sampling_params))
        reply.raise_for_status()
        choices: list[dict[str, Any]] = reply.json()["choices"]
        return choices

    def stream(self, **sampling_params: Any) -> Iterator[dict[str, Any]]:
        """The parts of the one choice."""
        body = {**self._body(sampling_params), "stream": True}
        with self._http.stream("POST", "/inference/v1/generate", json=body) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield json.loads(line.removeprefix("data: "))["choices"][0]

    def _body(self, sampling_params: dict[str, Any]) -> dict[str, Any]:
        return {"token_ids": PROMPT, "sampling_params": {"logprobs": 0, "ignore_eos": True, **sampling_params}}


def replayed(token_ids: list[int], masks: list[list[int]], temperature: float) -> NDArray[np.float64]:
    """Logprobs of the tokens under the table, each among its mask."""
    values = []
    for last, token_id, mask in zip([PROMPT[-1], *token_ids], token_ids, masks, strict=False):
        scaled = TABLE[last, mask] / temperature
        values.append(scaled[mask.index(token_id)] - np.log(np.exp(scaled).sum()))
    return np.array(values)


def served(choice: dict[str, Any]) -> list[float]:
    return [entry["logprob"] for entry in choice["logprobs"]["content"]]


@pytest.fixture(scope="module")
def client(serve: Callable[..., AbstractContextManager[str]]) -> Iterator[MaskClient]:
    with serve("--return-sampling-mask", "--enable-scale-out", "--logprobs-mode", "processed_logprobs") as url:
        yield MaskClient(url)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("restriction", [{"top_k": 1}, {"top_k": 8}, {"top_k": 50, "top_p": 0.8}, {"top_k": 400}])
def test_replay_gives_the_same_logprobs(client: MaskClient, temperature: float, restriction: dict[str, Any]) -> None:
    for choice in client.sample(temperature=temperature, n=3, seed=7, max_tokens=16, **restriction):
        token_ids, masks = choice["token_ids"], choice["sampling_mask"]
        assert len(token_ids) == len(masks) == 16
        for last, mask in zip([PROMPT[-1], *token_ids], masks, strict=False):
            # Tokens that tie with the k-th best are in, so there may be more than k.
            assert TABLE[last, mask].min() >= np.sort(TABLE[last])[-restriction["top_k"]]
        assert replayed(token_ids, masks, temperature) == pytest.approx(served(choice), abs=2e-5)


def test_a_stream_has_the_same_masks(client: MaskClient) -> None:
    sampling_params = {"temperature": 0.8, "top_k": 12, "top_p": 0.9, "seed": 3, "max_tokens": 10}
    parts = list(client.stream(**sampling_params))
    (full,) = client.sample(**sampling_params)
    assert [len(part["sampling_mask"]) for part in parts] == [1] * 10
    assert [mask for part in parts for mask in part["sampling_mask"]] == full["sampling_mask"]
    assert [token_id for part in parts for token_id in part["token_ids"]] == full["token_ids"]


def test_a_client_learns_what_is_missing(client: MaskClient) -> None:
    with pytest.raises(httpx.HTTPStatusError) as caught:
        client.sample(temperature=1.0)
    # vLLM's server doesn't say what: its log does.
    assert caught.value.response.status_code == 500
    assert caught.value.response.json()["error"]["message"] == ""


def test_the_example_says_how_close_it_is() -> None:
    run = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    without, with_mask = (float(part.split()[0]) for part in run.stdout.splitlines()[-1].split(": ")[1].split(", "))
    assert without > 0.1
    assert with_mask < 2e-5


def test_the_example_replays_as_this_client_does() -> None:
    example = runpy.run_path(str(EXAMPLE))
    token_ids, masks = [260, 478], [[15, 260], [334, 478]]
    logits = example["trainer_logits"](token_ids)
    mine = replayed(token_ids, masks, example["TEMPERATURE"])
    assert example["replayed_logprobs"](logits, np.array(token_ids), masks) == pytest.approx(mine)
