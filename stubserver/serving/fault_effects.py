"""What a fault did to a reply: told by the faults, kept by the journal and by a test's stub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

SCOPE_KEY: Final = "stubserver.fault_effects"
"""Where the scope of a request has the list of them, as far as they are known."""

SetOn = Literal["server", "rule", "request"]


@dataclass(slots=True, eq=False)
class FaultEffect:
    """A fault that befell a reply.

    fault: as it was set. set_on: where. request: `POST /v1/completions`. status: the reply's; None before it starts.
    changed: whether anything of the reply is not as it would be without the fault; None while that isn't known, as it
    never is of a reply that broke off, or that another fault gave in the server's place. why: why not.
    """

    fault: Mapping[str, Any]
    set_on: SetOn
    request: str
    status: int | None = None
    changed: bool | None = None
    why: str = ""

    def note_change(self) -> None:
        """Something is changed."""
        self.changed, self.why = True, ""

    def note_end(self, why: str) -> None:
        """The reply is over; if nothing was changed, this is why."""
        if self.changed is None and not self.why:
            self.changed, self.why = False, why

    def excuse(self, why: str) -> None:
        """It is no wonder if nothing is changed."""
        if self.changed is None:
            self.why = why

    def describe(self) -> dict[str, Any]:
        """What an entry of the journal doesn't say anyway, as JSON values."""
        return {"fault": dict(self.fault), "set_on": self.set_on, "changed": self.changed, "why": self.why}
