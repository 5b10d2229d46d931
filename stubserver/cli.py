"""The command line: `stubserver serve [SCRIPT]`. Its flags come from the declaration of the settings."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args, get_origin

from stubserver import __version__
from stubserver.config import ENV_PREFIX, Settings, flag_name, shown_default
from stubserver.errors import ConfigError

if TYPE_CHECKING:
    from stubserver.app import Served


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 0, or 2 for a setting or a script that can't be used."""
    arguments = vars(make_parser().parse_args(argv))
    arguments.pop("command")
    script = arguments.pop("script")
    try:
        serve(script, arguments)
    except ConfigError as error:
        print(f"stubserver: {error}", file=sys.stderr)
        return 2
    return 0


def serve(script: str | None, flags: dict[str, Any]) -> None:
    """Serve a script in the foreground. Raises ConfigError, before the port opens where it can."""
    # Imported here, so that `--help` and a mistyped flag answer at once.
    from stubserver.app import build_app, load
    from stubserver.server import run

    sys.path.insert(0, "")  # `module:callable` may stand in the working directory
    served = load(script, flags=flags, environ=os.environ)
    about = "; ".join(map(_about, served))
    app = build_app(served)
    run(app, served[0].settings, lambda url: print(f"stubserver ready at {url}: {about}", flush=True))


def _about(model: Served) -> str:
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
        help="a YAML or JSON file, an .npz table, module:callable or file.py:callable; none: the built-in demo",
    )
    for name, field in Settings.model_fields.items():
        serve_parser.add_argument(flag_name(name), dest=name, help=_help(name), **_argument(field.annotation))
    return parser


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
