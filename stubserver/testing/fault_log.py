"""Which faults changed nothing: the test that set them doesn't test what it says."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from functools import partial

from stubserver.serving.fault_effects import FaultEffect, SetOn

_MOST_KEPT = 100
"""Effects of one fault that are kept until one of them is a change."""

_MOST_SHOWN = 3

_WHERE: dict[SetOn, str] = {"server": "the server", "rule": "a rule", "request": "a request"}


class FaultLog:
    """What became of the faults that befell replies. One thread writes, another may read.

    allowed: whether a fault may change nothing.
    """

    def __init__(self) -> None:
        self.allowed = False
        self._effects: defaultdict[str, deque[FaultEffect]] = defaultdict(partial(deque, maxlen=_MOST_KEPT))

    def add(self, effect: FaultEffect) -> None:
        """Hear of a fault that befalls a reply. The same fault is known by what it does and where it is set."""
        known = self._effects[json.dumps([effect.set_on, effect.fault], sort_keys=True)]
        if not any(each.changed for each in known):
            known.append(effect)

    def explain_idle(self) -> str:
        """The faults that befell replies, and changed none of them; empty if there are none, or if they may."""
        found = [list(effects) for effects in list(self._effects.values())]
        idle = [effects for effects in found if not any(each.changed for each in effects)]
        lines = [_explain(effects) for effects in idle if any(each.changed is False for each in effects)]
        hint = "(if that is meant: stub.allow_faults_without_effect())"
        return "\n".join([*lines, hint]) if lines and not self.allowed else ""


def _explain(effects: list[FaultEffect]) -> str:
    first = effects[0]
    idle = [each for each in effects if each.changed is False]
    shown = "".join(f"\n  {each.request} → {each.status}: {each.why}" for each in idle[-_MOST_SHOWN:])
    more = f"\n  … and {len(idle) - _MOST_SHOWN} earlier replies" if len(idle) > _MOST_SHOWN else ""
    fault = json.dumps(first.fault, ensure_ascii=False)
    return f"the fault {fault}, set on {_WHERE[first.set_on]}, changed nothing:{shown}{more}"
