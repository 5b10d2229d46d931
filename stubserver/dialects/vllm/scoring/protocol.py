"""POST /generative_scoring."""

from __future__ import annotations

from typing import Literal

from stubserver.dialects.vllm.protocol import Priority, ReplyModel, RequestId, SaltedRequest, Usage


class ScoringRequest(SaltedRequest):
    """The fields of vLLM's request; `cache_salt` and `priority` have no effect."""

    model: str | None = None
    query: str | list[int]
    items: list[str] | list[list[int]]
    label_token_ids: list[int]
    apply_softmax: bool = True
    item_first: bool = False
    add_special_tokens: bool = True
    cache_salt: str | None = None
    priority: Priority = 0
    request_id: RequestId = None


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
