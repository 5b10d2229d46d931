"""The command line: `serve`, `record` and `cassette`. Flags come from the declaration of the settings."""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

from stubserver import __version__
from stubserver.config import vllm_flags
from stubserver.config.settings import ENV_PREFIX, Settings, flag_name, resolve_settings, shown_default
from stubserver.errors import ConfigError, SettingsError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from stubserver.app import ModelSetup


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 0, or 2 for a setting or a script that can't be used."""
    parser = make_parser()
    parsed, unknown = parser.parse_known_args(as_vllm_writes(sys.argv[1:] if argv is None else argv))
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}\n{_hint(unknown)}")
    arguments = vars(parsed)
    run_command = COMMANDS[arguments.pop("command")]
    try:
        return run_command(arguments)
    except ConfigError as error:
        print(f"stubserver: {error}", file=sys.stderr)
        return 2


def serve(flags: dict[str, Any]) -> int:
    """Serve a script in the foreground. Raises ConfigError, before the port opens where it can."""
    script = _script_of(flags, dict(os.environ))
    _say_what_has_no_effect(flags)
    with _all_is_kept():
        # Imported here, so that `--help` and a mistyped flag answer at once.
        from stubserver.app import build_app, load
        from stubserver.server import run, run_workers

        sys.path.insert(0, "")  # `module:callable` may stand in the working directory
        load_script = partial(load, flags=flags, environ=dict(os.environ))
        served = load_script(script)
        app = build_app(served, load_script)
    about = "; ".join(map(_about, served))
    player = app.state.server.player
    if player is not None:
        about = f"{player.about}; {about}" if player.to_script else player.about
    settings = served[0].settings

    def on_ready(url: str) -> None:
        print(f"stubserver ready at {url}: {about}", flush=True)

    try:
        if settings.workers == 1:
            run(app, settings, on_ready)
        else:
            run_workers(partial(_make_app, script, flags, dict(os.environ)), settings, on_ready)
    finally:
        if player is not None:
            player.close()
    return 0


def _script_of(flags: dict[str, Any], environ: Mapping[str, str]) -> str | None:
    """The script that was meant, taken out of the flags; what names a model instead becomes its served name."""
    given: str | None = flags.pop("script")
    script: str | None = flags.pop("script_flag", None)
    model = flags.pop("model", None)
    if given is not None and script is None and _names_script(given):
        script = given
    elif given is not None:
        model = given
    if model is not None and f"{ENV_PREFIX}SERVED_MODEL_NAME" not in environ:
        flags.setdefault("served_model_name", [model])
    return script


def _names_script(given: str) -> bool:
    """Whether it is a file's name or module:callable, and not a model's: those have no such endings, and a slash."""
    is_callable = ":" in given and ("/" not in given or ".py:" in given)
    return is_callable or Path(given).suffix.lower() in (".yaml", ".yml", ".json", ".npz", ".py")


def _say_what_has_no_effect(flags: dict[str, Any]) -> None:
    """One line, for the flags of `vllm serve` that are accepted only; they are taken out. Raises SettingsError."""
    for name in vllm_flags.REFUSED:
        if _VLLM + name in flags:
            raise SettingsError(f"--{name}: vLLM has this flag, stubserver can't do what it does; leave it out")
    without = [name for name in flags if name.startswith(_VLLM)]
    if without:
        named = ", ".join(f"--{name.removeprefix(_VLLM)}" for name in without)
        print(f"stubserver: accepted without effect: {named}", file=sys.stderr, flush=True)
    for name in without:
        del flags[name]


