"""From what is asked to generations: what every generating endpoint does alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

from stubserver.asgi import find_header
from stubserver.engine.generate import Generation
from stubserver.engine.model import Model
from stubserver.errors import ValidationError
from stubserver.sampling.params import SamplingParams
from stubserver.script.context import ScriptRequest
from stubserver.serving.asked import Asked, Prompt
from stubserver.serving.forcing import forced_token_ids
from stubserver.serving.observers import observers_of
from stubserver.serving.sending import random_id


def start_generations(scope: Scope, body: Mapping[str, Any], asked: Asked) -> list[Generation]:
    """A generation a prompt, its script bound. Raises UnscriptedError if the script has no answer."""
    model, path, headers = asked.model, scope["path"], scope["headers"]
    observers, forced = observers_of(scope), forced_token_ids(scope, model)
    generations: list[Generation] = []
    for prompt, engine_request in zip(asked.prompts, asked.engine_requests, strict=True):
        params, record = engine_request.params, None
        request = script_request(path, headers, body, model, prompt, params)
        for observer in observers:
            observer.asked(model, request, params)
        answer = model.script.bind(request)
        for observer in observers:
            record = observer.answered(request, answer) or record
        generation = Generation(
            engine_request, request, answer, forced[: params.n], tokenized=prompt.tokenized, record=record
        )
        for observer in observers:
            observer.started(generation)
        generations.append(generation)
        forced = forced[params.n :]
    return generations


def script_request(
    path: str,
    headers: list[tuple[bytes, bytes]],
    body: Mapping[str, Any],
    model: Model,
    prompt: Prompt,
    params: SamplingParams,
) -> ScriptRequest:
    """What the script may know of a prompt's request."""
    named, scored = body.get("model") or model.name, params.prompt_logprobs is not None
    return ScriptRequest(path, named, prompt.text, prompt.token_ids, body, Headers(raw=headers), scored)


def request_id(request: Request, given: str | None) -> str:
    """The id that a reply's own is made of: the client's header, its field, or a random one.

    Raises ValidationError for an id that can't be sent back.
    """
    chosen = find_header(request.scope, b"x-request-id") or given
    if not chosen:
        return random_id()
    try:
        chosen.encode()
    except UnicodeEncodeError as error:
        raise ValidationError(str(error), parameter="request_id") from None
    return chosen
