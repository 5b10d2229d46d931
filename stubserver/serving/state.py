"""What the handlers share: the served models and the settings of the server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from starlette.requests import Request

from stubserver.config.profile import Profile
from stubserver.config.settings import Settings
from stubserver.engine.generate import Generation
from stubserver.engine.model import Model
from stubserver.errors import NotFoundError, PermissionDeniedError
from stubserver.faults.active import ActiveFaults
from stubserver.faults.fault import Fault
from stubserver.journal.journal import Journal
from stubserver.playback.player import Player

T = TypeVar("T")

_HAS_FAULTS = attrgetter("script.has_faults")

STATE_KEY: Final = "stubserver.state"
"""Where the scope of a request has the state."""

LoadModels = Callable[[Any], tuple[Sequence[Model], Sequence[Fault]]]
"""A script, in any form that create_app takes, → its models, and the faults of the server. Raises ConfigError."""


class ServerState:
    """Made once by create_app.

    in_flight: requests that are being answered. journal, player: None if there is none. faults: what goes wrong with
    replies.
    """

    def __init__(
        self,
        settings: Settings,
        models: Sequence[Model],
        faults: Sequence[Fault],
        load_models: LoadModels,
        player: Player | None = None,
    ) -> None:
        self.settings = settings
        self.player = player
        self.faults = ActiveFaults(faults)
        self.in_flight = 0
        self._streaming: WeakKeyDictionary[Generation, str] = WeakKeyDictionary()
        self.journal = Journal(settings.journal_size) if settings.journal else None
        self._load_models = load_models
        self._at_start = [(model, model.script) for model in models]
        self._serve(models)

    def load(self, script: Any) -> None:
        """Serve this script in place of the present one, until the next `reset`. Raises ConfigError."""
        models, faults = self._load_models(script)
        self._serve(models)
        self.faults.use(faults)

    def reset(self) -> None:
        """As at start: the scripts, the faults, the counters, the seeds, the cassette; and nothing in the journal."""
        for model, script in self._at_start:
            model.script = script
            model.reset()
        self._serve([model for model, _ in self._at_start])
        self.faults.reset()
        if self.journal is not None:
            self.journal.clear()
        if self.player is not None:
            self.player.rewind()

    def follow(self, generation: Generation, request_id: str) -> None:
        """Know a stream's generation by the id that its prompt has in vLLM's engine, for as long as it lives."""
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

    def _serve(self, models: Sequence[Model]) -> None:
        self.models = models
        self._made: dict[Callable[[ServerState], Any], Any] = {}
        self._by_name = {name: model for model in models for name in model.settings.served_model_name}
        self.heeds_everything = not any(model.settings.profile.treatments for model in models)
        """Whether no model has a profile that treats a parameter otherwise than vLLM does."""
        self.marks_recorded = any(model.settings.unrecorded != "allow" for model in models)
        """Whether a model's script is made from recordings, and replies say what they rest on."""

    def find_model(self, name: str | None) -> Model:
        """The model of this name; no name means the first one. Raises NotFoundError."""
        if not name:
            return self.models[0]
        model = self._by_name.get(name)
        if model is None:
            message = f"The model `{name}` does not exist. Valid aliases: {', '.join(self._by_name)}."
            raise NotFoundError(message, parameter="model")
        return model

    @property
    def rules_have_faults(self) -> bool:
        """Whether a rule of the served scripts has faults."""
        return any(map(_HAS_FAULTS, self.models))

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


def scale_out_state(request: Request) -> ServerState:
    """The state, for a route that is only there with --enable-scale-out. Raises PermissionDeniedError."""
    state = server_state(request)
    if not state.settings.enable_scale_out:
        raise PermissionDeniedError(
            "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
        )
    return state
