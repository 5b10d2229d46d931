"""POST /v1/embeddings: for clients that use a pooling server beside the generating one.

Shapes, encodings and refusals: vLLM 0.32.0, `entrypoints/pooling/embed` and `pooling_params.py`. The vectors are the
script's.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from stubserver.dialects.vllm.embeddings.protocol import EmbeddingReply, EmbeddingRequest, EmbedDtype, Endianness
from stubserver.dialects.vllm.prompts import Renderer, Truncation, check_given, render_prompts
from stubserver.dialects.vllm.wire.usage import usage
from stubserver.engine.generate import check_prompt
from stubserver.engine.model import Model
from stubserver.errors import ValidationError
from stubserver.sampling.logits import Floats
from stubserver.script.embeddings import normalize, shorten
from stubserver.serving.asked import Prompt
from stubserver.serving.body import parse_body
from stubserver.serving.dialect import Route
from stubserver.serving.sending import json_reply
from stubserver.serving.start import request_id
from stubserver.serving.state import server_state

_ADAPTER = TypeAdapter(EmbeddingRequest)

_BYTE_ORDERS: dict[Endianness, Literal["=", "<", ">"]] = {"native": "=", "little": "<", "big": ">"}


async def create_embedding(request: Request) -> Response:
    """Answer an embeddings request."""
    _, parsed = await parse_body(request, _ADAPTER)
    model = server_state(request).find_model(parsed.model)
    prompts = _prompts(model, parsed)
    _check_dimensions(model, parsed.dimensions)
    for prompt in prompts:
        check_prompt(model, prompt.token_ids)
    vectors = [_vector(model, parsed, prompt) for prompt in prompts]
    return json_reply(
        {
            "id": f"embd-{request_id(request, parsed.request_id)}",
            "object": "list",
            "created": int(time.time()),
            "model": model.name,
            "data": [
                {"index": index, "object": "embedding", "embedding": _encoded(vector, parsed)}
                for index, vector in enumerate(vectors)
            ],
            "usage": usage(sum(len(prompt.token_ids) for prompt in prompts), 0, nulls=True),
        }
    )


def _prompts(model: Model, parsed: EmbeddingRequest) -> Sequence[Prompt]:
    limit = parsed.truncate_prompt_tokens
    if limit is not None and limit > model.settings.max_model_len:
        raise ValidationError(
            "truncate_prompt_tokens value is greater than max_model_len. Please request a smaller truncation size."
        )
    # An empty text is one prompt, which the engine refuses; an empty list is none.
    given = [parsed.input] if isinstance(parsed.input, str) else parsed.input
    check_given(given)
    # For models that pool, vLLM loads tokenizers that cut at the right.
    truncation = Truncation(limit, parsed.truncation_side or "right")
    renderer = Renderer(model, max_tokens=0, truncation=truncation, add_special_tokens=parsed.add_special_tokens)
    return render_prompts(renderer, given)


def _check_dimensions(model: Model, dimensions: int | None) -> None:
    """Every vector can be shortened, as those of Matryoshka models."""
    largest = model.embeddings.dimension
    if dimensions is not None and not 1 <= dimensions <= largest:
        raise ValidationError(
            f"Model {model.name!r} only supports dimensions in range [1, {largest}], got {dimensions}."
        )


def _vector(model: Model, parsed: EmbeddingRequest, prompt: Prompt) -> Floats:
    """The vector of one prompt, which counts as a request to the engine."""
    stats = model.stats.begin(len(prompt.token_ids))
    whole = model.embeddings.vector(prompt.text, prompt.token_ids, model.settings.seed)
    vector = shorten(whole, parsed.dimensions)
    stats.advance(tokens=0)
    stats.finish("stop")
    return vector if parsed.use_activation is False else normalize(vector)


def _encoded(vector: Floats, parsed: EmbeddingRequest) -> list[float] | str:
    if parsed.encoding_format == "base64":
        return encode_base64(vector, parsed.embed_dtype, parsed.endianness)
    values: list[float] = vector.tolist()
    return values


def encode_base64(vector: Floats, embed_dtype: EmbedDtype, endianness: Endianness) -> str:
    """The bytes of the values, one after the other, in base64."""
    dtype = np.dtype(embed_dtype).newbyteorder(_BYTE_ORDERS[endianness])
    return base64.b64encode(vector.astype(dtype).tobytes()).decode("ascii")


ROUTE = Route(create_embedding, EmbeddingRequest, EmbeddingReply)
