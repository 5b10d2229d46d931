"""A request that faults may befall: they are chosen, and its reply goes out through them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Collection, Sequence
from functools import partial

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stubserver.asgi import json_object, read_body, replaying
from stubserver.engine.generate import Generation
from stubserver.engine.model import Model
from stubserver.errors import ScriptError, ValidationError
from stubserver.faults.active import ActiveFaults
from stubserver.faults.fault import Fault, load_faults
from stubserver.faults.in_place import dead_engine
from stubserver.faults.outgoing import OutgoingReply
from stubserver.faults.reply_faults import ReplyFaults
from stubserver.faults.selection import AnsweredPrompts, FaultSelection
from stubserver.sampling.params import SamplingParams
from stubserver.script.context import Answer, ScriptRequest
from stubserver.serving.fault_effects import SCOPE_KEY, FaultEffect
from stubserver.serving.observers import observe
from stubserver.serving.state import ServerState
from stubserver.serving.wire import Wire

HEADER = "X-Stub-Faults"
"""The header with which a request brings faults of its own: a JSON list."""


class _Answers:
    """An observer that remembers what the script said to each prompt of a request."""

    def __init__(self) -> None:
        self.answers: AnsweredPrompts = []

    def asked(self, model: Model, request: ScriptRequest, params: SamplingParams) -> None:
        """Of no interest."""

    def answered(self, request: ScriptRequest, answer: Answer) -> None:
        """Remember it."""
        self.answers.append((request, answer))

    def started(self, generation: Generation) -> None:
        """Of no interest."""


class FaultyApp:
    """Lets replies out as the faults have it. generating: the paths where faults act that name none."""

    def __init__(
        self, app: ASGIApp, active: ActiveFaults, served: ServerState, wire: Wire, generating: Collection[str]
    ) -> None:
        self._app = app
        self._active = active
        self._served = served
        self._wire = wire
        self._generating = generating

    def answer(self, scope: Scope, receive: Receive, send: Send, header: str | None) -> Awaitable[None]:
        """Let the request in, and its reply out. header: the faults that the request brings."""
        if self._active.killer is not None:
            self._report(scope, FaultEffect(self._active.killer.describe(), "server", _line(scope), changed=True))
            return dead_engine(self._wire)(scope, receive, send)
        try:
            own = _read_header(header) if header is not None else ()
        except ScriptError as error:
            status, body = self._wire.error_reply(ValidationError(str(error)))
            return JSONResponse(body, status)(scope, receive, send)
        return self._answer(own, scope, receive, send)

    async def _answer(self, own: Sequence[Fault], scope: Scope, receive: Receive, send: Send) -> None:
        faults = ReplyFaults(self._wire, self._served.decode, _line(scope), partial(self._report, scope))
        selection = FaultSelection(self._active, faults, scope["path"], own, self._generating)
        body = b""
        if selection.needs_body:
            body = await read_body(receive)
            receive = replaying(body, receive)
        selection.before_handler(self._request(scope, body))
        heard = _Answers()
        observe(scope, heard)
        in_place = faults.in_place
        if in_place is not None:
            await read_body(receive)  # a connection that is closed with data unread is reset, at a moment of its own
        reply: OutgoingReply | None = None

        async def sending(message: Message) -> None:
            nonlocal reply
            if message["type"] == "http.response.start":
                selection.at_reply(heard.answers)
                reply = OutgoingReply(faults, self._wire.framing, scope, receive, send)
                late = faults.in_place
                if late is not None and late is not in_place:
                    answer, reply = reply, None  # what the handler sends goes nowhere
                    await late(scope, receive, answer.send)
                    return
            if reply is not None:
                await reply.send(message)

        await (in_place or self._app)(scope, receive, sending)

    def _report(self, scope: Scope, effect: FaultEffect) -> None:
        scope.setdefault(SCOPE_KEY, []).append(effect)
        if self._active.notify is not None:
            self._active.notify(effect)

    def _request(self, scope: Scope, raw: bytes) -> ScriptRequest:
        """What is known of a request before it is handled: everything but its prompts."""
        body = json_object(raw)
        model = body.get("model") or self._served.default_model
        return ScriptRequest(scope["path"], model, "", (), body, Headers(scope=scope))


def _line(scope: Scope) -> str:
    return f"{scope['method']} {scope['path']}"


def _read_header(header: str) -> tuple[Fault, ...]:
    """Raises ScriptError."""
    try:
        specs = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise ScriptError(f"isn't JSON: {error}", HEADER) from None
    return load_faults(specs, HEADER)
