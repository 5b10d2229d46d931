"""The control routes, /stub/*: what a test in any language does to the server that it tests against."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from stubserver.control.controls import Controls
from stubserver.control.explain import DEFAULT_TOP, explain_body
from stubserver.errors import ConfigError, NotFoundError, PermissionDeniedError, RequestError, ScriptError
from stubserver.journal.journal import Journal
from stubserver.keys.document import Document, parse_document
from stubserver.serving.body import read_json
from stubserver.serving.dialect import Endpoint, Route

RUNS_CODE = ("callable", "logits_processors")
"""Keys of a script that name code, which no client may have run."""

Act = Callable[[Controls, Request], Awaitable[Response]]


def control_endpoints(controls: Controls) -> tuple[Endpoint, ...]:
    """The control routes of one server."""
    return tuple(
        Endpoint(method, path, summary, partial(Route, partial(_if_allowed, controls, act)))
        for method, path, summary, act in CONTROL_ROUTES
    )


async def _if_allowed(controls: Controls, act: Act, request: Request) -> Response:
    """For those only whom the setting `control` lets in."""
    allowed = controls.served.settings.control
    if allowed == "loopback" and not _is_loopback(request):
        raise PermissionDeniedError(
            f"{request.url.path} answers clients on the server's own machine only; --control any lets others in."
        )
    return await act(controls, request)


async def list_requests(controls: Controls, request: Request) -> Response:
    """The journal, the oldest request first. Query: `path`, `rule` (a part of its name), `last` (how many)."""
    journal, query = _journal(controls), request.query_params
    entries = journal.entries()
    if "path" in query:
        entries = [entry for entry in entries if entry.path == query["path"]]
    if "rule" in query:
        entries = [entry for entry in entries if query["rule"] in (entry.rule or "")]
    if "last" in query:
        entries = entries[max(0, len(entries) - _count(request, "last", 0)) :]
    described = [entry.describe() for entry in entries]
    return _reply({"requests": described, "forgotten": journal.forgotten})


async def clear_requests(controls: Controls, request: Request) -> Response:
    """Forget the journal's requests."""
    _journal(controls).clear()
    return _reply({})


async def put_script(controls: Controls, request: Request) -> Response:
    """Serve the body, a script in JSON or YAML, until the next reset."""
    try:
        controls.load(_document(await request.body(), is_json="json" in request.headers.get("content-type", "")))
    except ConfigError as error:
        raise RequestError(str(error)) from error
    return _reply({"models": [model.name for model in controls.served.models]})


async def put_faults(controls: Controls, request: Request) -> Response:
    """The body, a list of faults, in place of the server's present ones."""
    specs = await read_json(request)
    if not isinstance(specs, list):
        raise RequestError("The body has to be a list of faults; an empty one for none.")
    try:
        controls.faults.replace(specs)
    except ConfigError as error:
        raise RequestError(str(error)) from error
    return _reply({"faults": controls.faults.describe()})


async def reset(controls: Controls, request: Request) -> Response:
    """Everything as at start."""
    controls.reset()
    return _reply({})


async def explain(controls: Controls, request: Request) -> Response:
    """A dry run of the body. Query: `top`, how many of the best tokens to show; `path`, where the body would go."""
    body = await read_json(request)
    top = _count(request, "top", DEFAULT_TOP)
    return _reply(explain_body(controls, body, request.scope["headers"], top, request.query_params.get("path")))


CONTROL_ROUTES: tuple[tuple[str, str, str, Act], ...] = (
    ("GET", "/stub/requests", "The journal: requests, replies, and what led to them", list_requests),
    ("DELETE", "/stub/requests", "Forget them", clear_requests),
    ("PUT", "/stub/script", "Serve another script, until the next reset", put_script),
    ("PUT", "/stub/faults", "Have these faults and no others", put_faults),
    ("POST", "/stub/reset", "Script, journal, faults, counters and seeds as at start", reset),
    ("GET", "/stub/explain", "Which rule would answer this body, and with what values", explain),
    ("POST", "/stub/explain", "The same", explain),
)
"""(method, path, summary, what it does)."""


def _is_loopback(request: Request) -> bool:
    try:
        return request.client is not None and ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def _journal(controls: Controls) -> Journal:
    if controls.journal is None:
        raise NotFoundError("The server keeps no journal; start it with --journal.")
    return controls.journal


def _count(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()):
        raise RequestError(f"{name} has to be a whole number from 0, got {text!r}.", parameter=name)
    return int(text)


def _document(body: bytes, *, is_json: bool) -> Document:
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScriptError(f"isn't UTF-8 text: {error}", "script") from None
    document = parse_document(text, "script", Path.cwd(), is_json=is_json)
    for model in _models(document.data):
        for key in RUNS_CODE:
            if key in model:
                raise ScriptError(
                    f"{key} names code, which can't be sent over HTTP: start the server with it", "script"
                )
    return document


def _models(data: Any) -> list[dict[str, Any]]:
    """The script's mapping and those of its models, as far as they are any."""
    if not isinstance(data, dict):
        return []
    models = data.get("models")
    return [data, *(each for each in (models if isinstance(models, list) else []) if isinstance(each, dict))]


def _reply(content: Any) -> Response:
    try:
        encoded = orjson.dumps(content)
    except TypeError:  # a lone surrogate or a huge number that a request had
        encoded = json.dumps(content).encode()
    return Response(encoded, media_type="application/json")
