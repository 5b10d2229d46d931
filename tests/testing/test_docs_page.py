"""docs/testing.md: every example on the page runs, and fails where the page says so."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stubserver.app import create_app
from stubserver.testing import Stub, StubServer
from stubserver.testing.contract import CLAUSES, LabelReadbackContract, LabelRequest
from stubserver.testing.rules import RuleChain

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
(OUTPUT,) = re.findall(r"^```text\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)

FAILING = 1
"""The second example is the one with the missing label."""

(CONTRACT,) = [number for number, example in enumerate(EXAMPLES) if "LabelReadbackContract" in example]
"""The example that has a test a clause, of which one is not applicable."""


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example(pytester: pytest.Pytester, number: int) -> None:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makepyfile(EXAMPLES[number])
    result = pytester.runpytest("-p", "no:cacheprovider")
    failed = int(number == FAILING)
    if number == CONTRACT:
        result.assert_outcomes(passed=len(CLAUSES) - 1, skipped=1)
    else:
        result.assert_outcomes(passed=1 - failed, failed=failed)
    if failed:
        shown = "\n".join(line.removeprefix("E").strip() for line in result.outlines)
        assert OUTPUT.strip() in shown


@pytest.fixture(scope="module")
def server() -> Iterator[StubServer]:
    with StubServer() as server:
        yield server


def test_commands(server: StubServer) -> None:
    """One after the other, as a reader would."""
    if shutil.which("curl") is None:
        pytest.skip("curl isn't installed")
    replies = []
    for command in COMMANDS:
        shell = command.replace("http://127.0.0.1:8000", server.url)
        run = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True, timeout=30)
        replies.append(run.stdout)
    script, completion, requests, explanation, faults, cleared = replies
    assert json.loads(script) == {"models": ["stub"]}
    assert json.loads(completion)["choices"][0]["text"] == " The"
    (entry,) = json.loads(requests)["requests"]
    assert entry["reply"] == json.loads(completion)
    (prompt,) = json.loads(explanation)["prompts"]
    assert (prompt["rule"], len(prompt["raw"])) == ('"answer" (rules[0])', 3)
    assert [label["processed_logit"] - label["raw_logit"] for label in prompt["labels"]] == [1.0]
    assert json.loads(faults)["faults"][0]["status"] == 429
    assert cleared == "{}{}"
    assert server.requests == []


@pytest.mark.parametrize("endpoint", [each for each in create_app().state.endpoints if each.path.startswith("/stub/")])
def test_every_control_route_is_on_the_page(endpoint: object) -> None:
    method, path = endpoint.method, endpoint.path  # type: ignore[attr-defined]
    assert re.search(rf"^\| `{method}( {path}`|` or `\w+ {path}`)|^\| `\w+` or `{method} {path}`", PAGE, re.MULTILINE)


@pytest.mark.parametrize("name", [name for kind in (Stub, StubServer, RuleChain) for name in vars(kind)])
def test_every_public_name_is_on_the_page(name: str) -> None:
    if name.startswith("_") or name in ("start", "stop"):
        return
    assert re.search(rf"\b{name}\b", PAGE)


@pytest.mark.parametrize("clause", CLAUSES)
def test_every_clause_is_on_the_page(clause: str) -> None:
    assert len(re.findall(rf"^\| `{clause}` \|", PAGE, re.MULTILINE)) == 2  # what it is, and what clients do


@pytest.mark.parametrize("name", [name for kind in (LabelRequest, LabelReadbackContract) for name in vars(kind)])
def test_every_name_of_the_contract_is_on_the_page(name: str) -> None:
    if not name.startswith(("_", "test_")):
        assert re.search(rf"`{name}[`(]", PAGE)


@pytest.mark.parametrize("fixture", ["stubserver", "make_stubserver", "stubserver_in_process", "stubserver_env"])
def test_every_fixture_is_on_the_page(fixture: str) -> None:
    assert re.search(rf"^\| `{fixture}[`(]", PAGE, re.MULTILINE)


@pytest.mark.parametrize("option", ["--stub-script", "--stub-logprobs-mode", "--journal", "--control any"])
def test_every_option_is_on_the_page(option: str) -> None:
    assert f"`{option}" in PAGE
