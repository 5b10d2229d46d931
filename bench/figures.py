"""Figures: what was measured is summed up, held against a goal, compared with a saved run and shown; pure functions."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

_COMPARISONS = {"≥": operator.ge, "≤": operator.le}


class Summary(NamedTuple):
    """Minimum, median and maximum over the rounds."""

    low: float
    mid: float
    high: float


class Goal(NamedTuple):
    """What the median of the ratios has to reach; with `of_value`, that of the values themselves."""

    sign: str
    limit: float
    of_value: bool = False


class Figure(NamedTuple):
    """One thing measured, a value a round; `reference_values` are those of what it is held against, pair by pair."""

    case: str
    name: str
    unit: str
    values: Sequence[float]
    reference: str = ""
    reference_values: Sequence[float] = ()
    goal: Goal | None = None


def summarize(values: Sequence[float]) -> Summary:
    return Summary(min(values), median(values), max(values))


def ratios(figure: Figure) -> list[float]:
    """Of each round; none without a reference."""
    if not figure.reference:
        return []
    return [value / other for value, other in zip(figure.values, figure.reference_values, strict=True)]


def is_met(figure: Figure) -> bool | None:
    """None without a goal."""
    if figure.goal is None:
        return None
    judged = figure.values if figure.goal.of_value else ratios(figure)
    return bool(_COMPARISONS[figure.goal.sign](median(judged), figure.goal.limit))


def to_json(figures: Iterable[Figure]) -> list[dict[str, Any]]:
    return [figure._asdict() | {"goal": figure.goal and figure.goal._asdict()} for figure in figures]


def from_json(saved: Iterable[Mapping[str, Any]]) -> list[Figure]:
    return [Figure(**{**each, "goal": each["goal"] and Goal(**each["goal"])}) for each in saved]


def results_table(figures: Iterable[Figure]) -> str:
    """Markdown: medians, the ratio's minimum, median and maximum, and the goal."""
    head = ["case", "figure", "unit", "median", "reference", "ratio: min", "median", "max", "goal", ""]
    return table([head, *map(_result_row, figures)])


def _result_row(figure: Figure) -> list[str]:
    reference = f"{show(median(figure.reference_values))} ({figure.reference})" if figure.reference else ""
    spread = [f"{each:.2f}" for each in summarize(ratios(figure))] if figure.reference else ["", "", ""]
    return [
        figure.case,
        figure.name,
        figure.unit,
        show(median(figure.values)),
        reference,
        *spread,
        show_goal(figure),
        {None: "", True: "met", False: "missed"}[is_met(figure)],
    ]


def show_goal(figure: Figure) -> str:
    if figure.goal is None:
        return ""
    unit = f" {figure.unit}" if figure.goal.of_value else ""
    return f"{figure.goal.sign} {figure.goal.limit:g}{unit}"


def comparison_table(then: Iterable[Figure], now: Iterable[Figure]) -> str:
    """Markdown: each figure that both runs have, its median ratio (without a reference: its median) then and now."""
    saved = {(figure.case, figure.name): figure for figure in then}
    rows = [
        _comparison_row(saved[figure.case, figure.name], figure)
        for figure in now
        if (figure.case, figure.name) in saved
    ]
    return table([["case", "figure", "of", "then", "now", "change"], *rows])


def _comparison_row(then: Figure, now: Figure) -> list[str]:
    by_ratio = bool(then.reference and now.reference)
    old, new = (median(ratios(each) if by_ratio else each.values) for each in (then, now))
    change = f"{new / old - 1:+.0%}" if old else ""
    shown = [f"{each:.2f}" if by_ratio else show(each) for each in (old, new)]
    return [now.case, now.name, "ratio" if by_ratio else now.unit, *shown, change]


def show(value: float) -> str:
    """A number with three digits that count, large ones whole."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Markdown that reads well as plain text too; the first row is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])
