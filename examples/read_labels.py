"""Reads four labels from two servers with the same logits, as clients of vLLM do.

vLLM reports logprobs from before the request's masks (raw, its default) or from after them (processed). A client that
allows its four labels, asks for four logprobs and expects to find every label finds one of them in raw mode.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openai import OpenAI

SCRIPT = Path(__file__).parents[1] / "fixtures" / "bigram512" / "script.yaml"
LABELS = {" A": 276, " B": 327, " C": 328, " D": 329}
FILL = -30.0
"""What some clients take for a label that isn't in the reply."""


def main() -> None:
    """Show both readings side by side."""
    with stubserver("raw_logprobs") as url:
        raw = read_labels(url)
    with stubserver("processed_logprobs") as url:
        processed = read_labels(url)
    print(f"\n{'label':<8}{'raw logprob':>12}{'processed logprob':>20}{'probability':>14}")
    for label in LABELS:
        shown = f"{raw[label]:.4f}" if label in raw else "missing"
        print(f"{label!r:<8}{shown:>12}{processed[label]:>20.4f}{math.exp(processed[label]):>14.4%}")
    believed = {label: raw.get(label, FILL) for label in LABELS}
    print(
        f"\nA client that fills in {FILL:g} for the missing ones believes in ' C' by {share(believed, ' C'):.8%} "
        f"instead of {share(processed, ' C'):.4%},\nand takes ' A' and ' D' for equal, "
        f"where ' D' is {share(processed, ' D') / share(processed, ' A'):.0f} times as likely."
    )


@contextmanager
def stubserver(logprobs_mode: str) -> Iterator[str]:
    """The URL of a running server; port 0 takes a free one, and the first line that it prints says which."""
    flags = ["--port", "0", "--logprobs-mode", logprobs_mode]
    command = [sys.executable, "-m", "stubserver", "serve", str(SCRIPT), *flags]
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


def read_labels(url: str) -> dict[str, float]:
    """Label → logprob, of the labels that the reply holds."""
    reply = OpenAI(base_url=f"{url}/v1", api_key="none").completions.create(
        model="bigram",
        prompt="Answer:",
        max_tokens=1,
        temperature=0,
        logprobs=len(LABELS),
        extra_body={"allowed_token_ids": list(LABELS.values())},
    )
    logprobs = reply.choices[0].logprobs
    assert logprobs
    assert logprobs.top_logprobs
    [top] = logprobs.top_logprobs
    return {label: top[label] for label in LABELS if label in top}


def share(logprobs: dict[str, float], label: str) -> float:
    """The label's probability among the labels."""
    return math.exp(logprobs[label]) / sum(map(math.exp, logprobs.values()))


if __name__ == "__main__":
    main()
