"""What all tests share: pytester, for the tests of the pytest plugin and of the documentation; runs of the contract."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["pytester"]

settings.register_profile("any machine", deadline=None)  # a busy one takes its time
settings.load_profile("any machine")

PYTEST_OPTIONS = ["-p", "stubserver.testing.plugin", "-p", "no:cacheprovider", "--tb=no"]

PYTHONPATH = os.environ.get("PYTHONPATH")

Outcomes = dict[str, dict[str, str]]
"""Class → clause → passed, failed or not applicable."""


@pytest.fixture(scope="session")
def run_contract(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Outcomes]:
    """`run_contract(*classes)`: one pytest run of these adapters, all of one module; what its report says of them."""

    def run(*adapters: type) -> Outcomes:
        module = adapters[0].__module__
        classes = [f"class Test{each.__name__}({module}.{each.__name__}):\n    pass\n" for each in adapters]
        file = tmp_path_factory.mktemp("contract") / "test_adapters.py"
        file.write_text("\n".join([f"import {module}\n", *classes]))
        path = os.pathsep.join([str(Path(str(sys.modules[module].__file__)).parent), *filter(None, [PYTHONPATH])])
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *PYTEST_OPTIONS, file],
            cwd=file.parent,
            env={**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
        )
        found = read_report(done.stdout)
        assert len(found) == len(adapters), done.stdout + done.stderr
        return found

    return run


def read_report(output: str) -> Outcomes:
    """The lines of the report at the end of a run."""
    found: Outcomes = {}
    for line in output.splitlines():
        if match := re.fullmatch(r"\S+::Test(\w+): .*\d+ passed.*", line):
            clauses = found.setdefault(match[1], {})
        elif match := re.match(r"  (\w+) +(passed|failed|not applicable)", line):
            clauses[match[1]] = match[2]
    return found
