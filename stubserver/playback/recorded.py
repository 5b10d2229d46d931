"""The header that says whether a reply's values are exact, where the script was made from recordings."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stubserver.engine.generate import Generation
from stubserver.engine.model import Model
from stubserver.sampling.params import SamplingParams
from stubserver.script.context import Answer, ScriptRequest
from stubserver.serving.observers import observe
from stubserver.serving.state import ServerState

HEADER = b"x-stub-recorded"
EXACT = "exact"


class _Notes:
    """An observer that knows what a request's generations rest on. Each list may grow as long as they run."""

    def __init__(self) -> None:
        self.found: list[Sequence[str]] = []

    def asked(self, model: Model, request: ScriptRequest, params: SamplingParams) -> None:
        """Of no interest."""

    def answered(self, request: ScriptRequest, answer: Answer) -> None:
        """Of no interest."""

    def started(self, generation: Generation) -> None:
        """Remember its notes, if it has any to make."""
        if generation.notes is not None:
            self.found.append(generation.notes)


class RecordedMiddleware:
    """Says in a header whether a reply's values are exact: `exact`, or what they rest on."""

    def __init__(self, app: ASGIApp, served: ServerState) -> None:
        self._app = app
        self._served = served

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer the request, the header added where a recorded script took part."""
        answer = self._mark if self._served.marks_recorded else self._app
        return answer(scope, receive, send)

    async def _mark(self, scope: Scope, receive: Receive, send: Send) -> None:
        notes = _Notes()
        observe(scope, notes)

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start" and notes.found and message["status"] == 200:
                found = "; ".join(dict.fromkeys(note for each in notes.found for note in each)) or EXACT
                message = {**message, "headers": [*message["headers"], (HEADER, found.encode("ascii", "replace"))]}
            await send(message)

        await self._app(scope, receive, send_marked)
