"""Between the outside and the routes: chooses the faults of a request, and lets its reply out through them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Collection
from typing import Any, Protocol

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stubserver.asgi import CONTROL_PREFIX, find_header, json_object, read_body, replaying
from stubserver.dialects.vllm.wire.codec import WIRE
from stubserver.engine.generate import Generation
from stubserver.engine.model import Model
from stubserver.errors import ScriptError, ValidationError
from stubserver.faults.board import FaultBoard
from stubserver.faults.choice import Answered, Choice
from stubserver.faults.fault import Fault, load_faults
from stubserver.faults.replies import dead_engine
from stubserver.faults.reply import Reply
from stubserver.sampling.params import SamplingParams
from stubserver.script.context import Answer, ScriptRequest
from stubserver.serving.observers import observe

HEADER = "X-Stub-Faults"
"""The header with which a request brings faults of its own: a JSON list."""

_HEADER = HEADER.lower().encode()


class Served(Protocol):
    """What has to be known of what is served."""

    @property
    def rules_have_faults(self) -> bool:
        """Whether there are faults on rules."""
        ...

    @property
    def default_model(self) -> str:
        """The name of the model that a request means which names none."""
        ...

    def decode(self, model: Any, token_id: int) -> str:
        """A token's text; `model` is what a reply says of itself."""
        ...


class _Answers:
    """An observer that remembers what the script said to each prompt of a request."""

    def __init__(self) -> None:
        self.answers: Answered = []

    def asked(self, model: Model, request: ScriptRequest, params: SamplingParams) -> None:
        """Of no interest."""

    def answered(self, request: ScriptRequest, answer: Answer) -> None:
        """Remember it."""
        self.answers.append((request, answer))

    def started(self, generation: Generation) -> None:
        """Of no interest."""


class FaultMiddleware:
    """Lets replies out as the faults have it; stands aside if there are none.

    generating: the paths where faults act that name none.
    """

    def __init__(self, app: ASGIApp, board: FaultBoard, served: Served, generating: Collection[str]) -> None:
        self._app = app
        self._board = board
        self._served = served
        self._generating = generating

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Let the request in, and its reply out."""
        header = find_header(scope, _HEADER)
        idle = header is None and self._board.is_empty and not self._served.rules_have_faults
        if idle or scope["type"] != "http" or scope["path"].startswith(CONTROL_PREFIX):
            return self._app(scope, receive, send)
        if self._board.engine_is_dead:
            return dead_engine(scope, receive, send)
        try:
            own = _read_header(header) if header is not None else ()
        except ScriptError as error:
            return JSONResponse(WIRE.error_reply(ValidationError(str(error)))[1], 400)(scope, receive, send)
        choice = Choice(self._board, scope["path"], own, self._generating)
        return self._answer(choice, scope, receive, send)

    async def _answer(self, choice: Choice, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        if choice.needs_body:
            body = await read_body(receive)
            receive = replaying(body, receive)
        choice.before_handler(self._request(scope, body))
        hearer = _Answers()
        observe(scope, hearer)
        answered = hearer.answers
        in_place = choice.plan.in_place
        if in_place is not None:
            await read_body(receive)  # a connection that is closed with data unread is reset, at a moment of its own
        reply: Reply | None = None

        async def sending(message: Message) -> None:
            nonlocal reply
            if message["type"] == "http.response.start":
                choice.at_reply(answered)
                reply = Reply(choice.plan, self._served.decode, scope, receive, send)
                late = choice.plan.in_place
                if late is not None and late is not in_place:
                    answer, reply = reply, None  # what the handler sends goes nowhere
                    await late(scope, receive, answer.send)
                    return
            if reply is not None:
                await reply.send(message)

        await (in_place or self._app)(scope, receive, sending)

    def _request(self, scope: Scope, raw: bytes) -> ScriptRequest:
        """What is known of a request before it is handled: everything but its prompts."""
        body = json_object(raw)
        model = body.get("model") or self._served.default_model
        return ScriptRequest(scope["path"], model, "", (), body, Headers(scope=scope))


def _read_header(header: str) -> tuple[Fault, ...]:
    """Raises ScriptError."""
    try:
        specs = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise ScriptError(f"isn't JSON: {error}", HEADER) from None
    return load_faults(specs, HEADER)
