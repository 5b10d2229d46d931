"""What the handlers share: the served models and the settings of the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from starlette.requests import Request

from stubserver.config.profile import Profile
from stubserver.config.settings import Settings
from stubserver.engine.generate import Generation
from stubserver.engine.model import Model
from stubserver.errors import NotFoundError
from stubserver.serving.http_stats import HttpStats

T = TypeVar("T")

STARTED = time.time()
"""When counting began, in seconds since 1970."""

STATE_KEY: Final = "stubserver.state"
"""Where the scope of a request has the state."""


class ServerState:
    """What is served. in_flight: requests that are being answered. http: what went over HTTP."""

    def __init__(self, settings: Settings, models: Sequence[Model], http: HttpStats) -> None:
        self.settings = settings
        self.in_flight = 0
        self.http = http
        self._streaming: WeakKeyDictionary[Generation, str] = WeakKeyDictionary()
        self._at_start = [(model, model.script) for model in models]
        self.serve(models)

    def serve(self, models: Sequence[Model]) -> None:
        """Serve these models in place of the present ones, until the next `reset`."""
        self.models = models
        self._made: dict[Callable[[ServerState], Any], Any] = {}
        self._by_name = {name: model for model in models for name in model.settings.served_model_name}
        self.heeds_everything = not any(model.settings.profile.treatments for model in models)
        """Whether no model has a profile that treats a parameter otherwise than the server does."""
        self.marks_recorded = any(model.settings.unrecorded != "allow" for model in models)
        """Whether a model's script is made from recordings, and replies say what they rest on."""

    def reset(self) -> None:
        """The models, their scripts, counters and seeds as at start."""
        for model, script in self._at_start:
            model.script = script
            model.reset()
        self.http.reset()
        self.serve([model for model, _ in self._at_start])

    def follow(self, generation: Generation, request_id: str) -> None:
        """Know a stream's generation by the id that its prompt has in the engine, for as long as it lives."""
        self._streaming[generation] = request_id

    def abort(self, request_ids: Collection[str]) -> None:
        """End the streams of these ids; a full reply is made in one go, so that it can't be met on its way."""
        for generation, request_id in list(self._streaming.items()):
            if request_id in request_ids:
                generation.aborted = True

    def once(self, make: Callable[[ServerState], T]) -> T:
        """What `make` makes of this state: made once, and anew when other models are served."""
        made: T | None = self._made.get(make)
        if made is None:
            made = self._made[make] = make(self)
        return made

    def find_model(self, name: str | None) -> Model:
        """The model of this name; no name means the first one. Raises NotFoundError."""
        if not name:
            return self.models[0]
        model = self._by_name.get(name)
        if model is None:
            known = list(self._by_name)
            raise NotFoundError(
                f"There is no model {name!r}; served are {', '.join(known)}.",
                code="unknown_model",
                parameter="model",
                value=name,
                known=known,
            )
        return model

    @property
    def rules_have_faults(self) -> bool:
        """Whether a rule of the served scripts has faults."""
        return any(model.script.has_faults for model in self.models)

    @property
    def default_model(self) -> str:
        """The name of the model that a request means which names none."""
        return self.models[0].name

    def decode(self, model: Any, token_id: int) -> str:
        """A token's text to a model; `model` is the name that a reply gives itself, if it does."""
        return self._named(model).tokenizer.decode([token_id])

    def profile_of(self, model: Any) -> Profile:
        """How the model treats parameters that a request means by this."""
        return self._named(model).settings.profile

    def _named(self, name: Any) -> Model:
        """The model of this name; the first one if there is none."""
        return self._by_name.get(name, self.models[0]) if isinstance(name, str) else self.models[0]


def server_state(request: Request) -> ServerState:
    """The state of the app that got this request."""
    state: ServerState = request.scope[STATE_KEY]
    return state
