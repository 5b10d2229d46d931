"""POST /v1/embeddings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from stubserver.dialects.vllm.protocol import INT64_MAX, ReplyModel, RequestModel, Usage
from stubserver.errors import ValidationError

EmbedDtype = Literal["float32", "float16"]
"""vLLM's others (bfloat16, fp8) are no types of numpy's."""

Endianness = Literal["native", "big", "little"]


class EmbeddingRequest(RequestModel):
    """The fields that stubserver heeds; vLLM's others are accepted and ignored.

    `use_activation`: whether vectors get length 1; left out, they do.
    """

    model: str | None = None
    input: list[int] | list[list[int]] | str | list[str]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    use_activation: bool | None = None
    embed_dtype: EmbedDtype = "float32"
    endianness: Endianness = "native"
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT64_MAX)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    add_special_tokens: bool = True
    request_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _check(cls, data: Any) -> Any:
        if isinstance(data, dict) and "normalize" in data:
            message = "Parameter `normalize` was removed; use `use_activation` instead."
            raise ValidationError(message, parameter="normalize")
        return data


class Embedding(ReplyModel):
    """One vector: numbers, or their bytes in base64."""

    index: int
    object: Literal["embedding"]
    embedding: list[float] | str


class EmbeddingReply(ReplyModel):
    """A vector per input."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Embedding]
    usage: Usage