@contextmanager
def _all_is_kept() -> Iterator[None]:
    """Without garbage collection: of what is made at start nothing is garbage, and looking for it takes 7 % of it."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _make_app(script: str | None, flags: dict[str, Any], environ: dict[str, str]) -> ASGIApp:
    """The app of one worker."""
    from stubserver.app import build_app, load

    load_script = partial(load, flags=flags, environ=environ)
    return build_app(load_script(script), load_script)


def record(flags: dict[str, Any]) -> int:
    """Stand in front of a real server and write down what passes. Raises ConfigError."""
    from stubserver.dialects.vllm.wire.codec import WIRE
    from stubserver.playback.player import RecordingApp, open_player
    from stubserver.server import run

    settings = resolve_settings(flags, os.environ, {"record_mode": "once"})
    if not settings.cassette:
        raise SettingsError("--cassette is missing: the file to record to")
    player = open_player(settings, WIRE, lambda line: print(line, file=sys.stderr, flush=True))
    assert player is not None
    try:
        app = RecordingApp(player)
        run(app, settings, lambda url: print(f"stubserver ready at {url}: {player.about}", flush=True))
    finally:
        player.close()
    return 0


def cassette(arguments: dict[str, Any]) -> int:
    """Look into cassettes, and make other files of them. The status is 1 if `check` or `verify` finds something."""
    from stubserver.dialects.vllm.wire.codec import WIRE
    from stubserver.playback.commands import run_cassette_command

    lines, status = run_cassette_command(arguments.pop("cassette_command"), wire=WIRE, **arguments)
    for line in lines:
        print(line)
    return status()


COMMANDS = {"serve": serve, "record": record, "cassette": cassette}


def _about(model: ModelSetup) -> str:
    settings, loaded = model
    return (
        f"model {settings.served_model_name[0]}, tokenizer {loaded.tokenizer.name} "
        f"({loaded.script.vocab_size} tokens), {settings.logprobs_mode}, script {loaded.source}"
    )


def make_parser() -> argparse.ArgumentParser:
    """The parser; a flag that isn't given leaves no trace, so that other sources of the setting count."""
    parser = argparse.ArgumentParser(prog="stubserver", description="A test double of vLLM's OpenAI-compatible server.")
    parser.add_argument("--version", action="version", version=f"stubserver {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve_parser = commands.add_parser(
        "serve",
        help="serve a script",
        description="Serve a script, or the built-in demo.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        epilog=f"Every flag is an environment variable too ({ENV_PREFIX}MAX_LOGPROBS for --max-logprobs) "
        "and a key of the script file (max_logprobs).",
    )
    serve_parser.add_argument(
        "script",
        nargs="?",
        default=None,
        metavar="SCRIPT",
        help="a YAML or JSON file, an .npz table, module:callable or file.py:callable; none: the built-in demo. "
        "A model, as `vllm serve` has it here, is the name to serve; its script is named by "
        "--script",
    )
    serve_parser.add_argument(
        "--script", dest="script_flag", metavar="SCRIPT", help="the script, beside a model's name"
    )
    serve_parser.add_argument("--model", metavar="NAME", help="the same as a model in place of SCRIPT")
    _add_settings(serve_parser, Settings.model_fields)
    _add_vllm_flags(serve_parser)
    _add_record(commands)
    _add_cassette(commands)
    return parser


def _add_settings(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    for name in names:
        annotation = Settings.model_fields[name].annotation
        parser.add_argument(flag_name(name), dest=name, help=_help(name), **_argument(annotation))


_VLLM = "vllm:"
"""Before the names of flags of `vllm serve` that are no settings."""


def _add_vllm_flags(parser: argparse.ArgumentParser) -> None:
    """Those without effect, and those that are refused; not in the help."""
    kinds: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
        (vllm_flags.VALUES, {}),
        (vllm_flags.LISTS, {"nargs": "*"}),
        (vllm_flags.SWITCHES, {"action": argparse.BooleanOptionalAction}),
        (vllm_flags.REFUSED, {"nargs": "*"}),
    )
    for names, how in kinds:
        for name in names:
            options = (f"--{name}", *vllm_flags.ALIASES.get(name, ()))
            parser.add_argument(*options, dest=_VLLM + name, help=argparse.SUPPRESS, **how)


