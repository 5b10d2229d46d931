"""The ASGI app: settings, a script and a dialect in, Starlette out. Nothing of it exists before it is asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from stubserver import __version__
from stubserver.asgi import CONTROL_PREFIX
from stubserver.config.settings import Settings, resolve_settings
from stubserver.control.controls import Controls
from stubserver.control.endpoints import control_endpoints
from stubserver.dialects.vllm.dialect import VLLM
from stubserver.engine.model import Model
from stubserver.errors import GenerationError, ScriptError, SettingsError
from stubserver.faults.active import ActiveFaults
from stubserver.faults.fault import Fault
from stubserver.faults.middleware import FaultMiddleware
from stubserver.keys.document import Document
from stubserver.playback.recorded import RecordedMiddleware
from stubserver.profiles.middleware import ProfileMiddleware
from stubserver.sampling.processors import CustomProcessor
from stubserver.script.file.imported import import_function
from stubserver.script.file.load import LoadedScript, load_models
from stubserver.script.file.models import SERVER_KEYS
from stubserver.serving.auth import ApiKeyMiddleware
from stubserver.serving.dialect import Dialect, Endpoint, Route
from stubserver.serving.dispatch import DispatchMiddleware, http_error_reply, make_answers, make_routes
from stubserver.serving.http_stats import HttpStats
from stubserver.serving.openapi import OPENAPI_PATH, describe, shows_docs
from stubserver.serving.origins import OriginMiddleware, RootPathMiddleware
from stubserver.serving.request_ids import RequestIdMiddleware
from stubserver.serving.sending import json_reply
from stubserver.serving.state import ServerState
from stubserver.serving.wire import Wire
from stubserver.tokenizer.files import load_chat_template

if TYPE_CHECKING:
    from stubserver.journal.journal import Journal
    from stubserver.playback.player import Player

logger = logging.getLogger("stubserver")

ScriptSource = str | PathLike[str] | Mapping[str, Any] | Document | Callable[..., Any] | None


def create_app(script: ScriptSource = None, *, dialect: Dialect = VLLM, **settings: Any) -> Starlette:
    """The app that serves a script.

    script: a path (YAML, JSON, .npz, `file.py:callable`), `module:callable`, a callable, a mapping with the keys of a
    script file, or None for the built-in demo. dialect: the kind of server. settings: the fields of `Settings`; they
    win over the script's. Environment variables are not read: that is the command line's part. Raises ConfigError.
    """
    load_script = partial(load, flags=settings, environ={})
    return build_app(load_script(script), load_script, dialect)


class ModelSetup(NamedTuple):
    """One model to be served: its settings, every source of them counted, and what it says."""

    settings: Settings
    loaded: LoadedScript


def load(script: ScriptSource, *, flags: Mapping[str, Any], environ: Mapping[str, str]) -> list[ModelSetup]:
    """The models of what was given, at least one. Raises ConfigError."""
    given = resolve_settings(flags, environ, {})
    chosen = given.tokenizer if "tokenizer" in given.model_fields_set else None
    models = load_models(script, tokenizer=chosen)
    if len(models) > 1 and "served_model_name" in given.model_fields_set:
        raise SettingsError("--served-model-name: the script serves several models, and each names itself")
    return [ModelSetup(resolve_settings(flags, environ, each.settings, each.source), each) for each in models]


LoadScript = Callable[[ScriptSource], Sequence[ModelSetup]]
"""Loads another script with the flags and the environment that this one was loaded with."""


def build_app(served: Sequence[ModelSetup], load_script: LoadScript, dialect: Dialect = VLLM) -> Starlette:
    """The app that serves these models; the server's own settings are those of the first. Raises SettingsError."""
    settings = served[0].settings
    controls = Controls(
        dialect,
        ServerState(settings, build_models(served, dialect), HttpStats(dialect.uncounted)),
        ActiveFaults(served[0].loaded.faults),
        _open_journal(settings),
        _open_player(settings, dialect.wire),
        partial(_load_models, settings, load_script, dialect),
    )
    endpoints = (*dialect.endpoints, *(control_endpoints(controls) if settings.control != "off" else ()))
    endpoints = tuple(endpoint for endpoint in endpoints if endpoint.served(settings))
    if shows_docs(settings):
        load_description = partial(_describing, endpoints, dialect)
        endpoints += (Endpoint("GET", OPENAPI_PATH, "This description", load_description, heads=True),)
    answers = make_answers(endpoints, controls.served, dialect.wire)
    app = Starlette(
        routes=make_routes(answers),
        middleware=[
            *_middleware(controls),
            Middleware(DispatchMiddleware, answers=answers, stats=controls.served.http),
        ],
        exception_handlers={
            HTTPException: partial(_on_http_error, dialect),
            Exception: partial(_on_bug, dialect),
        },
    )
    app.state.server, app.state.endpoints = controls, endpoints
    return app


