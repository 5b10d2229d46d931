"""POST /tokenize and POST /detokenize."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from stubserver.dialects.vllm.chat.messages import ChatMessage
from stubserver.dialects.vllm.chat.protocol import ChatCompletionToolsParam
from stubserver.dialects.vllm.protocol import INT64_MAX, ReplyModel, RequestModel
from stubserver.errors import ValidationError


class TokenizeCompletionRequest(RequestModel):
    """Tokenize a text."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class TokenizeChatRequest(RequestModel):
    """Tokenize messages, rendered by the chat template; further keys of their parts are kept."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    messages: list[ChatMessage]
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    tools: list[ChatCompletionToolsParam] | None = None

    @model_validator(mode="before")
    @classmethod
    def _check(cls, data: Any) -> Any:
        both = isinstance(data, dict) and data.get("continue_final_message") and data.get("add_generation_prompt")
        if both:
            raise ValidationError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
        return data


TokenizeRequest = TokenizeCompletionRequest | TokenizeChatRequest


class TokenizeReply(ReplyModel):
    """The ids, and their spelling in the vocabulary if asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(RequestModel):
    """Ids to decode."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0, le=INT64_MAX)]]


class DetokenizeReply(ReplyModel):
    """The text."""

    prompt: str
