"""`stubserver cassette …`: each command as a function, a file in, lines for people out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from stubserver.errors import SettingsError
from stubserver.playback.cassette import Cassette, read_cassette, write_cassette
from stubserver.playback.errors import CassetteError
from stubserver.playback.exchange import Exchange, write_exchange
from stubserver.playback.importers import import_recording
from stubserver.playback.redaction import Redaction
from stubserver.playback.to_script import make_script
from stubserver.playback.upstream import Upstream
from stubserver.playback.verify import verify_cassette
from stubserver.sampling.logprobs import LogprobsMode
from stubserver.serving.wire import Wire

MODES: tuple[LogprobsMode, ...] = ("raw_logprobs", "processed_logprobs")


class Found:
    """Whether a command found something that is wrong: its status is 1 then."""

    def __init__(self) -> None:
        self.anything = False

    def __call__(self) -> int:
        """The exit status, once all lines are out."""
        return int(self.anything)


def run_cassette_command(name: str, file: str, wire: Wire, **options: Any) -> tuple[Iterable[str], Found]:
    """The lines of a command, made as they are read, and its status. Raises ConfigError, maybe while they are read."""
    found = Found()
    if name == "to-script":  # until the branch `wire` is merged, where all commands have it
        options["wire"] = wire
    return _COMMANDS[name](Path(file).expanduser(), found, **options), found


def _show(path: Path, found: Found, full: bool) -> Iterator[str]:
    cassette = read_cassette(path)
    yield _about(cassette)
    for number, exchange in enumerate(cassette.exchanges, 1):
        request, reply = exchange.request, exchange.reply
        kind = f"{len(reply.events)} events, " if reply.events is not None else ""
        size = f"{kind}{len(reply.content)} bytes"
        yield f"{number}: {request.line} → {reply.status} in {reply.seconds:.3f} s, {size}{_prompt(exchange)}"
        if full:
            yield f"   {request.body.decode('utf-8', 'replace')}"
            yield from (f"   {line}" for line in reply.content.decode("utf-8", "replace").splitlines() if line)


def _about(cassette: Cassette) -> str:
    upstream = cassette.upstream
    version = upstream.get("version")
    named = version.get("version") if isinstance(version, dict) else version
    models = upstream.get("models")
    entries = models.get("data", []) if isinstance(models, dict) else []
    names = ", ".join(str(entry.get("id")) for entry in entries if isinstance(entry, dict))
    known = [("recorded from", upstream.get("url")), ("version", named), ("models", names)]
    parts = [f"{label} {value}" for label, value in known if value]
    return f"{cassette.path}: {', '.join(parts) or 'recorded from an unknown server'}"


def _prompt(exchange: Exchange) -> str:
    """The beginning of what was asked, so that lines can be told apart."""
    body = write_exchange(exchange)["request"].get("json")
    if not isinstance(body, dict):
        return ""
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    asked = body.get("prompt", last.get("content") if isinstance(last, dict) else None)
    text = repr(asked)
    return "" if asked is None else f": {text if len(text) <= 60 else text[:60] + '…'}"


def _stats(path: Path, found: Found) -> Iterator[str]:
    cassette = read_cassette(path)
    yield _about(cassette)
    streams = sum(exchange.reply.events is not None for exchange in cassette.exchanges)
    yield f"{len(cassette.exchanges)} exchanges, {streams} of them streams; {path.stat().st_size} bytes"
    counts = Counter((each.request.method, each.request.path, each.reply.status) for each in cassette.exchanges)
    for (method, route, status), count in sorted(counts.items()):
        yield f"{count:6} {method} {route} → {status}"


def _check(path: Path, found: Found, cassette_redact: list[str]) -> Iterator[str]:
    cassette = read_cassette(path)
    redaction = Redaction(cassette_redact)
    yield f"{_about(cassette)}: {len(cassette.exchanges)} exchanges can be read"
    if cassette.unfinished:
        found.anything = True
        yield f"the last line isn't whole ({cassette.unfinished} bytes): that exchange is lost, the others are not"
    for number, exchange in enumerate(cassette.exchanges, 1):
        if redaction.exchange(exchange) != exchange:
            found.anything = True
            yield f"exchange {number} ({exchange.request.line}) holds a secret; `cassette redact` takes it out"


def _redact(path: Path, found: Found, cassette_redact: list[str]) -> Iterator[str]:
    cassette = read_cassette(path)
    redaction = Redaction(cassette_redact)
    cleaned = [redaction.exchange(exchange) for exchange in cassette.exchanges]
    changed = sum(before != after for before, after in zip(cassette.exchanges, cleaned, strict=True))
    write_cassette(path, redaction.value(dict(cassette.header)), cleaned)
    yield f"{path}: secrets taken out of {changed} of {len(cleaned)} exchanges"


def _convert(path: Path, found: Found, output: str, cassette_redact: list[str]) -> Iterator[str]:
    redaction = Redaction(cassette_redact)
    recording = import_recording(path)
    exchanges = [redaction.exchange(exchange) for exchange in recording.exchanges]
    write_cassette(Path(output), redaction.value(dict(recording.header)), exchanges)
    yield f"{output}: {len(exchanges)} exchanges of {path}"
    yield from (f"left out: {note}" for note in recording.left_out)


def _to_script(path: Path, found: Found, output: str, tokenizer: str, logprobs_mode: str, wire: Wire) -> Iterator[str]:
    mode = next((each for each in MODES if each == logprobs_mode), None)
    if mode is None:
        raise SettingsError(
            f"--logprobs-mode: has to be {' or '.join(MODES)}: logits don't say how much the other tokens have "
            f"(got {logprobs_mode!r})"
        )
    made = make_script(read_cassette(path), wire, tokenizer, mode)
    try:
        Path(output).write_text(made.text, encoding="utf-8")
    except OSError as error:
        raise CassetteError(f"{output}: {error.strerror}") from None
    yield f"{output}: {made.rules} rules, {made.steps} steps, {made.tokens} recorded values"
    yield from (f"left out: {note}" for note in made.left_out)


def _verify(path: Path, found: Found, upstream: str, api_key: str, tolerance: float) -> Iterator[str]:
    report = asyncio.run(verify_cassette(read_cassette(path), Upstream(upstream), api_key, tolerance))
    found.anything = bool(report.drift)
    yield from report.drift
    yield f"{report.asked} requests sent again, {report.drifted} replies differ"


_COMMANDS: dict[str, Callable[..., Iterator[str]]] = {
    "show": _show,
    "stats": _stats,
    "check": _check,
    "redact": _redact,
    "convert": _convert,
    "to-script": _to_script,
    "verify": _verify,
}
