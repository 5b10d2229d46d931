"""Profiles at work: a request is made into what a server with other habits would have understood of it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Collection, Iterator
from typing import Any, Protocol

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from stubserver.asgi import json_object, read_body, replaying
from stubserver.config.profile import Profile, Treatment
from stubserver.errors import SchemaError


class Served(Protocol):
    """What has to be known of what is served; another script may change it."""

    @property
    def heeds_everything(self) -> bool:
        """Whether no model has a profile that treats a parameter."""
        ...

    def profile_of(self, model: Any) -> Profile:
        """The profile of the model that a request means by this."""
        ...


class ProfileMiddleware:
    """Changes the bodies of requests to the given paths, or answers 400; stands aside if everything is heeded."""

    def __init__(self, app: ASGIApp, served: Served, paths: Collection[str]) -> None:
        self._app = app
        self._served = served
        self._paths = paths

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Let the request through as its profile has it."""
        if self._served.heeds_everything or scope["type"] != "http" or scope["path"] not in self._paths:
            return self._app(scope, receive, send)
        return self._treat(scope, receive, send)

    async def _treat(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = await read_body(receive)
        body = json_object(raw)
        profile = self._served.profile_of(body.get("model"))
        refusal = _refusal(body, profile, scope["path"])
        if refusal is not None:
            await JSONResponse(refusal, 400)(scope, receive, send)
            return
        if _change(body, profile, scope["path"]):
            raw = json.dumps(body).encode()
            length = (b"content-length", str(len(raw)).encode())
            others = [header for header in scope["headers"] if header[0] != b"content-length"]
            scope = {**scope, "headers": [*others, length]}
        await self._app(scope, replaying(raw, receive), send)


def _concerned(body: dict[str, Any], profile: Profile, path: str) -> Iterator[tuple[dict[str, Any], str, Treatment]]:
    """(mapping, parameter, treatment) of what is in the body and isn't simply heeded."""
    sampling = body.get("sampling_params")  # of /inference/v1/generate
    for mapping in (body, sampling if isinstance(sampling, dict) else {}):
        for name in [name for name in mapping if name in profile.treatments]:
            treatment = profile.treatments[name]
            if treatment.concerns(mapping[name], path):
                yield mapping, name, treatment


def _refusal(body: dict[str, Any], profile: Profile, path: str) -> dict[str, Any] | None:
    """The error body for the first parameter that isn't taken."""
    for mapping, name, treatment in _concerned(body, profile, path):
        if treatment.treat == "reject":
            return _error_body(name, mapping[name], treatment)
    return None


def _error_body(name: str, value: Any, treatment: Treatment) -> dict[str, Any]:
    """vLLM's own, for a field that it doesn't know or a value that is too large, and on top what the treatment says."""
    if treatment.above is None:
        problem = {"type": "extra_forbidden", "loc": f"body.{name}", "msg": "Extra inputs are not permitted"}
    else:
        message = f"Input should be less than or equal to {treatment.above}"
        problem = {"type": "less_than_equal", "loc": f"body.{name}", "msg": message}
    error = SchemaError(f"1 validation error:\n  {problem}", parameter=f"body.{name}").body()["error"]
    known = {"{parameter}": name, "{value}": json.dumps(value), "{above}": str(treatment.above)}
    return {"error": {**error, **{key: _filled(part, known) for key, part in treatment.error.items()}}}


def _filled(text: Any, known: dict[str, str]) -> Any:
    if isinstance(text, str):
        for placeholder, value in known.items():
            text = text.replace(placeholder, value)
    return text


def _change(body: dict[str, Any], profile: Profile, path: str) -> bool:
    """Take out what is ignored and lower what is too large; whether there was any such."""
    concerned = list(_concerned(body, profile, path))
    for mapping, name, treatment in concerned:
        if treatment.treat == "ignore":
            del mapping[name]
        else:
            mapping[name] = treatment.above
    return bool(concerned)
