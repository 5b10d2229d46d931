"""What a request asks for, whatever its prompt: worked out once for requests that differ in their prompt only.

A label reader sends the same fields a thousand times, with another prompt each time. Checking the fields and making
sampling parameters of them depends on the fields alone, so the results are kept, by the fields' exact spelling.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

from stubserver.serving.body import validate

T = TypeVar("T")
P = TypeVar("P")

MAX_PLANS = 256
MAX_SPELLING = 4096
"""Bytes of a request whose plan is kept: so that the plans stay small."""

_PLAIN_MARSHAL = 2
"""The last version of the format that spells equal values alike, whether or not they are one object."""


class Plans(Generic[T, P]):
    """The plans of one route, those used last.

    prompt_field: the field in which requests may differ. make: checked fields → plan; what it raises, it raises anew
    for each such request.
    """

    def __init__(self, adapter: TypeAdapter[T], prompt_field: str, make: Callable[[T], P]) -> None:
        self._adapter = adapter
        self._prompt_field = prompt_field
        self._make = make
        self._plans: dict[bytes, P] = {}

    def plan(self, body: Any) -> tuple[P, Any]:
        """(plan, prompt) of a body; the prompt as it was checked. Raises SchemaError, ValidationError, and `make`'s."""
        prompt = body.get(self._prompt_field) if isinstance(body, dict) else None
        key = self._spelling(body) if _needs_no_check(prompt) else None
        plan = None if key is None else self._plans.get(key)
        if plan is not None:
            return plan, prompt
        fields = validate(body, self._adapter)
        plan = self._make(fields)
        if key is not None and len(key) <= MAX_SPELLING:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        return plan, getattr(fields, self._prompt_field)

    def _spelling(self, body: dict[str, Any]) -> bytes | None:
        """What tells fields apart that are not spelled alike, 1 and True too; None for what is nested too deeply."""
        try:
            return marshal.dumps({**body, self._prompt_field: None}, _PLAIN_MARSHAL)
        except ValueError:
            return None


def _needs_no_check(prompt: Any) -> bool:
    """A text, or a list of plain token ids: they pass the check as they are, and say nothing about other fields."""
    if isinstance(prompt, str):
        return prompt != ""
    return isinstance(prompt, list) and set(map(type, prompt)) == {int} and min(prompt) >= 0
