"""From a request to generations: what every generating endpoint does alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from starlette.datastructures import Headers
from starlette.requests import Request

from stubserver.asgi import find_header
from stubserver.dialects.vllm.prompts import Prompt
from stubserver.engine.beam_search import beam_search
from stubserver.engine.generate import Generation, Step
from stubserver.engine.model import Model
from stubserver.engine.terms import Terms
from stubserver.errors import ValidationError
from stubserver.faults.choice import Answered
from stubserver.faults.middleware import ANSWERED
from stubserver.journal.journal import SCOPE_KEY, Entry
from stubserver.playback.recorded import GENERATIONS
from stubserver.sampling.params import SamplingParams
from stubserver.script.context import ScriptRequest
from stubserver.serving.replies import random_id


def make_generation(
    request: Request,
    body: Mapping[str, Any],
    prompt: Prompt,
    terms: Terms,
    forced: Sequence[Sequence[int]] = (),
) -> Generation:
    """The generation of one prompt, its script bound. Raises UnscriptedError or UnrecordedError for no answer."""
    model, params = terms.model, terms.params
    seen = script_request(request, body, model, prompt, params)
    entry: Entry | None = request.scope.get(SCOPE_KEY)
    record = None if entry is None else entry.begin(model, seen, params)
    generation = Generation(terms, seen, model.script.bind(seen), forced, tokenized=prompt.tokenized)
    if record is not None:
        record.rule, generation.record = generation.answer.rule, record.add
    answered: Answered | None = request.scope.get(ANSWERED)
    if answered is not None:
        answered.append((seen, generation.answer))
    request.scope.get(GENERATIONS, []).append(generation)
    return generation


class BeamFields(Protocol):
    """What of a request says how its tokens are chosen."""

    use_beam_search: bool
    length_penalty: float


def steps_of(generation: Generation, request: BeamFields) -> Iterator[tuple[int, Step]]:
    """(choice, step) as they are generated; of a beam search, a step a choice."""
    if request.use_beam_search:
        return enumerate(beam_search(generation, request.length_penalty))
    return generation.steps()


def script_request(
    request: Request, body: Mapping[str, Any], model: Model, prompt: Prompt, params: SamplingParams
) -> ScriptRequest:
    """What the script may know of a prompt's request."""
    scope = request.scope
    named, scored = body.get("model") or model.name, params.prompt_logprobs is not None
    return ScriptRequest(
        scope["path"], named, prompt.text, prompt.token_ids, body, Headers(raw=scope["headers"]), scored
    )


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
