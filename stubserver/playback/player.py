"""Who answers a request: a recording, the real server, or the script behind."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from stubserver.asgi import CONTROL_PREFIX, replaying
from stubserver.config.settings import Settings
from stubserver.errors import SettingsError, UnrecordedError
from stubserver.playback.asgi_messages import read_request, send_error
from stubserver.playback.cassette import Cassette, CassetteWriter, read_cassette
from stubserver.playback.convert import convert_reply, requests_in_other_form
from stubserver.playback.exchange import Exchange, Reply, Request
from stubserver.playback.matching import Library
from stubserver.playback.recorder import Notify, Proxy, Tape
from stubserver.playback.redaction import Redaction
from stubserver.playback.replay import Replayer
from stubserver.playback.upstream import Upstream
from stubserver.serving.wire import Wire

logger = logging.getLogger("stubserver")


@dataclass(frozen=True)
class Player:
    """What a cassette's settings come to. `proxy`: where a miss goes to, if to a real server; `tape`: if recorded.

    plays: whether recordings are played at all. to_script: whether a miss goes to the script.
    """

    cassette: Cassette
    wire: Wire
    library: Library
    replayer: Replayer
    plays: bool = True
    proxy: Proxy | None = None
    tape: Tape | None = None
    to_script: bool = False
    converts: bool = False

    def find(self, request: Request) -> Exchange | None:
        """The recording that answers this request now."""
        if not self.plays:
            return None
        return self.library.find(request) or (self._find_other_form(request) if self.converts else None)

    def _find_other_form(self, request: Request) -> Exchange | None:
        for other in requests_in_other_form(request, self.wire):
            found = self.library.find(other)
            reply = convert_reply(found.reply, request, self.wire) if found else None
            if found and reply:
                return Exchange(found.request, reply)
        return None

    @property
    def about(self) -> str:
        """For people: which cassette, what is in it, and whether it is recorded to."""
        count = len(self.cassette.exchanges)
        what = f"cassette {self.cassette.path} ({count} exchange{'' if count == 1 else 's'})"
        return f"{what}, recording" if self.tape else what

    def rewind(self) -> None:
        """Play every recording from the first one again: what a new test wants."""
        self.library.rewind()

    def close(self) -> None:
        """Let others record to the cassette."""
        if self.tape:
            self.tape.close()


def open_player(settings: Settings, wire: Wire, notify: Notify = logger.info) -> Player | None:
    """The player that the settings ask for, None without a cassette. `notify` hears what is recorded.

    Raises SettingsError and CassetteError.
    """
    if not settings.cassette:
        if settings.record_mode != "none" or settings.cassette_on_miss == "upstream":
            raise SettingsError("--record-mode and --cassette-on-miss need a --cassette")
        return None
    path = Path(settings.cassette).expanduser()
    redaction = Redaction(settings.cassette_redact)
    found = read_cassette(path) if path.exists() else None
    records = _records(settings, found)
    upstream = _upstream(settings, records)
    tape = Tape(_open_writer(settings, path), redaction, upstream, wire, notify) if upstream and records else None
    cassette = found or (Cassette(path) if records else read_cassette(path))
    exchanges = (*cassette.exchanges, *_of_the_header(cassette, wire))
    return Player(
        cassette=cassette,
        wire=wire,
        library=Library(exchanges, settings.cassette_ignore, redaction, settings.cassette_repeat),
        replayer=Replayer(settings.cassette_pace),
        plays=settings.record_mode != "all",
        proxy=Proxy(upstream, wire, tape) if upstream else None,
        tape=tape,
        to_script=not upstream and settings.cassette_on_miss == "script",
        converts=settings.cassette_convert,
    )


def _records(settings: Settings, found: Cassette | None) -> bool:
    """`once` records only what isn't there yet: a cassette with an exchange in it is played, not changed."""
    if settings.record_mode == "once":
        return found is None or not found.exchanges
    return settings.record_mode != "none"


def _upstream(settings: Settings, records: bool) -> Upstream | None:
    if not records and settings.cassette_on_miss != "upstream":
        return None
    if not settings.upstream:
        raise SettingsError("--upstream is missing: the URL of the real server")
    return Upstream(settings.upstream)


def _open_writer(settings: Settings, path: Path) -> CassetteWriter:
    writer = CassetteWriter(path)
    if settings.record_mode == "all":
        writer.start_over()
    return writer


def _of_the_header(cassette: Cassette, wire: Wire) -> Iterator[Exchange]:
    """What clients ask first, and the recorder has asked itself; after real recordings."""
    recorded = {exchange.request.line for exchange in cassette.exchanges}
    for key, path in wire.identity_paths.items():
        request = Request("GET", path)
        if key in cassette.upstream and request.line not in recorded:
            body = json.dumps(cassette.upstream[key], ensure_ascii=False, separators=(",", ":")).encode()
            yield Exchange(request, Reply(200, (("content-type", "application/json"),), body))


class PlaybackMiddleware:
    """Answers from the cassette; what isn't in it goes where the player says."""

    def __init__(self, app: ASGIApp, player: Player) -> None:
        self._app = app
        self._player = player
        self._never_recorded = (*player.wire.own_paths, CONTROL_PREFIX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or pass it on."""
        if scope["type"] != "http" or scope["path"].startswith(self._never_recorded):
            await self._app(scope, receive, send)
            return
        request = await read_request(scope, receive)
        if request is None:
            return
        found = self._player.find(request)
        if found is not None:
            await self._player.replayer.play(found, request, receive, send)
        elif self._player.proxy is not None:
            await self._player.proxy.pass_on(request, raw_path(scope), receive, send)
        elif self._player.to_script:
            await self._app(scope, replaying(request.body, receive), send)
        else:
            await send_error(UnrecordedError(self._explain(request)), self._player.wire, send)

    def _explain(self, request: Request) -> str:
        hints = "--record-mode new_episodes records it; --cassette-on-miss script lets the script answer"
        return f"{self._player.library.explain_miss(request)} ({self._player.cassette.path}; {hints})"


def raw_path(scope: Scope) -> str | None:
    """The path as it was on the wire."""
    raw = scope.get("raw_path")
    return raw.decode("latin-1") if raw else None


class RecordingApp:
    """The app of `stubserver record`: nothing but a player, and the real server's own health behind it."""

    def __init__(self, player: Player) -> None:
        self.player = player
        self._playback = PlaybackMiddleware(self._pass_own_path, player)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._playback(scope, receive, send)

    async def _pass_own_path(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = await read_request(scope, receive)
        if request is None:
            return
        if self.player.proxy is None:
            await send_error(UnrecordedError(f"{request.line} is never recorded"), self.player.wire, send)
        else:
            await self.player.proxy.pass_on(request, raw_path(scope), receive, send, record=False)
