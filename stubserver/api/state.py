"""What the handlers share: the served models and the settings of the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from starlette.requests import Request

from stubserver.config import Settings
from stubserver.engine.model import Model
from stubserver.errors import NotFoundError, PermissionDeniedError


class ServerState:
    """Made once by create_app. `in_flight`: requests that are being answered."""

    def __init__(self, settings: Settings, models: Sequence[Model]) -> None:
        self.settings = settings
        self.models = models
        self.in_flight = 0
        self._by_name = {name: model for model in models for name in model.settings.served_model_name}

    def find_model(self, name: str | None) -> Model:
        """The model of this name; no name means the first one. Raises NotFoundError."""
        if not name:
            return self.models[0]
        model = self._by_name.get(name)
        if model is None:
            message = f"The model `{name}` does not exist. Valid aliases: {', '.join(self._by_name)}."
            raise NotFoundError(message, parameter="model")
        return model


def server_state(request: Request) -> ServerState:
    """The state of the app that got this request."""
    return cast(ServerState, request.app.state.server)


def scale_out_state(request: Request) -> ServerState:
    """The state, for a route that is only there with --enable-scale-out. Raises PermissionDeniedError."""
    state = server_state(request)
    if not state.settings.enable_scale_out:
        raise PermissionDeniedError(
            "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
        )
    return state
