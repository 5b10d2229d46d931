"""Why no rule answers a request: the rule that comes nearest, and what differs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import SequenceMatcher
from heapq import nlargest
from itertools import islice
from typing import Any

from stubserver.script.conditions import MISSING, Condition
from stubserver.script.context import ScriptRequest
from stubserver.script.rule import Rule

# A script may have thousands of rules and long prompts, and a client may send many requests that nothing answers.
_COMPARED_PROMPTS = 20
_COMPARED_OTHERS = 200
_COMPARED_CHARACTERS = 200
_SHOWN_CHARACTERS = 20
_LONGEST_VALUE = 80

_PROMPT_WEIGHT = 10.0
"""A wholly different prompt is worse than wrong model, headers and fields; a typo in the prompt is better than any."""


def explain_unscripted(request: ScriptRequest, rules: Sequence[Rule]) -> str:
    """A message for people: the nearest rule, and what each of its failing conditions wanted and got."""
    if not rules:
        return "The script has no rules, and no default that would answer this request."
    rule = min(_candidates(request, rules), key=lambda candidate: _distance(candidate, request))
    differences = explain_mismatch(rule, request)
    message = f"No rule answers this request. The nearest is {rule.name}: {differences}. Add a rule, or a `default`."
    # A lone surrogate that the request smuggled in would have no UTF-8 in the reply.
    return message.encode(errors="backslashreplace").decode()


def explain_mismatch(rule: Rule, request: ScriptRequest) -> str:
    """What each of a rule's failing conditions wanted and got; "" for a rule that matches."""
    failed = (condition for condition in rule.conditions if not condition.holds(request))
    return "; ".join(_difference(condition, request) for condition in failed)


def common_length(a: str, b: str) -> int:
    """How many characters two texts share at their beginnings."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low


def _candidates(request: ScriptRequest, rules: Sequence[Rule]) -> list[Rule]:
    exact = (rule for rule in rules if rule.prompt is not None)
    others = (rule for rule in rules if rule.prompt is None)
    likely = nlargest(_COMPARED_PROMPTS, exact, key=lambda rule: _shared(rule.prompt or "", request.prompt))
    return [*likely, *islice(others, _COMPARED_OTHERS)]


def _shared(a: str, b: str) -> float:
    """How much of two texts is the same at both ends, 0 to 1: a cheap first look at thousands of prompts."""
    ends = common_length(a, b) + common_length(a[::-1], b[::-1])
    return min(1.0, ends / max(len(a), len(b), 1))


def _distance(rule: Rule, request: ScriptRequest) -> float:
    failed = (condition for condition in rule.conditions if not condition.holds(request))
    return sum(_PROMPT_WEIGHT * (1 - _similarity(rule, request)) if each.subject.is_prompt else 1.0 for each in failed)


def _similarity(rule: Rule, request: ScriptRequest) -> float:
    """0 to 1, from the first characters after those in common; 1/2 for what isn't an exact text."""
    if rule.prompt is None:
        return 0.5
    start = max(0, common_length(rule.prompt, request.prompt) - _COMPARED_CHARACTERS // 2)
    window = slice(start, start + _COMPARED_CHARACTERS)
    return SequenceMatcher(None, rule.prompt[window], request.prompt[window], autojunk=False).ratio()


def _difference(condition: Condition, request: ScriptRequest) -> str:
    name = condition.subject.name
    if condition.subject.is_secret:
        return f"{name} differs (its value isn't shown)"
    got = condition.subject.read(request)
    if isinstance(condition.exact, str) and isinstance(got, str):
        start = common_length(condition.exact, got)
        wanted_part, got_part = _around(condition.exact, start), _around(got, start)
        return f"{name} differs at character {start}: wanted {wanted_part}, got {got_part}"
    return f"{name}: wanted {_cut(condition.wanted)}, got {_cut(_show(got))}"


def _around(text: str, position: int) -> str:
    start, end = max(0, position - _SHOWN_CHARACTERS), position + _SHOWN_CHARACTERS
    before, after = "…" if start else "", "…" if end < len(text) else ""
    return before + json.dumps(text[start:end], ensure_ascii=False) + after


def _show(value: Any) -> str:
    return "nothing" if value is MISSING else json.dumps(value, ensure_ascii=False, default=str)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "…"
