"""POST /tokenize and POST /detokenize."""

from __future__ import annotations

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from stubserver.dialects.vllm.chat.serving import check_media, template_message
from stubserver.dialects.vllm.prompts import check_decodable
from stubserver.dialects.vllm.tokenize.protocol import (
    DetokenizeReply,
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
    TokenizeReply,
    TokenizeRequest,
)
from stubserver.engine.model import Model
from stubserver.errors import RequestError
from stubserver.serving.body import parse_body
from stubserver.serving.dialect import Route
from stubserver.serving.sending import json_reply
from stubserver.serving.state import server_state
from stubserver.tokenizer.chat_template import render_chat

_TOKENIZE: TypeAdapter[TokenizeCompletionRequest | TokenizeChatRequest] = TypeAdapter(TokenizeRequest)
_DETOKENIZE = TypeAdapter(DetokenizeRequest)


async def tokenize(request: Request) -> Response:
    """Text, or messages rendered by the chat template, as token ids."""
    _, parsed = await parse_body(request, _TOKENIZE)
    model = server_state(request).find_model(parsed.model)
    text = _rendered(model, parsed) if isinstance(parsed, TokenizeChatRequest) else parsed.prompt
    token_ids = model.tokenizer.encode(text, add_special_tokens=parsed.add_special_tokens)
    pieces = [model.tokenizer.id_to_piece(token_id) for token_id in token_ids] if parsed.return_token_strs else None
    return json_reply(
        {
            "count": len(token_ids),
            "max_model_len": model.settings.max_model_len,
            "tokens": token_ids,
            "token_strs": pieces,
        }
    )


def _rendered(model: Model, parsed: TokenizeChatRequest) -> str:
    """The messages as one text. Raises RequestError for what can't be rendered."""
    kwargs = dict(parsed.chat_template_kwargs or {})
    in_kwargs = kwargs.pop("chat_template", None)
    template = parsed.chat_template or in_kwargs
    if not model.settings.trust_request_chat_template and (parsed.chat_template is not None or in_kwargs is not None):
        raise RequestError(
            "Chat template is passed with request, but --trust-request-chat-template is not set. "
            "Refused request with untrusted chat template."
        )
    check_media(parsed)
    return render_chat(
        model.tokenizer,
        [template_message(model, message) for message in parsed.messages],
        template=template,
        add_generation_prompt=parsed.add_generation_prompt,
        continue_final_message=parsed.continue_final_message,
        tools=[tool.model_dump(exclude_unset=True) for tool in parsed.tools] if parsed.tools else None,
        template_kwargs=kwargs,
    )


async def detokenize(request: Request) -> Response:
    """Token ids as text, special tokens included."""
    _, parsed = await parse_body(request, _DETOKENIZE)
    model = server_state(request).find_model(parsed.model)
    check_decodable(parsed.tokens)
    return json_reply({"prompt": model.tokenizer.decode(parsed.tokens)})


TOKENIZE = Route(tokenize, TokenizeRequest, TokenizeReply)
DETOKENIZE = Route(detokenize, DetokenizeRequest, DetokenizeReply)