def _open_journal(settings: Settings) -> Journal | None:
    """The journal that the settings ask for; it and the player are loaded where there is one, for a quick start."""
    if not settings.journal:
        return None
    from stubserver.journal.journal import Journal

    return Journal(settings.journal_size)


def _open_player(settings: Settings, wire: Wire) -> Player | None:
    """The player that the settings ask for. Raises SettingsError and CassetteError."""
    if not settings.cassette and settings.record_mode == "none" and settings.cassette_on_miss != "upstream":
        return None
    from stubserver.playback.player import open_player

    return open_player(settings, wire)


def _middleware(controls: Controls) -> list[Middleware]:
    """What a request passes before it gets to its route, the outermost first."""
    dialect, served, settings = controls.dialect, controls.served, controls.served.settings
    wire, generating = dialect.wire, dialect.generating
    layers: list[Middleware] = []
    if settings.enable_request_id_headers:
        layers.append(Middleware(RequestIdMiddleware))
    if settings.root_path:
        layers.append(Middleware(RootPathMiddleware, root_path=settings.root_path))
    if settings.api_key:
        guarded = (*dialect.guarded, *([CONTROL_PREFIX.rstrip("/")] if settings.control != "off" else []))
        layers.append(Middleware(ApiKeyMiddleware, keys=settings.api_key, guarded=guarded))
    layers.append(Middleware(OriginMiddleware, settings=settings))
    if controls.journal is not None:
        from stubserver.journal.middleware import JournalMiddleware

        layers.append(Middleware(JournalMiddleware, journal=controls.journal, wire=wire))
    places = dialect.parameter_places
    layers.append(Middleware(ProfileMiddleware, served=served, paths=generating, places=places, wire=wire))
    layers.append(Middleware(FaultMiddleware, active=controls.faults, served=served, wire=wire, generating=generating))
    layers.append(Middleware(RecordedMiddleware, served=served))
    if controls.player is not None:
        from stubserver.playback.player import PlaybackMiddleware

        layers.append(Middleware(PlaybackMiddleware, player=controls.player))
    return layers


def _load_models(
    running: Settings, load_script: LoadScript, dialect: Dialect, script: ScriptSource
) -> tuple[list[Model], tuple[Fault, ...]]:
    """The models and the server's faults of another script for a server that runs. Raises ConfigError."""
    served = load_script(script)
    settings, loaded = served[0]
    for key in SERVER_KEYS:
        if key in loaded.settings and getattr(settings, key) != getattr(running, key):
            raise SettingsError(f"{loaded.source}: {key} can't be changed while the server runs")
    return build_models(served, dialect), loaded.faults


def build_models(served: Sequence[ModelSetup], dialect: Dialect) -> list[Model]:
    """The models that scripts and settings make. Raises SettingsError."""
    return [build_model(*each, dialect) for each in served]


def build_model(settings: Settings, loaded: LoadedScript, dialect: Dialect) -> Model:
    """The model that the script and the settings make. Raises SettingsError."""
    dialect.check_settings(settings)
    processors = [_load_processor(name) for name in settings.logits_processors]
    tokenizer = loaded.tokenizer
    if settings.chat_template:
        tokenizer = tokenizer.with_chat_template(load_chat_template(settings.chat_template))
    return Model(settings, tokenizer, loaded.script, dialect.behaviour, processors, loaded.embeddings)


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


def _describing(endpoints: Sequence[Endpoint], dialect: Dialect) -> Route:
    """GET /openapi.json."""

    async def show_openapi(request: Request) -> Response:
        return json_reply(describe(endpoints, __version__, dialect.load_error_model()))

    return Route(show_openapi)


async def _on_http_error(dialect: Dialect, request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return http_error_reply(error, dialect.wire)


async def _on_bug(dialect: Dialect, request: Request, error: Exception) -> Response:
    """What nobody foresaw: the client gets the server's shape; Starlette raises it on, so that the server logs it."""
    status, body = dialect.wire.error_reply(GenerationError(f"{type(error).__name__}: {error}"))
    return JSONResponse(body, status_code=status)
