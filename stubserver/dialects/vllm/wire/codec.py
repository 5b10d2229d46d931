"""vLLM's wire as one value: what faults, the journal, playback and assertions read and write its replies with."""

from __future__ import annotations

from typing import Any, cast

from stubserver.dialects.vllm.wire import errors, positions, recorded
from stubserver.dialects.vllm.wire.logprobs import MASKED
from stubserver.errors import RequestError
from stubserver.serving.wire import Framing, Wire


class VllmWire:
    """The `Wire` protocol for the shapes of every route of vLLM's that has choices."""

    framing = Framing(done=b"data: [DONE]\n\n")
    masked = MASKED

    def error_reply(self, error: RequestError) -> tuple[int, Any]:
        """(status, body) of what answers a request that is refused."""
        return errors.error_reply(error)

    def http_error(self, status: int, detail: str) -> Any:
        """The body where there is no such path, or another method is meant."""
        return errors.http_error(status, detail)

    def status_body(self, status: int, message: str) -> Any:
        """The body of a status that a test has chosen."""
        return errors.status_body(status, message)

    def dead_reply(self, path: str) -> tuple[int, Any]:
        """(status, body) of a server whose engine is dead."""
        return errors.dead_reply(path)

    read_choices = staticmethod(positions.read_choices)
    fold = staticmethod(positions.fold)
    read_request = staticmethod(recorded.read_request)
    read_endings = staticmethod(recorded.read_endings)
    read_token_id = staticmethod(recorded.read_token_id)


# The rest of the protocol is written on the branch `wire`.
WIRE = cast(Wire, VllmWire())
