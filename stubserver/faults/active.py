"""The faults of a running server: which are set, and how many requests each has seen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

from stubserver.faults import keys
from stubserver.faults.fault import Fault, load_faults
from stubserver.script.context import ScriptRequest
from stubserver.serving.fault_effects import FaultEffect


class ActiveFaults:
    """The server's faults, and the counters of all (a rule's too).

    at_start: what is set until `replace` or `clear`, and again after `reset`. clock: seconds, ever increasing.
    killer: the fault by which the engine died, if it has. notify: hears of each fault that befalls a reply.
    """

    def __init__(self, at_start: Sequence[Fault] = (), clock: Callable[[], float] = monotonic) -> None:
        self._at_start = tuple(at_start)
        self._clock = clock
        self.notify: Callable[[FaultEffect], None] | None = None
        self.reset()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is set and the engine lives."""
        return not self.faults and self.killer is None

    def replace(self, specs: Any) -> None:
        """Set these faults, in place of those before. Raises ConfigError, and changes nothing then."""
        self.use(load_faults(specs, "faults"))

    def use(self, faults: Sequence[Fault]) -> None:
        """Set these faults; counters begin anew, a dead engine lives again."""
        self.faults = tuple(faults)
        self.killer: Fault | None = None
        self._seen: WeakKeyDictionary[Fault, int] = WeakKeyDictionary()  # a request's own go with it
        self._since = self._clock()

    def clear(self) -> None:
        """No faults."""
        self.use(())

    def reset(self) -> None:
        """The faults as at start, and nothing counted."""
        self.use(self._at_start)

    def describe(self) -> list[dict[str, Any]]:
        """The faults that are set, as `replace` takes them."""
        return [fault.describe() for fault in self.faults]

    def turn(self, fault: Fault) -> int | None:
        """Count a request that a fault is about. Which of those that it befalls it is, from 0; None if it isn't one."""
        seen = self._seen.get(fault, 0)
        self._seen[fault] = seen + 1
        number = seen - fault.keys.after
        in_time = not isinstance(fault.keys, keys.ReadinessKeys) or self._clock() - self._since < fault.keys.seconds
        in_turn = number >= 0 and (fault.keys.times is None or number < fault.keys.times)
        return number if in_time and in_turn else None


def is_about(fault: Fault, path: str, default_paths: Collection[str] | None, requests: Sequence[ScriptRequest]) -> bool:
    """Whether a fault is about a request to this path, of which these are the prompts.

    default_paths: where a fault acts that names no paths; None for everywhere.
    """
    everywhere = default_paths is None or isinstance(fault.keys, keys.ReadinessKeys)
    if fault.keys.paths is not None:
        acts = any(fnmatchcase(path, pattern) for pattern in fault.keys.paths)
    else:
        acts = everywhere or path in (default_paths or ())
    return acts and fault.befalls(requests)
