"""POST /tokenize and POST /detokenize, and GET /tokenizer_info."""

from __future__ import annotations

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from stubserver.dialects.vllm.chat.serving import check_media
from stubserver.dialects.vllm.chat.template import (
    TemplateOptions,
    check_template_trusted,
    read_messages,
    render_messages,
)
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
from stubserver.serving.body import parse_body
from stubserver.serving.dialect import Route
from stubserver.serving.sending import json_reply
from stubserver.serving.state import server_state

_TOKENIZE: TypeAdapter[TokenizeCompletionRequest | TokenizeChatRequest] = TypeAdapter(TokenizeRequest)
_DETOKENIZE = TypeAdapter(DetokenizeRequest)


async def tokenize(request: Request) -> Response:
    """Text, or messages rendered by the chat template, as token ids."""
    _, parsed = await parse_body(request, _TOKENIZE)
    model = server_state(request).find_model(parsed.model)
    text = _render(model, parsed) if isinstance(parsed, TokenizeChatRequest) else parsed.prompt
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


def _render(model: Model, parsed: TokenizeChatRequest) -> str:
    """The text that a conversation makes. Raises RequestError for what can't be rendered."""
    fields = {
        "add_generation_prompt": parsed.add_generation_prompt,
        "continue_final_message": parsed.continue_final_message,
    }
    tools = None if parsed.tools is None else [tool.shown() for tool in parsed.tools]
    options = TemplateOptions(parsed.chat_template, parsed.chat_template_kwargs or {}, fields, tools)
    check_template_trusted(model, options)
    check_media(parsed)
    return render_messages(model, read_messages(model, parsed.messages, options), options)


async def detokenize(request: Request) -> Response:
    """Token ids as text, special tokens included."""
    _, parsed = await parse_body(request, _DETOKENIZE)
    model = server_state(request).find_model(parsed.model)
    check_decodable(parsed.tokens)
    return json_reply({"prompt": model.tokenizer.decode(parsed.tokens)})


async def show_tokenizer(request: Request) -> Response:
    """What tokenizer_config.json says, with what transformers adds to it, and the template in use."""
    tokenizer = server_state(request).models[0].tokenizer
    written = {key: value for key, value in tokenizer.config.items() if key not in ("vocab_file", "merges_file")}
    added = {str(token_id): text for token_id, text in tokenizer.added_tokens.items()}
    info = {
        **written,
        "tokenizer_class": "TokenizerPoolCachedTokenizersBackend",
        "truncation_side": "left",
        "name_or_path": tokenizer.name,
        "is_local": True,
        "local_files_only": True,
        "added_tokens_decoder": added,
        "backend": "tokenizers",
    }
    return json_reply(info if tokenizer.chat_template is None else {**info, "chat_template": tokenizer.chat_template})


INFO = Route(show_tokenizer)
TOKENIZE = Route(tokenize, TokenizeRequest, TokenizeReply)
DETOKENIZE = Route(detokenize, DetokenizeRequest, DetokenizeReply)
