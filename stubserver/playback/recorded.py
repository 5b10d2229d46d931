"""The header that says whether a reply's values are exact, where the script was made from recordings."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Final, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = b"x-stub-recorded"
EXACT = "exact"

GENERATIONS: Final = "stubserver.generations"
"""Where the scope of a request has a list, if endpoints are to put what they generate there."""


class Noted(Protocol):
    """What has to be known of a generation.

    notes: what its values rest on, which may grow as long as it runs; None where that doesn't matter.
    """

    notes: Sequence[str] | None


class Served(Protocol):
    """What has to be known of what is served; another script may change it."""

    @property
    def marks_recorded(self) -> bool:
        """Whether a model's script is made from recordings."""
        ...


class RecordedMiddleware:
    """Says in a header whether a reply's values are exact: `exact`, or what they rest on."""

    def __init__(self, app: ASGIApp, served: Served) -> None:
        self._app = app
        self._served = served

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer the request, the header added where a recorded script took part."""
        answer = self._mark if self._served.marks_recorded else self._app
        return answer(scope, receive, send)

    async def _mark(self, scope: Scope, receive: Receive, send: Send) -> None:
        generations: list[Noted] = []

        async def send_marked(message: Message) -> None:
            notes = [generation.notes for generation in generations if generation.notes is not None]
            if message["type"] == "http.response.start" and notes and message["status"] == 200:
                found = "; ".join(dict.fromkeys(note for each in notes for note in each)) or EXACT
                message = {**message, "headers": [*message["headers"], (HEADER, found.encode("ascii", "replace"))]}
            await send(message)

        scope[GENERATIONS] = generations
        await self._app(scope, receive, send_marked)
