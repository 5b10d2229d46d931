"""A small server of another shape, as a dialect in one file: nothing of it is like vLLM's.

    POST /complete {"text": "Sky:", "max": 2, "best": 3, "only": [326, 327], "heat": 0.0, "stream": false}

    200 {"said": " blue", "of": "stub", "steps": [{"piece": " blue", "p": -0.1, "best": [[" blue", -0.1], …]}]}
    422 {"ok": false, "why": "…"}

A stream says all that was said so far in each event, has each event's own steps, and just ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from stubserver.engine.behaviour import Behaviour
from stubserver.engine.generate import Generation, Step
from stubserver.engine.terms import EngineRequest
from stubserver.errors import GenerationError, NotFoundError, RequestError, UnrecordedError, UnscriptedError
from stubserver.sampling import stages
from stubserver.sampling.logprobs import PositionLogprobs
from stubserver.sampling.params import SamplingParams
from stubserver.serving.asked import Asked, Prompt
from stubserver.serving.body import read_json, validate
from stubserver.serving.dialect import Dialect, Endpoint, Route
from stubserver.serving.sending import event_stream, json_reply
from stubserver.serving.start import start_generations
from stubserver.serving.state import ServerState, server_state
from stubserver.serving.wire import Choice, Document, Position, TopLogprob, Wire


class Body(BaseModel):
    text: str
    max: int = Field(1, ge=1)
    best: int = 0
    only: list[int] | None = None
    heat: float = 0.0
    stream: bool = False


_BODY = TypeAdapter(Body)


@dataclass(slots=True)
class TallyAsked(Asked):
    body: Body


def understand(state: ServerState, body: Any) -> TallyAsked:
    parsed, model = validate(body, _BODY), state.models[0]
    prompt = Prompt(model.tokenizer.encode(parsed.text), parsed.text, tokenized=True)
    params = SamplingParams(
        temperature=parsed.heat, max_tokens=parsed.max, logprobs=parsed.best, allowed_token_ids=parsed.only
    )
    asked = EngineRequest(model, params, prompt_len=len(prompt.token_ids))
    return TallyAsked(model, [prompt], [asked], parsed)


async def complete(request: Request) -> Response:
    body = await read_json(request)
    asked = understand(server_state(request), body)
    (generation,) = start_generations(request.scope, body, asked)
    if asked.body.stream:
        return event_stream(_events(generation), WIRE)
    generation.check()
    return json_reply(_document(generation, [step for _, step in generation.steps()]))


def _events(generation: Generation) -> Iterator[Document]:
    generation.check()
    said = ""
    for _, step in generation.steps():
        said += step.text
        yield {**_document(generation, [step]), "said": said}


def _document(generation: Generation, steps: Sequence[Step]) -> Document:
    positions = [position for step in steps for position in step.logprobs or ()]
    return {
        "said": "".join(step.text for step in steps),
        "of": generation.model.name,
        "steps": [_step(position, generation.params.logprobs or 0) for position in positions],
    }


def _step(position: PositionLogprobs, best: int) -> Document:
    shown = list(zip(position.tokens, position.logprobs, strict=True))
    return {"piece": shown[0][0], "p": shown[0][1], "best": [list(each) for each in shown[:best]]}


def error_reply(error: RequestError) -> tuple[int, Any]:
    status = {NotFoundError: 410, UnscriptedError: 410, UnrecordedError: 410, GenerationError: 503}
    return status.get(type(error), 422), {"ok": False, "why": error.message}


def read_choices(document: Document) -> list[Choice]:
    steps = document.get("steps")
    return [Choice(0, [_read_step(step) for step in steps])] if isinstance(steps, list) else []


def write_choices(document: Document, choices: Sequence[Choice]) -> Document:
    (choice,) = choices
    steps = None if choice.positions is None else [_write_step(position) for position in choice.positions]
    return {**document, "steps": steps}


def _read_step(step: Document) -> Position:
    return Position(step["piece"], step["p"], [TopLogprob(*each) for each in step["best"]])


def _write_step(position: Position) -> Document:
    best = [[each.token, each.logprob] for each in position.top or ()]
    return {"piece": position.token, "p": position.logprob, "best": best}


WIRE = Wire(
    error_reply=error_reply,
    read_choices=read_choices,
    write_choices=write_choices,
    read_model=lambda document: document.get("of"),
)

TALLY = Dialect(
    name="tally",
    endpoints=(
        Endpoint("POST", "/complete", "Go on", lambda: Route(complete, Body, None, understand), generates=True),
    ),
    behaviour=Behaviour(
        server="tally",
        version="1",
        stages=lambda params, settings: (stages.allowed_token_ids, *(() if params.greedy else (stages.temperature,))),
        mode=lambda params, settings: "processed_logprobs",
    ),
    wire=WIRE,
)
