"""Who wants to know what a request comes to in the engine: middlewares that have put themselves into its scope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from starlette.types import Scope

from stubserver.engine.generate import Generation, Recorder
from stubserver.engine.model import Model
from stubserver.sampling.params import SamplingParams
from stubserver.script.context import Answer, ScriptRequest

OBSERVERS: Final = "stubserver.observers"
"""Where the scope of a request has its observers."""


class Observer(Protocol):
    """Hears of each prompt of a request, in this order; `answered` and `started` only if the script has an answer."""

    def asked(self, model: Model, request: ScriptRequest, params: SamplingParams) -> None:
        """A prompt is about to be put to the script."""
        ...

    def answered(self, request: ScriptRequest, answer: Answer) -> Recorder | None:
        """What the script says to it. Returned is what is to be told of every step, if anything is."""
        ...

    def started(self, generation: Generation) -> None:
        """The generation that follows."""
        ...


def observe(scope: Scope, observer: Observer) -> None:
    """Let an observer know of a request from now on."""
    scope.setdefault(OBSERVERS, []).append(observer)


def observers_of(scope: Scope) -> Sequence[Observer]:
    """Those who want to know."""
    found: Sequence[Observer] = scope.get(OBSERVERS, ())
    return found
