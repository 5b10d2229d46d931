"""What a request asks for, whatever its prompt: worked out once for requests that differ in their prompt only.

A label reader sends the same fields a thousand times, with another prompt each time. Checking the fields and making
sampling parameters of them depends on the fields alone, so the results are remembered, by the fields' exact spelling.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

from stubserver.memory import Memo
from stubserver.serving.body import validate

T = TypeVar("T")
P = TypeVar("P")

MAX_PLANS = 256
MAX_SPELLING = 4096
"""Bytes of a request whose plan is remembered: so that the plans stay small."""

_PLAIN_MARSHAL = 2
"""The last version of the format that spells equal values alike, whether or not they are one object."""

NOT_READ: Any = object()
"""What `read_prompt` returns for a prompt that has to be checked with the rest of its request."""


class Plans(Generic[T, P]):
    """The plans of one route, those used last.

    prompt_field: the field in which requests may differ. read_prompt: a prompt, checked, if it passes whatever the
    rest of the request is, and says nothing about other fields; else NOT_READ. make: checked fields → plan; what it
    raises, it raises anew for each such request.
    """

    def __init__(
        self, adapter: TypeAdapter[T], prompt_field: str, read_prompt: Callable[[Any], Any], make: Callable[[T], P]
    ) -> None:
        self._adapter = adapter
        self._prompt_field = prompt_field
        self._read_prompt = read_prompt
        self._make = make
        self._plans: Memo[bytes, P] = Memo(MAX_PLANS)

    def plan(self, body: Any) -> tuple[P, Any]:
        """(plan, prompt) of a body; the prompt as it was checked. Raises SchemaError, ValidationError, and `make`'s."""
        prompt = self._read_prompt(body.get(self._prompt_field)) if isinstance(body, dict) else NOT_READ
        key = None if prompt is NOT_READ else self._spelling(body)
        plan = None if key is None else self._plans.find(key)
        if plan is not None:
            return plan, prompt
        fields = validate(body, self._adapter)
        plan = self._make(fields)
        if key is not None and len(key) <= MAX_SPELLING:
            self._plans.keep(key, plan)
        return plan, getattr(fields, self._prompt_field)

    def _spelling(self, body: dict[str, Any]) -> bytes | None:
        """What tells fields apart that are not spelled alike, 1 and True too; None for what is nested too deeply."""
        try:
            return marshal.dumps({**body, self._prompt_field: None}, _PLAIN_MARSHAL)
        except ValueError:
            return None
