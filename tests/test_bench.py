"""The benchmark's parts that measure nothing. Nothing here is timed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[1] / "bench"


def load_module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


figures = load_module("figures")
load = load_module("load")
Figure, Goal = figures.Figure, figures.Goal

RATE = Figure(
    "label_read", "rate", "requests/s", [500.0, 900.0, 700.0], "bare", [1000.0, 1000.0, 2000.0], Goal("≥", 0.5)
)
MEMORY = Figure("memory", "held", "MB", [80.0], goal=Goal("≤", 70, of_value=True))


def test_ratios_are_taken_pair_by_pair() -> None:
    assert figures.ratios(RATE) == [0.5, 0.9, 0.35]
    assert figures.summarize(figures.ratios(RATE)) == (0.35, 0.5, 0.9)
    assert figures.ratios(MEMORY) == []


def test_ratios_need_as_many_references() -> None:
    with pytest.raises(ValueError, match="shorter"):
        figures.ratios(RATE._replace(reference_values=[1.0]))


def test_a_goal_is_about_the_median() -> None:
    assert figures.is_met(RATE) is True
    assert figures.is_met(RATE._replace(goal=Goal("≥", 0.51))) is False
    assert figures.is_met(RATE._replace(goal=None)) is None
    assert figures.is_met(MEMORY) is False


def test_results_table() -> None:
    lines = figures.results_table([RATE, MEMORY]).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert cells[2] == [
        "label_read",
        "rate",
        "requests/s",
        "700",
        "1,000 (bare)",
        "0.35",
        "0.50",
        "0.90",
        "≥ 0.5",
        "met",
    ]
    assert cells[3] == ["memory", "held", "MB", "80", "", "", "", "", "≤ 70 MB", "missed"]
    assert len({len(line) for line in lines}) == 1


def test_a_saved_run_comes_back() -> None:
    saved = json.loads(json.dumps(figures.to_json([RATE, MEMORY])))
    assert figures.to_json(figures.from_json(saved)) == saved
    assert figures.from_json(saved)[0] == RATE


def test_comparison_is_of_ratios_or_else_of_values() -> None:
    faster = RATE._replace(values=[1000.0, 1000.0, 1000.0])
    new = RATE._replace(name="not there then")
    lines = figures.comparison_table([RATE, MEMORY], [faster, MEMORY._replace(values=[40.0]), new]).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert cells[2:] == [
        ["label_read", "rate", "ratio", "0.50", "1.00", "+100%"],
        ["memory", "held", "MB", "80", "40", "-50%"],
    ]


def test_the_own_client_sees_where_an_answer_ends() -> None:
    known = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    for whole in known, chunked:
        assert [length for length in range(len(whole) + 1) if load.is_complete(whole[:length])] == [len(whole)]


def test_list_names_the_cases() -> None:
    command = [sys.executable, str(BENCH / "run.py"), "--list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = [line.split()[0] for line in listed.splitlines()]
    assert names == ["label_read", "vocabulary", "streaming", "playback", "startup", "in_process", "memory", "rules"]
