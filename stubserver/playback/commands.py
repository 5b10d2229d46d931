"""`stubserver cassette …`: each command as a function, a file in, lines for people out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stubserver.asgi import json_object
from stubserver.errors import SettingsError
from stubserver.playback.cassette import Cassette, read_cassette, write_cassette
from stubserver.playback.errors import CassetteError
from stubserver.playback.exchange import Exchange
from stubserver.playback.importers import import_recording
from stubserver.playback.redaction import Redaction
from stubserver.playback.to_script import make_script
from stubserver.playback.upstream import Upstream
from stubserver.playback.verify import verify_cassette
from stubserver.sampling.logprobs import LogprobsMode
from stubserver.serving.wire import Wire

MODES: tuple[LogprobsMode, ...] = ("raw_logprobs", "processed_logprobs")


@dataclass
class Run:
    """One run of a command. found_something: whether something is wrong, so that its status is 1."""

    path: Path
    wire: Wire
    found_something: bool = False

    def status(self) -> int:
        """The exit status, once all lines are out."""
        return int(self.found_something)


def run_cassette_command(name: str, file: str, wire: Wire, **options: Any) -> tuple[Iterable[str], Callable[[], int]]:
    """The lines of a command, made as they are read, and its status. Raises ConfigError, maybe while they are read.

    wire: of the server that was recorded.
    """
    run = Run(Path(file).expanduser(), wire)
    return _COMMANDS[name](run, **options), run.status


def _show(run: Run, full: bool) -> Iterator[str]:
    cassette = read_cassette(run.path)
    yield _about(cassette, run.wire)
    for number, exchange in enumerate(cassette.exchanges, 1):
        request, reply = exchange.request, exchange.reply
        kind = f"{len(reply.events)} events, " if reply.events is not None else ""
        size = f"{kind}{len(reply.content)} bytes"
        yield f"{number}: {request.line} → {reply.status} in {reply.seconds:.3f} s, {size}{_prompt(exchange, run.wire)}"
        if full:
            yield f"   {request.body.decode('utf-8', 'replace')}"
            yield from (f"   {line}" for line in reply.content.decode("utf-8", "replace").splitlines() if line)


def _about(cassette: Cassette, wire: Wire) -> str:
    url, known = cassette.upstream.get("url"), wire.describe_server(cassette.upstream)
    parts = [f"recorded from {url}"] * bool(url) + [f"{label} {value}" for label, value in known.items() if value]
    return f"{cassette.path}: {', '.join(parts) or 'recorded from an unknown server'}"


def _prompt(exchange: Exchange, wire: Wire) -> str:
    """The beginning of what was asked, so that lines can be told apart."""
    asked = wire.last_prompt(json_object(exchange.request.body))
    text = repr(asked)
    return "" if asked is None else f": {text if len(text) <= 60 else text[:60] + '…'}"


def _stats(run: Run) -> Iterator[str]:
    cassette = read_cassette(run.path)
    yield _about(cassette, run.wire)
    streams = sum(exchange.reply.events is not None for exchange in cassette.exchanges)
    yield f"{len(cassette.exchanges)} exchanges, {streams} of them streams; {run.path.stat().st_size} bytes"
    counts = Counter((each.request.method, each.request.path, each.reply.status) for each in cassette.exchanges)
    for (method, route, status), count in sorted(counts.items()):
        yield f"{count:6} {method} {route} → {status}"


def _check(run: Run, cassette_redact: list[str]) -> Iterator[str]:
    cassette = read_cassette(run.path)
    redaction = Redaction(cassette_redact)
    yield f"{_about(cassette, run.wire)}: {len(cassette.exchanges)} exchanges can be read"
    if cassette.unfinished:
        run.found_something = True
        yield f"the last line isn't whole ({cassette.unfinished} bytes): that exchange is lost, the others are not"
    for number, exchange in enumerate(cassette.exchanges, 1):
        if redaction.exchange(exchange) != exchange:
            run.found_something = True
            yield f"exchange {number} ({exchange.request.line}) holds a secret; `cassette redact` takes it out"


def _redact(run: Run, cassette_redact: list[str]) -> Iterator[str]:
    cassette = read_cassette(run.path)
    redaction = Redaction(cassette_redact)
    cleaned = [redaction.exchange(exchange) for exchange in cassette.exchanges]
    changed = sum(before != after for before, after in zip(cassette.exchanges, cleaned, strict=True))
    write_cassette(run.path, redaction.value(dict(cassette.header)), cleaned)
    yield f"{run.path}: secrets taken out of {changed} of {len(cleaned)} exchanges"


def _convert(run: Run, output: str, cassette_redact: list[str]) -> Iterator[str]:
    redaction = Redaction(cassette_redact)
    recording = import_recording(run.path)
    exchanges = [redaction.exchange(exchange) for exchange in recording.exchanges]
    write_cassette(Path(output), redaction.value(dict(recording.header)), exchanges)
    yield f"{output}: {len(exchanges)} exchanges of {run.path}"
    yield from (f"left out: {note}" for note in recording.left_out)


def _to_script(run: Run, output: str, tokenizer: str, logprobs_mode: str) -> Iterator[str]:
    mode = next((each for each in MODES if each == logprobs_mode), None)
    if mode is None:
        raise SettingsError(
            f"--logprobs-mode: has to be {' or '.join(MODES)}: logits don't say how much the other tokens have "
            f"(got {logprobs_mode!r})"
        )
    made = make_script(read_cassette(run.path), run.wire, tokenizer, mode)
    try:
        Path(output).write_text(made.text, encoding="utf-8")
    except OSError as error:
        raise CassetteError(f"{output}: {error.strerror}") from None
    yield f"{output}: {made.rules} rules, {made.steps} steps, {made.tokens} recorded values"
    yield from (f"left out: {note}" for note in made.left_out)


def _verify(run: Run, upstream: str, api_key: str, tolerance: float) -> Iterator[str]:
    report = asyncio.run(verify_cassette(read_cassette(run.path), Upstream(upstream), run.wire, api_key, tolerance))
    run.found_something = bool(report.drift)
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
