"""A fault that can be asked whether it befalls a request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from stubserver.faults.keys import AnyFault, FaultKeys
from stubserver.keys.check import check_data
from stubserver.keys.conditions import read_conditions
from stubserver.keys.document import Document, Place
from stubserver.script.conditions import Condition
from stubserver.script.context import ScriptRequest

_FAULTS = TypeAdapter(list[AnyFault], config=ConfigDict(defer_build=True))


@dataclass(frozen=True, eq=False)
class Fault:
    """keys: what it does. conditions: all of them have to hold."""

    keys: FaultKeys
    conditions: tuple[Condition, ...] = ()

    @property
    def asks_for_prompt(self) -> bool:
        """Whether the prompt has to be known to decide."""
        return any(condition.subject.is_prompt for condition in self.conditions)

    def describe(self) -> dict[str, Any]:
        """The fault as it was set."""
        written = self.keys.model_dump(mode="json", exclude_unset=True)
        return {"kind": written.pop("kind"), **written}

    def befalls(self, requests: Iterable[ScriptRequest]) -> bool:
        """Whether the conditions hold for one of a request's prompts."""
        if not self.conditions:
            return True
        return any(all(condition.holds(request) for condition in self.conditions) for request in requests)


def read_faults(keys: Sequence[FaultKeys], place: Place) -> tuple[Fault, ...]:
    """Faults of a checked list. Raises ScriptError with the place of a condition that can't be read."""
    return tuple(
        Fault(each, read_conditions(each.when, place / index / "when") if each.when else ())
        for index, each in enumerate(keys)
    )


def load_faults(data: Any, name: str) -> tuple[Fault, ...]:
    """Faults of a list as JSON has it; `name` says in messages where it came from. Raises ScriptError."""
    document = Document(name, data, Path.cwd())
    return read_faults(check_data(document, _FAULTS.validate_python), document.root)
