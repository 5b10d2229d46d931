"""A model on the six tokens of T6, or on 512, and its answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stubserver.config.settings import Settings
from stubserver.dialects.vllm.behaviour import VLLM_0_32_0
from stubserver.engine.generate import Generation, Step
from stubserver.engine.model import Model
from stubserver.engine.terms import EngineRequest
from stubserver.sampling.params import SamplingParams
from stubserver.sampling.processors import CustomProcessor
from stubserver.script.context import ScriptRequest
from stubserver.script.file.load import Source, load_script

FIXTURES = Path(__file__).parents[2] / "fixtures"

A, B, SPACE_A, SPACE_B, STARS, EOS = range(6)
T6_LOGITS = {"A": 0.5, "B": 1.5, " A": 3.0, " B": 4.0, " **": 6.0, "</s>": -1.0}
T6_STEP = {"logits": T6_LOGITS}


def t6_model(*steps: Mapping[str, Any], then: str = "repeat", **settings: Any) -> Model:
    """A T6 model with these steps; without any, its usual row at every one."""
    return model(
        {"tokenizer": str(FIXTURES / "t6"), "rules": [{"steps": list(steps) or [T6_STEP], "then": then}]}, **settings
    )


def says(*token_ids: int) -> Mapping[str, Any]:
    """Steps that say these tokens, by a wide margin."""
    return {"tokens": list(token_ids)}


def model(script: Source, custom_processors: Sequence[CustomProcessor] = (), **settings: Any) -> Model:
    loaded = load_script(script)
    return Model(Settings(**settings), loaded.tokenizer, loaded.script, VLLM_0_32_0, custom_processors)


def generation(
    model: Model,
    prompt: Sequence[int] = (A,),
    *,
    constraint: tuple[str, Any] | None = None,
    forced: Sequence[Sequence[int]] = (),
    **params: Any,
) -> Generation:
    """Greedy unless the parameters say otherwise."""
    request = ScriptRequest("/v1/completions", "stub", model.tokenizer.decode(prompt), prompt, {}, {})
    wanted = SamplingParams(**{"temperature": 0.0, **params})
    made = Generation(
        EngineRequest(model, wanted, constraint, prompt_len=len(prompt)), request, model.script.bind(request), forced
    )
    made.check()
    return made


@dataclass
class Output:
    """All steps of one choice, joined."""

    token_ids: list[int]
    text: str
    finish_reason: str | None
    stop_reason: int | str | None


def outputs(generation: Generation) -> list[Output]:
    """The choices, in order."""
    steps: dict[int, list[Step]] = {}
    for index, step in generation.steps():
        steps.setdefault(index, []).append(step)
    return [_join(steps[index]) for index in sorted(steps)]


def output(model: Model, prompt: Sequence[int] = (A,), **params: Any) -> Output:
    """The only choice of a request."""
    (only,) = outputs(generation(model, prompt, **params))
    return only


def _join(steps: Sequence[Step]) -> Output:
    assert all(step.finish_reason is None for step in steps[:-1])
    token_ids = [token_id for step in steps for token_id in step.token_ids]
    return Output(token_ids, "".join(step.text for step in steps), steps[-1].finish_reason, steps[-1].stop_reason)