def as_vllm_writes(argv: Sequence[str]) -> list[str]:
    """The arguments with the spellings that vLLM takes too: `--max_model_len`, `--speculative-config.method ngram`.

    The parts of an object become one flag with its JSON.
    """
    plain: list[str] = []
    objects: dict[str, dict[str, Any]] = {}
    words = iter(argv)
    for word in words:
        if not word.startswith("--"):
            plain.append(word)
            continue
        name, equals, value = word.partition("=")
        flag, *path = name.split(".")
        flag = flag.replace("_", "-")
        if path:
            place = objects.setdefault(flag, {})
            for key in path[:-1]:
                place = place.setdefault(key, {})
            place[path[-1]] = _json_or_text(value if equals else next(words, ""))
        else:
            plain.append(flag + equals + value)
    return [*plain, *(f"{flag}={json.dumps(value)}" for flag, value in objects.items())]


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def _hint(unknown: Sequence[str]) -> str:
    """What an unknown flag may have meant."""
    known = ["--script", "--model", *map(flag_name, Settings.model_fields)]
    known += [f"--{name}" for names in (vllm_flags.VALUES, vllm_flags.SWITCHES, vllm_flags.LISTS) for name in names]
    for word in unknown:
        near = get_close_matches(word.partition("=")[0], known, 1)
        if near:
            return f"did you mean {near[0]}?"
    return "`stubserver --help` lists commands, `stubserver serve --help` all flags"


RECORD_SETTINGS = (
    *("upstream", "cassette", "record_mode", "host", "port"),
    *("cassette_on_miss", "cassette_repeat", "cassette_pace", "cassette_ignore", "cassette_redact"),
)


def _add_record(commands: Any) -> None:
    parser = commands.add_parser(
        "record",
        help="record a real server",
        description="Stand in front of a real server: pass on every request, and write it and its reply down. "
        "--record-mode is `once` unless given.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    _add_settings(parser, RECORD_SETTINGS)


CASSETTE_COMMANDS = {
    "show": "what was asked and answered, a line each; with --full the bodies too",
    "stats": "how many exchanges, of what kind and size",
    "check": "whether the file can be read, and whether secrets are in it; status 1 if not so",
    "redact": "take secrets out of the file, in place",
    "convert": "make a cassette of a vcrpy YAML, HAR or JSONL recording",
    "to-script": "make a script of the recorded logprobs, which answers other requests too",
    "verify": "ask the real server again, and report what has changed; status 1 if anything has",
}


def _add_cassette(commands: Any) -> None:
    parser = commands.add_parser("cassette", help="look into a cassette, check, convert, verify it")
    parsers = parser.add_subparsers(dest="cassette_command", required=True, metavar="COMMAND")
    made = {name: parsers.add_parser(name, help=text, description=text) for name, text in CASSETTE_COMMANDS.items()}
    for each in made.values():
        each.add_argument("file", metavar="FILE")
    made["show"].add_argument("--full", action="store_true", help="the bodies too")
    for name in ("check", "redact", "convert"):
        made[name].add_argument(
            "--cassette-redact", nargs="+", default=[], metavar="REGEX", help=_help("cassette_redact")
        )
    for name in ("convert", "to-script"):
        made[name].add_argument("--output", required=True, metavar="FILE", help="the file to write")
    made["to-script"].add_argument("--tokenizer", default="builtin", help=_help("tokenizer"))
    made["to-script"].add_argument("--logprobs-mode", default="raw_logprobs", help="the mode of the recorded server")
    made["verify"].add_argument("--upstream", required=True, metavar="URL", help=_help("upstream"))
    made["verify"].add_argument("--api-key", default="", help="sent as bearer token; the cassette holds none")
    made["verify"].add_argument(
        "--tolerance", type=float, default=1e-4, help="how far a number may move (default: 0.0001)"
    )


def _argument(annotation: Any) -> dict[str, Any]:
    """How argparse takes a setting of this type. Values are checked where all sources meet, in `resolve_settings`."""
    if annotation is bool:
        return {"action": argparse.BooleanOptionalAction}
    if get_origin(annotation) is tuple:
        return {"nargs": "+", "metavar": "NAME"}
    choices = [str(value) for value in get_args(annotation)] if get_origin(annotation) is not dict else []
    return {"metavar": "{" + ",".join(choices) + "}" if choices else "VALUE"}


def _help(name: str) -> str:
    field = Settings.model_fields[name]
    return f"{field.description} (default: {shown_default(name)})".replace("%", "%%")


if __name__ == "__main__":
    sys.exit(main())
