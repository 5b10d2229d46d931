"""POST /generative_scoring."""

from __future__ import annotations

from typing import Literal

from stubserver.dialects.vllm.protocol import ReplyModel, RequestModel, Usage


class ScoringRequest(RequestModel):
    """The fields that stubserver heeds; vLLM's others are accepted and ignored."""

    model: str | None = None
    query: str | list[int]
    items: list[str] | list[list[int]]
    label_token_ids: list[int]
    apply_softmax: bool = True
    item_first: bool = False
    add_special_tokens: bool = True
    request_id: str | None = None


class ItemScore(ReplyModel):
    """The probability of the first label after one item."""

    index: int
    object: Literal["score"]
    score: float


class ScoringReply(ReplyModel):
    """A score per item."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ItemScore]
    usage: Usage
