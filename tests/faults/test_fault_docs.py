"""The docs of faults and profiles leave nothing out, and their examples load; every kind of fault has a test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from stubserver.app import create_app
from stubserver.config.profile import PARAMETERS, PROFILES, Treatment
from stubserver.faults.keys import KINDS, FaultKeys

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
FAULTS = (DOCS / "faults.md").read_text(encoding="utf-8")
PROFILES_PAGE = (DOCS / "profiles.md").read_text(encoding="utf-8")
TESTS = [
    name
    for path in HERE.glob("test_faults_in_*.py")
    for name in re.findall(r"^def test_(\w+)\(server: Running", path.read_text(encoding="utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_in_the_docs_with_its_keys(kind: str) -> None:
    rows = [line for line in FAULTS.splitlines() if line.startswith(f"| `{kind}` |")]
    assert rows
    named = set(re.findall(r"`(\w+)`", " ".join(row.split("|")[2] for row in rows)))
    own = KINDS[kind].model_fields.keys() - FaultKeys.model_fields.keys() - {"kind"}
    assert own - named == set()


@pytest.mark.parametrize("key", FaultKeys.model_fields)
def test_every_common_key_is_in_the_docs(key: str) -> None:
    assert f"| `{key}` |" in FAULTS


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_test_by_a_client_over_a_socket(kind: str) -> None:
    assert [name for name in TESTS if name == kind or name.startswith(f"{kind}_")]


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_is_in_the_docs_with_its_parameters(name: str) -> None:
    row = next(line for line in PROFILES_PAGE.splitlines() if line.startswith(f"| `{name}` |"))
    assert [parameter for parameter in PROFILES[name] if f"`{parameter}`" not in row] == []


def test_every_parameter_and_treatment_is_in_the_docs() -> None:
    treatments = get_args(Treatment.model_fields["treat"].annotation)
    assert [word for word in (*PARAMETERS, *treatments, *Treatment.model_fields) if word not in PROFILES_PAGE] == []


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", FAULTS + PROFILES_PAGE, re.DOTALL))
def test_examples_load(tmp_path: Path, block: str) -> None:
    (tmp_path / "script.yaml").write_text(block, encoding="utf-8")
    create_app(tmp_path / "script.yaml")
