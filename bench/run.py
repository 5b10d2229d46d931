"""Measures stubserver against a bare app, side by side: `make bench`, or `python bench/run.py [CASE ...]`."""

from __future__ import annotations

import argparse
import compileall
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cases import CASES, Run
from figures import Figure, comparison_table, from_json, results_table, to_json
from load import default_tool
from servers import PINNED, pin_load

import stubserver

RESULTS = Path(__file__).with_name("results")
VERSIONS = ("llm-stubserver", "starlette", "uvicorn", "uvloop", "httptools", "numpy")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    if arguments.list:
        print("\n".join(f"{name:<12}{case.__doc__}" for name, case in CASES.items()))
        return 0
    about = describe(arguments)
    print("\n".join(f"- {key}: {value}" for key, value in about.items()), flush=True)
    figures = measure(arguments)
    print(f"\n{results_table(figures)}")
    path = save(about, figures)
    print(f"\nSaved as {path}")
    if arguments.compare:
        then = json.loads(arguments.compare.read_text())
        print(f"\nAgainst {then['about']['date']}:\n\n{comparison_table(from_json(then['figures']), figures)}")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; none: all")
    add("--list", action="store_true", help="say what the cases are")
    add("--quick", action="store_true", help="two short rounds: to see that it runs, not to quote")
    add("--rounds", type=int, help="default: 5")
    add("--seconds", type=int, help="of each load; default: 2")
    add("--requests", type=int, help="over which memory must not grow; default: 100000")
    add("--load", choices=["wrk", "own"], default=default_tool(), help="default: wrk where it is installed")
    add("--compare", type=Path, metavar="FILE", help="a saved run, shown beside this one")
    add("--peer", action="append", default=[], metavar="NAME=COMMAND", help="another server; {port} in COMMAND")
    return parser


def measure(arguments: argparse.Namespace) -> list[Figure]:
    pin_load()
    # pip does this to what it installs, the reference's packages too; nothing may have done it to a checkout.
    compileall.compile_dir(Path(stubserver.__file__).parent, quiet=1)
    with TemporaryDirectory() as folder:
        run = Run(
            folder=Path(folder),
            tool=arguments.load,
            rounds=arguments.rounds or (2 if arguments.quick else 5),
            seconds=arguments.seconds or (1 if arguments.quick else 2),
            requests=arguments.requests or (5_000 if arguments.quick else 100_000),
            calls=100 if arguments.quick else 1000,
            peers=dict(peer.split("=", 1) for peer in arguments.peer),
        )
        figures: list[Figure] = []
        for name in arguments.cases or CASES:
            print(f"measuring {name}", file=sys.stderr)
            figures += CASES[name](run)
    return figures


def describe(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the figures depend on."""
    pinned = f"servers on core {PINNED[0]}, load on core {PINNED[1]}" if PINNED else "not pinned"
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "machine": f"{cpu()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}",
        "load": f"{'wrk' if arguments.load == 'wrk' else 'the own client'}, {pinned}",
        "versions": ", ".join(f"{name} {version(name)}" for name in VERSIONS),
    }


def cpu() -> str:
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def save(about: dict[str, Any], figures: Sequence[Figure]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{about['date'].replace(' ', '-').replace(':', '')}.json"
    path.write_text(json.dumps({"about": about, "figures": to_json(figures)}, indent=1, ensure_ascii=False))
    return path


if __name__ == "__main__":
    sys.exit(main())
