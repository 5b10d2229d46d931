"""Public clients that read labels, as adapters of the contract suite. What they return is what their users get."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import ClassVar

from anyjev.backends.vllm import VLLMBackend
from jebadiah_decide import backends as jebadiah
from jebadiah_decide.tokenizer import LightTokenizer
from llm2jev import backends as llm2jev
from llm2jev.scoring import softmax

from stubserver.testing import LabelReadbackContract, LabelRequest


class AnyJev(LabelReadbackContract):
    """`allowed_token_ids` and the top K of a completion."""

    def read_labels(self, request: LabelRequest) -> Sequence[float]:
        return self.read_many([request])[0]

    def read_many(self, requests: Sequence[LabelRequest]) -> list[list[float]]:
        first = requests[0]
        backend = VLLMBackend(first.url, first.model, str(first.tokenizer_path), first.api_key)
        rows = backend.next_token_logprobs([each.prompt for each in requests], [each.label_ids for each in requests])
        return [list(row) for row in rows]


class LLM2Jev(LabelReadbackContract):
    """`logprob_token_ids` of a completion. Its server is started as its documentation says."""

    server_settings: ClassVar = {"max_logprobs": 256, "return_tokens_as_token_ids": True}

    def read_labels(self, request: LabelRequest) -> Sequence[float]:
        values, _ = llm2jev.VLLM(request.url, request.model).score(request.prompt, [], list(request.label_ids))
        return softmax(values)


class JebadiahDecide(LabelReadbackContract):
    """The top 20 of a completion, by text. It wants to know how many tokens the prompt has."""

    missing_label_errors = jebadiah.JebError

    def read_labels(self, request: LabelRequest) -> Sequence[float]:
        count = len(LightTokenizer(str(request.tokenizer_path)).encode(request.prompt))
        backend = jebadiah.VLLM(request.url, request.model, request.api_key)
        return backend.read(SimpleNamespace(prompt=request.prompt, letters=request.labels), count).values
