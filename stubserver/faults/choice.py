"""Which faults befall a request: the request's own, the server's, those of the rule that answers it, in this order."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from stubserver.faults.board import FaultBoard, is_about
from stubserver.faults.fault import Fault
from stubserver.faults.plan import Plan
from stubserver.script.context import Answer, ScriptRequest

Answered = list[tuple[ScriptRequest, Answer]]
"""What a handler has found out: the prompts, and what the script says to them."""


class Choice:
    """Fills the plan of one reply.

    own: faults that the request brought. generating: the paths where faults act that name none.
    """

    def __init__(self, board: FaultBoard, path: str, own: Sequence[Fault], generating: Collection[str]) -> None:
        self.plan = Plan()
        self._board = board
        self._path = path
        own_first: list[tuple[Fault, Collection[str] | None]] = [(fault, None) for fault in own]
        self._without_prompt: list[ScriptRequest] = []
        self._waiting = deque(own_first + [(fault, generating) for fault in board.faults])

    @property
    def needs_body(self) -> bool:
        """Whether a fault has conditions."""
        return any(fault.conditions for fault, _ in self._waiting)

    def before_handler(self, request: ScriptRequest) -> None:
        """Choose as far as that goes without the prompt, so that a handler doesn't run in vain."""
        self._without_prompt = [request]
        while self._waiting and not self._waiting[0][0].asks_for_prompt:
            self._choose(*self._waiting.popleft(), self._without_prompt)

    def at_reply(self, answered: Answered) -> None:
        """Choose the rest. What asks for the prompt doesn't befall a request that was refused before it had one."""
        prompts = [request for request, _ in answered]
        while self._waiting:
            fault, paths = self._waiting.popleft()
            self._choose(fault, paths, prompts if fault.asks_for_prompt else self._without_prompt)
        for fault in dict.fromkeys(fault for _, answer in answered for fault in answer.faults):
            self._choose(fault, None, [request for request, answer in answered if fault in answer.faults])

    def _choose(self, fault: Fault, paths: Collection[str] | None, requests: Sequence[ScriptRequest]) -> None:
        if is_about(fault, self._path, paths, requests):
            self.plan.add(fault, self._board.turn)
            self._board.engine_is_dead |= self.plan.kills_engine
