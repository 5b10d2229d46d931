"""The contract suite's lines at the end of the pytest run: a line a clause, passed, failed or not applicable."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from stubserver.testing.contract import CLAUSES
from stubserver.testing.contract_properties import CLAUSE, DETAIL

_SKIPPED = "Skipped: "
_NOT_APPLICABLE = "not applicable"
_LONGEST = 100


class Result(NamedTuple):
    """What became of a clause."""

    outcome: str
    detail: str = ""


PASSED = Result("passed")


def write_report(terminal: Any, reports: Iterable[Any]) -> None:
    """Write a line a clause for each class whose tests these are. `terminal`: pytest's terminal reporter."""
    terminal.section("label readback contract")
    for name, results in _by_class(reports).items():
        counts = [
            f"{sum(each.outcome == outcome for each in results.values())} {outcome}" for outcome in _outcomes(results)
        ]
        terminal.line(f"{name}: {', '.join(counts)}")
        width = max(map(len, results))
        for clause in sorted(results, key=CLAUSES.index):
            outcome, detail = results[clause]
            markup = {"passed": {"green": True}, "failed": {"red": True}}.get(outcome, {"yellow": True})
            terminal.line(f"  {clause:<{width}}  {outcome}{detail and ': '}{detail}", **markup)


def _outcomes(results: dict[str, Result]) -> list[str]:
    return list(dict.fromkeys(["passed", "failed", *(result.outcome for result in results.values())]))


def _by_class(reports: Iterable[Any]) -> dict[str, dict[str, Result]]:
    """Class → clause → result. A test has a report for each of its phases, of which the last or a bad one counts."""
    found: dict[str, dict[str, Result]] = {}
    for report in reports:
        if report.outcome not in ("passed", "failed", "skipped"):
            continue  # a plugin's own, such as "rerun"
        properties = dict(report.user_properties)
        results = found.setdefault(report.nodeid.rpartition("::")[0], {})
        clause = properties[CLAUSE]
        if results.get(clause, PASSED).outcome == "passed":
            results[clause] = _result(report, properties.get(DETAIL, ""))
    return found


def _result(report: Any, detail: str) -> Result:
    if hasattr(report, "wasxfail"):
        return Result("xfailed" if report.outcome == "skipped" else "xpassed", report.wasxfail)
    if report.outcome == "skipped":
        reason = report.longrepr[2].removeprefix(_SKIPPED)
        kind, _, why = reason.partition(": ")
        return Result(kind, why) if kind == _NOT_APPLICABLE else Result("skipped", reason)
    return Result(report.outcome, _first_line(report) if report.outcome == "failed" else detail)


def _first_line(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash else str(report.longrepr)
    line = message.removeprefix("AssertionError: ").partition("\n")[0]
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
