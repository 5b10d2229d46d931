"""lm-evaluation-harness scores continuations: it echoes the prompt and adds up its tokens' logprobs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

INSTALL = "pip install 'llm-stubserver[clients]'"
pytest.importorskip("lm_eval", reason=INSTALL)
pytest.importorskip("transformers", reason=INSTALL)

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.models.openai_completions import LocalCompletionsAPI  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

BIGRAM = Path(__file__).parents[2] / "fixtures" / "bigram512"
CONTEXT = "The sky is"
CONTINUATIONS = {" blue": -12.1065, " red": -10.4034, " not to": -18.3442, "may": -1.1065}


@pytest.fixture(scope="module")
def scores(raw_server: str) -> dict[str, tuple[float, bool]]:
    """Continuation → (sum of its logprobs, whether greedy decoding would have written it)."""
    model = LocalCompletionsAPI(
        base_url=f"{raw_server}/v1/completions",
        model="bigram",
        tokenizer=str(BIGRAM),
        tokenizer_backend="huggingface",
        max_length=512,
    )
    requests = [Instance("loglikelihood", {}, (CONTEXT, text), i) for i, text in enumerate(CONTINUATIONS)]
    return dict(zip(CONTINUATIONS, model.loglikelihood(requests), strict=True))


def expected(continuation: str) -> tuple[float, bool]:
    """The same from the table: row u holds the logits of what follows token u."""
    table = np.load(BIGRAM / "logits.npz")["table"].astype(np.float64)
    logprobs = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
    tokenizer = AutoTokenizer.from_pretrained(BIGRAM)
    start = len(tokenizer.encode(CONTEXT))
    token_ids = tokenizer.encode(CONTEXT + continuation)
    steps = list(zip(token_ids[start - 1 :], token_ids[start:], strict=False))
    return sum(logprobs[pair] for pair in steps), all(logprobs[last].argmax() == token for last, token in steps)


@pytest.mark.parametrize("continuation", CONTINUATIONS)
def test_loglikelihood(scores: dict[str, tuple[float, bool]], continuation: str) -> None:
    total, is_greedy = scores[continuation]
    assert total == pytest.approx(CONTINUATIONS[continuation], abs=5e-5)
    expected_total, expected_greedy = expected(continuation)
    assert total == pytest.approx(expected_total, abs=1e-5)
    assert is_greedy == expected_greedy == (continuation == "may")
