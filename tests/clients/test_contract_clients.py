"""What public clients make of the contract suite: the table in docs/testing.md is what comes out."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

INSTALL = "pip install 'llm-stubserver[clients]'"
for client in ("anyjev", "transformers", "llm2jev", "jebadiah_decide"):
    pytest.importorskip(client, reason=INSTALL)

from contract_clients import AnyJev, JebadiahDecide, LLM2Jev  # noqa: E402

from stubserver.testing.contract import CLAUSES  # noqa: E402

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")

BY_IDS = {"label_of_several_tokens"}
FAILED = {
    AnyJev: {
        "raw_missing_label_raises",
        "two_ids_with_one_text",
        "byte_tokens",
        "more_labels_than_come_back",
        "top_logprobs_truncated",
        "label_parameters_ignored",
        "not_a_number",
    },
    LLM2Jev: {"top_logprobs_truncated", "not_a_number"},
    JebadiahDecide: {
        "raw_missing_label_raises",
        "two_ids_with_one_text",
        "label_of_several_tokens",
        "byte_tokens",
        "more_labels_than_come_back",
        "top_logprobs_truncated",
        "label_parameters_ignored",
        "not_a_number",
    },
}
NOT_APPLICABLE = {AnyJev: BY_IDS, LLM2Jev: BY_IDS, JebadiahDecide: set()}
DISTRIBUTIONS = {AnyJev: "anyjev", LLM2Jev: "llm2jev", JebadiahDecide: "jebadiah-decide"}


@pytest.fixture(scope="module")
def all_outcomes(run_contract: Callable[..., dict[str, dict[str, str]]]) -> dict[str, dict[str, str]]:
    """Client → clause → outcome, from one run of them all."""
    return run_contract(*FAILED)


@pytest.mark.parametrize("client", FAILED)
def test_client(client: type, all_outcomes: dict[str, dict[str, str]]) -> None:
    outcomes = all_outcomes[client.__name__]
    assert list(outcomes) == list(CLAUSES)
    assert {clause for clause, outcome in outcomes.items() if outcome == "failed"} == FAILED[client]
    assert {clause for clause, outcome in outcomes.items() if outcome == "not applicable"} == NOT_APPLICABLE[client]
    assert outcomes == table()[f"{DISTRIBUTIONS[client]} {version(DISTRIBUTIONS[client])}"]


def table() -> dict[str, dict[str, str]]:
    """Client and version → clause → outcome, as the page has it."""
    section = PAGE.partition("### What public clients do")[2].partition("\n## ")[0]
    rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", section, re.M)
    ]
    head, _, *clauses = rows
    return {
        client: {clause: outcomes[column] for clause, *outcomes in clauses} for column, client in enumerate(head[1:])
    }
