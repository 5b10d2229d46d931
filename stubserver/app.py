"""The ASGI app: settings and script in, Starlette out. Nothing of it exists before create_app is called."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from stubserver.asgi import find_header
from stubserver.config.settings import Settings, resolve_settings
from stubserver.dialects.vllm.endpoints import ENDPOINTS
from stubserver.dialects.vllm.startup_checks import check_startup
from stubserver.engine.model import Model
from stubserver.errors import GenerationError, ScriptError, SettingsError
from stubserver.faults.fault import Fault
from stubserver.faults.middleware import FaultMiddleware
from stubserver.journal.journal import JournalMiddleware
from stubserver.keys.document import Document
from stubserver.playback.player import PlaybackMiddleware, open_player
from stubserver.playback.recorded import RecordedMiddleware
from stubserver.profiles.middleware import ProfileMiddleware
from stubserver.sampling.processors import CustomProcessor
from stubserver.script.file.imported import import_function
from stubserver.script.file.load import LoadedScript, load_models
from stubserver.script.file.models import SERVER_KEYS
from stubserver.serving.dispatch import DispatchMiddleware, http_error_reply, make_answers, make_routes
from stubserver.serving.state import ServerState

logger = logging.getLogger("stubserver")

ScriptSource = str | PathLike[str] | Mapping[str, Any] | Document | Callable[..., Any] | None

GUARDED = ("/v1", "/v2", "/inference", "/cohere", "/stub")
"""Paths that need an API key, if there is one."""

GENERATING = frozenset(endpoint.path for endpoint in ENDPOINTS if endpoint.generates)
"""Paths where profiles and faults act."""


def create_app(script: ScriptSource = None, **settings: Any) -> Starlette:
    """The app that serves a script.

    script: a path (YAML, JSON, .npz, `file.py:callable`), `module:callable`, a callable, a mapping with the keys of a
    script file, or None for the built-in demo. settings: the fields of `Settings`; they win over the script's.
    Environment variables are not read: that is the command line's part. Raises ConfigError.
    """
    load_script = partial(load, flags=settings, environ={})
    return build_app(load_script(script), load_script)


class Served(NamedTuple):
    """One model to be served: its settings, every source of them counted, and what it says."""

    settings: Settings
    loaded: LoadedScript


def load(script: ScriptSource, *, flags: Mapping[str, Any], environ: Mapping[str, str]) -> list[Served]:
    """The models of what was given, at least one. Raises ConfigError."""
    given = resolve_settings(flags, environ, {})
    chosen = given.tokenizer if "tokenizer" in given.model_fields_set else None
    models = load_models(script, tokenizer=chosen)
    if len(models) > 1 and "served_model_name" in given.model_fields_set:
        raise SettingsError("--served-model-name: the script serves several models, and each names itself")
    return [Served(resolve_settings(flags, environ, each.settings, each.source), each) for each in models]


LoadScript = Callable[[ScriptSource], Sequence[Served]]
"""Loads another script with the flags and the environment that this one was loaded with."""


def build_app(served: Sequence[Served], load_script: LoadScript) -> Starlette:
    """The app that serves these models; the server's own settings are those of the first. Raises SettingsError."""
    settings = served[0].settings
    models, faults = build_models(served), served[0].loaded.faults
    player = open_player(settings)
    state = ServerState(settings, models, faults, partial(_load_models, settings, load_script), player)
    answers = make_answers(ENDPOINTS, state)
    app = Starlette(
        routes=make_routes(answers),
        middleware=[*_middleware(state), Middleware(DispatchMiddleware, answers=answers)],
        exception_handlers={HTTPException: _on_http_error, Exception: _on_bug},
    )
    app.state.server = state
    return app


def _middleware(state: ServerState) -> list[Middleware]:
    """What a request passes before it gets to its route, the outermost first."""
    layers: list[Middleware] = []
    if state.settings.api_key:
        layers.append(Middleware(ApiKeyMiddleware, keys=state.settings.api_key))
    if state.journal is not None:
        layers.append(Middleware(JournalMiddleware, journal=state.journal))
    layers.append(Middleware(ProfileMiddleware, served=state, paths=GENERATING))
    layers.append(Middleware(FaultMiddleware, board=state.faults, served=state, generating=GENERATING))
    layers.append(Middleware(RecordedMiddleware, served=state))
    if state.player is not None:
        layers.append(Middleware(PlaybackMiddleware, player=state.player))
    return layers


def _load_models(
    running: Settings, load_script: LoadScript, script: ScriptSource
) -> tuple[list[Model], tuple[Fault, ...]]:
    """The models and the server's faults of another script for a server that runs. Raises ConfigError."""
    served = load_script(script)
    settings, loaded = served[0]
    for key in SERVER_KEYS:
        if key in loaded.settings and getattr(settings, key) != getattr(running, key):
            raise SettingsError(f"{loaded.source}: {key} can't be changed while the server runs")
    return build_models(served), loaded.faults


def build_models(served: Sequence[Served]) -> list[Model]:
    """The models that scripts and settings make. Raises SettingsError."""
    return [build_model(*each) for each in served]


def build_model(settings: Settings, loaded: LoadedScript) -> Model:
    """The model that the script and the settings make. Raises SettingsError."""
    check_startup(settings)
    processors = [_load_processor(name) for name in settings.logits_processors]
    return Model(settings, loaded.tokenizer, loaded.script, processors, loaded.embeddings)


def _load_processor(name: str) -> CustomProcessor:
    """`module:Class` → an object's `apply`; `module:function` → the function itself."""
    try:
        found: Any = import_function(name, Path.cwd())
    except ScriptError as error:
        raise SettingsError(f"--logits-processors: {error}") from error
    processor = getattr(found(), "apply", None) if isinstance(found, type) else found
    if not callable(processor):
        raise SettingsError(f"--logits-processors: {name!r} is a class without apply(logits)")
    return cast(CustomProcessor, processor)


class ApiKeyMiddleware:
    """401 for guarded paths without a bearer token that is one of the keys."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self._app = app
        self._digests = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer it."""
        admitted = not _is_guarded(scope) or self._knows(find_header(scope, b"authorization") or "")
        answer = self._app if admitted else JSONResponse({"error": "Unauthorized"}, status_code=401)
        await answer(scope, receive, send)

    def _knows(self, authorization: str) -> bool:
        scheme, _, token = authorization.partition(" ")
        given = _digest(token)
        known = [secrets.compare_digest(given, digest) for digest in self._digests]
        return scheme.lower() == "bearer" and any(known)


def _is_guarded(scope: Scope) -> bool:
    guarded: bool = scope["type"] == "http" and scope["method"] != "OPTIONS" and scope["path"].startswith(GUARDED)
    return guarded


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return http_error_reply(error)


async def _on_bug(request: Request, error: Exception) -> Response:
    """What nobody foresaw: the client gets vLLM's shape; Starlette raises it on, so that the server logs it."""
    return JSONResponse(GenerationError(f"{type(error).__name__}: {error}").body(), status_code=500)
