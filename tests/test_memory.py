"""What is remembered between requests: bounded, the least recently used goes first, and one switch turns it off."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stubserver
from stubserver import memory
from stubserver.memory import Memo, remembered, remembering

PACKAGE = Path(stubserver.__file__).parent

OTHER_CACHES = {
    "engine/grammar/xgrammar/bindings.py": "a compiled module, which a process can load once",
    "tokenizer/hf.py": "the built-in tokenizer: data of the package, read once",
}
"""File → why it has a cache outside of the room."""


def test_the_least_recently_used_goes_first() -> None:
    memo: Memo[str, int] = Memo(2)
    memo.keep("a", 1)
    memo.keep("b", 2)
    assert memo.find("a") == 1
    memo.keep("c", 3)
    assert [memo.find(key) for key in "abc"] == [1, None, 3]


def test_a_result_that_is_kept_again_takes_no_place_of_another() -> None:
    memo: Memo[str, int] = Memo(2)
    for result in (1, 2, 3):
        memo.keep("a", result)
        memo.keep("b", result)
    assert dict(memo) == {"a": 3, "b": 3}


def test_a_switched_off_memory_keeps_nothing() -> None:
    memo: Memo[str, int] = Memo(2)
    with memory.switched_off():
        memo.keep("a", 1)
    assert memo.find("a") is None


def test_functions_remember_unless_it_is_switched_off() -> None:
    calls: list[int] = []

    def double(number: int) -> int:
        calls.append(number)
        return 2 * number

    kept, decorated = remembering(double, 8), remembered(most=8)(double)
    assert [kept(1), kept(1), decorated(2), decorated(2)] == [2, 2, 4, 4]
    assert calls == [1, 2]
    calls.clear()
    with memory.switched_off():
        plain = remembering(double, 8)
        assert [plain(1), plain(1), decorated(2), decorated(2)] == [2, 2, 4, 4]
    assert calls == [1, 1, 2, 2]


@pytest.mark.parametrize(("value", "remembers"), [("off", False), ("on", True), (None, True)])
def test_the_environment_switches_it_for_a_process(value: str | None, remembers: bool) -> None:
    code = "from stubserver.memory import Memo; memo = Memo(1); memo.keep(1, 2); print(memo.find(1))"
    environ = {name: each for name, each in os.environ.items() if name != "STUBSERVER_MEMORY"}
    given = environ if value is None else {**environ, "STUBSERVER_MEMORY": value}
    found = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ("2" if remembers else "None")


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nobody_remembers_elsewhere(path: Path) -> None:
    """functools' caches are for memory.py; a cached_property belongs to its object, and goes with it."""
    name = str(path.relative_to(PACKAGE))
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "functools"
        for alias in node.names
        if alias.name in ("cache", "lru_cache")
    }
    assert not found or name == "memory.py" or name in OTHER_CACHES
