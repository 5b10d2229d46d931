"""What a request asks for, whatever its prompt: worked out once for requests that differ in their prompt only.

A label reader sends the same fields a thousand times, with another prompt each time. Checking the fields and making
sampling parameters of them depends on the fields alone, so the results are kept, by the fields' exact spelling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

from stubserver.api.body import validate
from stubserver.engine.model import Model
from stubserver.sampling.params import SamplingParams

T = TypeVar("T")

MAX_PLANS = 256
MAX_SPELLING = 4096
"""Characters of a request whose plan is kept: so that the plans stay small."""


class Plan(Generic[T]):
    """Checked fields, and what has been made of them so far."""

    def __init__(self, fields: T) -> None:
        self.fields = fields
        self._params: dict[tuple[Model, int], SamplingParams] = {}

    def params(self, model: Model, prompt_len: int, make: Callable[[Model, T, int], SamplingParams]) -> SamplingParams:
        """The parameters of a prompt of this length; `make` makes them, and raises if they are refused.

        The length counts where a prompt leaves less room than the request asks for.
        """
        params = self._params.get((model, prompt_len))
        if params is None:
            params = make(model, self.fields, prompt_len)
            if len(self._params) >= MAX_PLANS:
                self._params.clear()
            self._params[model, prompt_len] = params
        return params


class Plans(Generic[T]):
    """The plans of one route, those used last. `prompt_field`: the field in which requests may differ."""

    def __init__(self, adapter: TypeAdapter[T], prompt_field: str) -> None:
        self._adapter = adapter
        self._prompt_field = prompt_field
        self._plans: dict[str, Plan[T]] = {}

    def plan(self, body: Any) -> tuple[Plan[T], Any]:
        """(plan, prompt) of a body; the prompt as it was checked. Raises SchemaError or ValidationError."""
        prompt = body.get(self._prompt_field) if isinstance(body, dict) else None
        if not _needs_no_check(prompt):
            fields = validate(body, self._adapter)
            return Plan(fields), getattr(fields, self._prompt_field)
        key = repr({name: value for name, value in body.items() if name != self._prompt_field})
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
    return isinstance(prompt, list) and bool(prompt) and all(type(part) is int and part >= 0 for part in prompt)
