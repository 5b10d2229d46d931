"""Whether what a client made of a scene is right; if not, what is wrong with it, for people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, isnan, log, nan
from typing import Any

from stubserver.testing.contract_scenes import Right, Scene

LARGE = 1e9
"""A distance beyond those of logprobs."""

ErrorTypes = type[Exception] | tuple[type[Exception], ...]


@dataclass(frozen=True)
class Label:
    """A label: its text, and its token ids, of which there are several if it is no single token."""

    text: str
    token_ids: tuple[int, ...]


def find_problem(
    scene: Scene,
    labels: Sequence[Label],
    outcome: Any,
    missing_label_errors: ErrorTypes,
    tolerance: float,
) -> str | None:
    """What is wrong with the outcome, an exception or what should be a number a label; None if it is right."""
    if isinstance(outcome, Exception):
        return _problem_with_error(scene, labels, outcome, missing_label_errors)
    values = _numbers(outcome)
    if values is None or len(values) != len(labels):
        return f"The backend returned no list with a number a label, but {outcome!r}."
    if any(_is_right(given, right, scene.exact, tolerance) for given in _as_logprobs(values) for right in scene.values):
        return None
    return _wrong_values(labels, values, scene)


def _problem_with_error(
    scene: Scene,
    labels: Sequence[Label],
    error: Exception,
    missing_label_errors: ErrorTypes,
) -> str | None:
    said = f"The backend raised {type(error).__name__}({str(error)!r})"
    match scene.right:
        case Right.VALUES:
            return f"{said}, although the server gave every label a value."
        case Right.VALUES_OR_RAISE:
            return None
    if not isinstance(error, missing_label_errors):
        return f"{said}, which is none of missing_label_errors. If it means that a label is missing, list it there."
    missing = [label for label in labels if label.text in scene.missing]
    if scene.right is Right.VALUES_OR_MISSING or any(_names(str(error), label) for label in missing):
        return None
    texts = " or ".join(json.dumps(label.text, ensure_ascii=False) for label in missing)
    return f"{said}, which doesn't name the missing label: {texts}, or its id."


def _names(message: str, label: Label) -> bool:
    """Whether the label's text or id stands in the message, not as a part of a longer word or number."""
    written = (label.text.strip(), *map(str, label.token_ids))
    return any(re.search(rf"(?<!\w){re.escape(text)}(?!\w)", message) for text in written)


def _numbers(outcome: Any) -> list[float] | None:
    try:
        return [float(value) for value in outcome]
    except (TypeError, ValueError):
        return None


def _as_logprobs(values: Sequence[float]) -> Iterator[list[float]]:
    """The values as logprobs, whichever of the two they are: logprobs, or probabilities."""
    yield list(values)
    if all(0 <= value <= 1 + 1e-6 for value in values):
        yield [log(value) if value else -inf for value in values]


def _is_right(given: Sequence[float], right: Sequence[float], exact: bool, tolerance: float) -> bool:
    if not all(map(isfinite, given)):
        return False
    shift = 0.0 if exact else _normaliser(given) - _normaliser(right)
    return all(abs(a - shift - b) <= tolerance for a, b in zip(given, right, strict=True))


def _normaliser(logprobs: Sequence[float]) -> float:
    best = max(logprobs)
    return best + log(sum(exp(value - best) for value in logprobs))


def _wrong_values(labels: Sequence[Label], values: Sequence[float], scene: Scene) -> str:
    *_, logprobs = _as_logprobs(values)
    given, right = _shares(logprobs), _shares(scene.values[0])
    shown = [json.dumps(label.text, ensure_ascii=False) for label in labels]
    far = [_distance(value, *pair) for value, *pair in zip(values, given, right, strict=True)]
    worst = far.index(max(far))
    first = f"The backend returned {values[worst]:.4f} for {shown[worst]}"
    if isnan(values[worst]):
        first += "."
    elif max(far) < 1e-3:  # but for a common factor they are right
        first += f", where {scene.values[0][worst]:.4f} is right."
    else:
        first += f", a share of {given[worst]:.3%} among the labels, where {right[worst]:.3%} is right."
    rows = [
        (label, f"{value:.4f}", f"{share:.3%}", f"{right_share:.3%}", f"{logprob:.4f}")
        for label, value, share, right_share, logprob in zip(shown, values, given, right, scene.values[0], strict=True)
    ]
    table = _table([("label", "returned", "share", "right share", "right logprob"), *rows])
    return f"{first}\n\n{table}"


def _shares(logprobs: Sequence[float]) -> list[float]:
    """As probabilities that add up to 1; NaN if they can't."""
    finite = all(isfinite(value) or value == -inf for value in logprobs) and max(logprobs) > -inf
    return [exp(value - _normaliser(logprobs)) if finite else nan for value in logprobs]


def _distance(value: float, given: float, right: float) -> float:
    """Between the shares, in nats. A NaN makes all shares NaN; it is the farthest."""
    if isnan(value):
        return inf
    return abs(log(given / right)) if given > 0 else LARGE


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(f"    {line.rstrip()}" for line in lines)
