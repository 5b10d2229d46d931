"""POST /generative_scoring."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from stubserver.dialects.vllm.protocol import Priority, ReplyModel, RequestId, RequestModel, Usage, check_cache_salt


class ScoringRequest(RequestModel):
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

    @model_validator(mode="before")
    @classmethod
    def _check(cls, data: Any) -> Any:
        if isinstance(data, dict):
            check_cache_salt(data)
        return data


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
