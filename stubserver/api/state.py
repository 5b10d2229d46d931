"""What the handlers share: the served models and the settings of the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import cast

from starlette.requests import Request

from stubserver.config import Settings
from stubserver.engine.model import Model
from stubserver.errors import NotFoundError

VLLM_VERSION = "0.32.0"
"""The vLLM whose behaviour this is; GET /version reports it."""


@dataclass
class ServerState:
    """Made once by create_app. `in_flight`: requests that are being answered."""

    settings: Settings
    model: Model
    in_flight: int = 0

    def __post_init__(self) -> None:
        digest = blake2b(self.settings.model_dump_json(exclude={"api_key"}).encode(), digest_size=4).hexdigest()
        self.system_fingerprint = f"vllm-{VLLM_VERSION}-{digest}"

    def find_model(self, name: str | None) -> Model:
        """The model of this name; no name means the first one. Raises NotFoundError."""
        if name and name not in self.model.served_names:
            aliases = ", ".join(self.model.served_names)
            message = f"The model `{name}` does not exist. Valid aliases: {aliases}."
            raise NotFoundError(message, parameter="model")
        return self.model

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts a request as in flight while it lasts."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1


def server_state(request: Request) -> ServerState:
    """The state of the app that got this request."""
    return cast(ServerState, request.app.state.server)
