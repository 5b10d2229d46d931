"""GET /v1/models."""

from __future__ import annotations

from typing import Literal

from stubserver.dialects.vllm.protocol import ReplyModel


class ModelPermission(ReplyModel):
    """A relic of OpenAI's that vLLM sends."""

    id: str
    object: Literal["model_permission"] = "model_permission"
    created: int
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class ModelCard(ReplyModel):
    """One served name."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "vllm"
    root: str
    parent: None = None
    max_model_len: int
    permission: list[ModelPermission]


class ModelList(ReplyModel):
    """All served names."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
