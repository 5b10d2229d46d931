"""Which faults befall a request: the request's own, the server's, those of the rule that answers it, in this order."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from stubserver.faults.active import ActiveFaults, is_about
from stubserver.faults.fault import Fault
from stubserver.faults.reply_faults import ReplyFaults
from stubserver.script.context import Answer, ScriptRequest
from stubserver.serving.fault_effects import SetOn

AnsweredPrompts = list[tuple[ScriptRequest, Answer]]
"""What a handler has found out: the prompts, and what the script says to them."""

_Candidate = tuple[Fault, SetOn, Collection[str] | None]
"""A fault, where it is set, and where it acts if it names no paths: None for everywhere."""


class FaultSelection:
    """Finds the faults of one reply.

    own: faults that the request brought. generating: the paths where faults act that name none.
    """

    def __init__(
        self, active: ActiveFaults, chosen: ReplyFaults, path: str, own: Sequence[Fault], generating: Collection[str]
    ) -> None:
        self._active = active
        self._chosen = chosen
        self._path = path
        self._without_prompt: list[ScriptRequest] = []
        self._waiting: deque[_Candidate] = deque((fault, "request", None) for fault in own)
        self._waiting.extend((fault, "server", generating) for fault in active.faults)

    @property
    def needs_body(self) -> bool:
        """Whether a fault has conditions."""
        return any(fault.conditions for fault, _, _ in self._waiting)

    def before_handler(self, request: ScriptRequest) -> None:
        """Choose as far as that goes without the prompt, so that a handler doesn't run in vain."""
        self._without_prompt = [request]
        while self._waiting and not self._waiting[0][0].asks_for_prompt:
            self._choose(self._waiting.popleft(), self._without_prompt)

    def at_reply(self, answered: AnsweredPrompts) -> None:
        """Choose the rest. What asks for the prompt doesn't befall a request that was refused before it had one."""
        prompts = [request for request, _ in answered]
        while self._waiting:
            candidate = self._waiting.popleft()
            self._choose(candidate, prompts if candidate[0].asks_for_prompt else self._without_prompt)
        for fault in dict.fromkeys(fault for _, answer in answered for fault in answer.faults):
            self._choose((fault, "rule", None), [request for request, answer in answered if fault in answer.faults])

    def _choose(self, candidate: _Candidate, requests: Sequence[ScriptRequest]) -> None:
        fault, set_on, default_paths = candidate
        if is_about(fault, self._path, default_paths, requests):
            self._chosen.add(fault, set_on, self._active)
