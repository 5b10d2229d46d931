"""From what is asked to generations: what every generating endpoint does alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

from stubserver.asgi import find_header
from stubserver.engine.generate import Generation
from stubserver.engine.model import Model
from stubserver.engine.terms import EngineRequest
from stubserver.errors import GenerationError
from stubserver.sampling.params import SamplingParams
from stubserver.script.context import ScriptRequest
from stubserver.serving.asked import Asked, Prompt
from stubserver.serving.forcing import forced_token_ids
from stubserver.serving.observers import observers_of
from stubserver.serving.sending import random_id

_REPLICA_HEADER = b"x-data-parallel-rank"


def start_generations(scope: Scope, body: Mapping[str, Any], asked: Asked, *, routed: bool = True) -> list[Generation]:
    """A generation a prompt, its script bound. Raises UnscriptedError if the script has no answer.

    routed: whether a router's header counts that says which replica is meant.
    """
    replica = _replica(scope) if routed else 0
    forced, first = forced_token_ids(scope, asked.model), 0
    generations = []
    for prompt, engine_request in zip(asked.prompts, asked.engine_requests, strict=True):
        choices = slice(first, first := first + engine_request.params.n)
        generation = _start(scope, body, prompt, engine_request, forced[choices])
        generation.replica = replica
        generations.append(generation)
    return generations


def _start(
    scope: Scope, body: Mapping[str, Any], prompt: Prompt, asked: EngineRequest, forced: Sequence[Sequence[int]]
) -> Generation:
    model, observers, record = asked.model, observers_of(scope), None
    request = script_request(scope["path"], scope["headers"], body, model, prompt, asked.params)
    for observer in observers:
        observer.asked(model, request, asked.params)
    answer = model.script.bind(request)
    for observer in observers:
        record = observer.answered(request, answer) or record
    generation = Generation(asked, request, answer, forced, tokenized=prompt.tokenized, record=record)
    for observer in observers:
        observer.started(generation)
    return generation


def _replica(scope: Scope) -> int:
    """Which of the server's replicas a router means by vLLM's header; the first one if it is no number."""
    given = find_header(scope, _REPLICA_HEADER)
    try:
        return int(given) if given is not None else 0
    except ValueError:
        return 0


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
    """The id that a reply's own is made of: the client's header, its field, or a random one where it gives none.

    An empty id is one too. Raises GenerationError for an id that is no text.
    """
    header = find_header(request.scope, b"x-request-id")
    chosen = given if header is None else header
    if chosen is None:
        return random_id()
    try:
        chosen.encode()
    except UnicodeEncodeError as error:
        raise GenerationError(str(error), code="unsaid") from None
    return chosen
