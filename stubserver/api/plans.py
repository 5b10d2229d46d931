"""What a request asks for, whatever its prompt: worked out once for requests that differ in their prompt only.

A label reader sends the same fields a thousand times, with another prompt each time. Checking the fields and making
sampling parameters of them depends on the fields alone, so the results are kept, by the fields' exact spelling.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

from stubserver.api.body import validate

T = TypeVar("T")
R = TypeVar("R")

MAX_PLANS = 256
MAX_SPELLING = 4096
"""Bytes of a request whose plan is kept: so that the plans stay small."""

_PLAIN_MARSHAL = 2
"""The last version of the format that spells equal values alike, whether or not they are one object."""


class Plan(Generic[T]):
    """Checked fields, and what has been made of them so far."""

    def __init__(self, fields: T) -> None:
        self.fields = fields
        self._made: dict[Hashable, Any] = {}

    def once(self, make: Callable[..., R], *args: Hashable) -> R:
        """`make(fields, *args)`, called once for the same arguments; where it raises, it is called again."""
        key = (make, *args)
        made: R | None = self._made.get(key)
        if made is None:
            made = make(self.fields, *args)
            if len(self._made) >= MAX_PLANS:
                self._made.clear()
            self._made[key] = made
        return made


class Plans(Generic[T]):
    """The plans of one route, those used last. `prompt_field`: the field in which requests may differ."""

    def __init__(self, adapter: TypeAdapter[T], prompt_field: str) -> None:
        self._adapter = adapter
        self._prompt_field = prompt_field
        self._plans: dict[bytes, Plan[T]] = {}

    def plan(self, body: Any) -> tuple[Plan[T], Any]:
        """(plan, prompt) of a body; the prompt as it was checked. Raises SchemaError or ValidationError."""
        prompt = body.get(self._prompt_field) if isinstance(body, dict) else None
        if not _needs_no_check(prompt):
            fields = validate(body, self._adapter)
            return Plan(fields), getattr(fields, self._prompt_field)
        try:
            key = marshal.dumps({**body, self._prompt_field: None}, _PLAIN_MARSHAL)
        except ValueError:  # nested too deeply for it
            fields = validate(body, self._adapter)
            return Plan(fields), prompt
        plan = self._plans.get(key)
        if plan is None:
            plan = Plan(validate(body, self._adapter))
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            if len(key) <= MAX_SPELLING:
                self._plans[key] = plan
        return plan, prompt


def _needs_no_check(prompt: Any) -> bool:
    """A text, or a list of plain token ids: they pass the check as they are, and say nothing about other fields."""
    if isinstance(prompt, str):
        return prompt != ""
    return isinstance(prompt, list) and set(map(type, prompt)) == {int} and min(prompt) >= 0
