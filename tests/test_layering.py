"""Imports point down: which part of the package may know which, and what must not be loaded early."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import stubserver

PACKAGE = Path(stubserver.__file__).parent

LAYERS = [
    {"stubserver"},  # the package itself: its version
    {"memory"},
    {"errors", "headers"},
    {"asgi", "sampling"},
    {"config", "tokenizer"},
    {"script"},
    {"keys"},
    {"engine"},
    {"serving"},
    {"faults", "journal", "profiles", "playback"},
    {"script.file", "dialects"},
    {"control"},
    {"app"},
    {"server"},
    {"testing", "cli"},
    {"__main__"},
]
"""From the bottom up. A part imports from layers below its own; parts of one layer don't know each other."""

HEIGHTS = {part: height for height, layer in enumerate(LAYERS) for part in layer}

THIRD_PARTY = {
    "numpy": {"sampling", "script", "script.file", "engine", "dialects", "testing", "tokenizer"},
    "pydantic": {"config", "keys", "faults", "script.file", "serving", "dialects"},
    "pydantic_core": {"config", "keys", "script.file", "serving", "dialects"},
    "starlette": {"asgi", "serving", "faults", "journal", "profiles", "playback", "dialects", "control", "app"}
    | {"server", "cli", "testing"},
    "tokenizers": {"tokenizer"},
    "jinja2": {"tokenizer"},
    "llguidance": {"engine"},
    "orjson": {"serving", "dialects", "control"},
    "uvicorn": {"server", "testing"},
    "yaml": {"keys", "playback"},
    "httpx": {"playback", "testing"},
    "prometheus_client": {"dialects"},
    "typing_extensions": {"dialects"},
    "pytest": {"testing"},
}
"""Package → the parts that may import it, wherever in a file: HTTP is known from serving upwards only."""

SETTINGS_PACKAGES = {"numpy", "pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"}

MAY_LOAD = {"stubserver": set(), "stubserver.cli": SETTINGS_PACKAGES}
"""Third-party packages that an import may load, so that `--help` and a mistyped flag answer at once."""

LOADS_LATER = {"llguidance", "jinja2", "transformers", "uvicorn", "prometheus_client", "httpx"}
"""What importing the app must not load: a request may never need it."""


def modules() -> dict[str, Path]:
    """Module name → file."""
    paths = {path.relative_to(PACKAGE.parent).with_suffix("").parts: path for path in PACKAGE.rglob("*.py")}
    return {".".join(part for part in parts if part != "__init__"): path for parts, path in paths.items()}


def part_of(module: str) -> str:
    """`stubserver.serving.state` → `serving`; the most special of the parts that it belongs to."""
    names = module.split(".")[1:]
    beginnings = (".".join(names[:length]) for length in range(len(names), 0, -1))
    return next((part for part in beginnings if part in HEIGHTS), names[0] if names else module)


def imported(path: Path) -> Iterator[str]:
    """What a file imports from the package, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "stubserver")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            if node.module == "stubserver":  # `from stubserver import errors` is the part, `__version__` isn't
                names = [alias.name for alias in node.names]
                yield from (f"stubserver.{name}" if name in HEIGHTS else "stubserver" for name in names)
            elif node.module and node.module.startswith("stubserver."):
                yield node.module


def third_party(path: Path) -> set[str]:
    """The packages of others that a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found - sys.stdlib_module_names - {"stubserver"}


def loaded_by(module: str) -> set[str]:
    """The packages that a fresh interpreter has loaded after it imported a module."""
    code = f"import sys; started = set(sys.modules); import {module}; print(*sys.modules.keys() - started)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in run.stdout.split()}


def test_every_part_has_a_layer() -> None:
    assert {part_of(module) for module in modules()} == set(HEIGHTS)


@pytest.mark.parametrize("module", sorted(modules()))
def test_imports_point_down(module: str) -> None:
    """Those for the type checker alone count like any other."""
    part = part_of(module)
    others = {name for name in imported(modules()[module]) if part_of(name) != part}
    assert {name for name in others if HEIGHTS[part_of(name)] >= HEIGHTS[part]} == set()


def test_modules_go_round_in_no_circle() -> None:
    known = modules()
    graph = {name: {each for each in imported(path) if each in known and each != name} for name, path in known.items()}
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError, which names the modules


@pytest.mark.parametrize("module", sorted(modules()))
def test_third_party_imports_stay_in_their_rooms(module: str) -> None:
    packages = third_party(modules()[module])
    assert packages <= set(THIRD_PARTY), "a new dependency: say here who may know of it"
    assert {package for package in packages if part_of(module) not in THIRD_PARTY[package]} == set()


def test_config_knows_no_more_of_sampling_than_the_modes() -> None:
    assert {name for name in imported(PACKAGE / "config" / "settings.py") if part_of(name) == "sampling"} == {
        "stubserver.sampling.logprobs"
    }


@pytest.mark.parametrize("module", MAY_LOAD)
def test_the_command_line_loads_little(module: str) -> None:
    third_party = loaded_by(module) - sys.stdlib_module_names - {"stubserver"}
    # An interpreter's build and extension modules add private ones.
    assert {name for name in third_party if not name.startswith("_")} <= MAY_LOAD[module]


def test_the_app_loads_grammars_and_templates_later() -> None:
    loaded = loaded_by("stubserver.app")
    assert "starlette" in loaded
    assert loaded & LOADS_LATER == set()


def test_the_app_loads_few_of_its_own_rooms() -> None:
    """What a request may never need comes with the first that does: a start is to be quick."""
    code = "import sys, stubserver.app; print(*(name for name in sys.modules if name.startswith('stubserver.')))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    later = {
        "stubserver.control.handlers",
        "stubserver.dialects.vllm.chat.serving",
        "stubserver.dialects.vllm.completions.serving",
        "stubserver.dialects.vllm.structured_outputs",
        "stubserver.engine.grammar.tokens",
        "stubserver.faults.answering",
        "stubserver.journal.journal",
        "stubserver.playback.player",
    }
    assert later <= set(modules())
    assert later & set(run.stdout.split()) == set()
