"""Replays sampling masks, as a trainer does: the same logprobs from the trainer's own logits.

A token that was drawn with top_k and top_p has a logprob over the few tokens that survived them. A trainer that takes
log_softmax over its whole vocabulary gets another one, and so a wrong importance ratio. With the mask it gets the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray

BIGRAM = Path(__file__).parents[1] / "fixtures" / "bigram512"
PROMPT = [351, 29]
TEMPERATURE = 0.7


def main() -> None:
    """Show the sampled tokens with the server's logprobs and the trainer's, without and with the mask."""
    with stubserver("--return-sampling-mask", "--enable-scale-out", "--logprobs-mode", "processed_logprobs") as url:
        choice = rollout(url)
    token_ids = np.array(choice["token_ids"])
    served = np.array([entry["logprob"] for entry in choice["logprobs"]["content"]])
    logits = trainer_logits(choice["token_ids"])
    everything = [list(range(logits.shape[1]))] * len(token_ids)
    plain = replayed_logprobs(logits, token_ids, everything)
    replayed = replayed_logprobs(logits, token_ids, choice["sampling_mask"])
    print(f"\n{'token':>5}{'drawn from':>12}{'server':>10}{'no mask':>10}{'mask':>10}")
    for token_id, mask, *values in zip(token_ids, choice["sampling_mask"], served, plain, replayed, strict=True):
        print(f"{token_id:>5}{f'{len(mask)} tokens':>12}" + "".join(f"{value:>10.4f}" for value in values))
    print(
        f"\nlargest difference: {largest(plain - served):.2g} without the mask, "
        f"{largest(replayed - served):.2g} with it"
    )


def rollout(url: str) -> dict[str, Any]:
    """One choice of /inference/v1/generate: token ids, logprobs, and the mask of each token."""
    sampling_params = {
        "temperature": TEMPERATURE,
        "top_k": 20,
        "top_p": 0.9,
        "seed": 1,
        "max_tokens": 8,
        "ignore_eos": True,
        "logprobs": 0,
    }
    body = json.dumps({"token_ids": PROMPT, "sampling_params": sampling_params}).encode()
    request = Request(f"{url}/inference/v1/generate", body, {"content-type": "application/json"})
    with urlopen(request, timeout=30) as reply:
        choice: dict[str, Any] = json.load(reply)["choices"][0]
    return choice


def trainer_logits(token_ids: list[int]) -> NDArray[np.float64]:
    """The trainer's forward pass, [tokens, V]. Here the model is a table: the row of the token before."""
    table = np.load(BIGRAM / "logits.npz")["table"]
    return np.asarray(table[[PROMPT[-1], *token_ids[:-1]]], dtype=np.float64)


def replayed_logprobs(
    logits: NDArray[np.float64], token_ids: NDArray[np.int64], masks: list[list[int]]
) -> NDArray[np.float64]:
    """Logprobs of the tokens, [tokens], each among the ids of its mask."""
    masked = np.full_like(logits, -np.inf)
    for position, mask in enumerate(masks):
        masked[position, mask] = logits[position, mask] / TEMPERATURE
    chosen = np.take_along_axis(masked, token_ids[:, None], axis=1)[:, 0]
    replayed: NDArray[np.float64] = chosen - np.log(np.exp(masked).sum(axis=1))
    return replayed


def largest(differences: NDArray[np.float64]) -> float:
    """The largest absolute value."""
    return float(np.abs(differences).max())


@contextmanager
def stubserver(*flags: str) -> Iterator[str]:
    """The URL of a running server; port 0 takes a free one, and the first line that it prints says which."""
    command = [sys.executable, "-m", "stubserver", "serve", str(BIGRAM / "script.yaml"), "--port", "0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        ready = server.stdout.readline()
        try:
            if not ready:
                sys.exit("the server did not start")
            print(ready, end="")
            yield ready.split()[3].rstrip(":")
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
