"""What befalls one reply: the faults that were chosen for it, in the order in which they act."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from stubserver.faults import keys, stages
from stubserver.faults.active import ActiveFaults
from stubserver.faults.document_edits import Decode, make_edit
from stubserver.faults.fault import Fault
from stubserver.faults.in_place import ReplyInPlace, reply_in_place
from stubserver.faults.stages import PlacedEdit, Stage, Stop, noting
from stubserver.serving.fault_effects import FaultEffect, SetOn
from stubserver.serving.wire import Wire

K = TypeVar("K", bound=keys.FaultKeys)

Report = Callable[[FaultEffect], None]
"""Hears of a fault that befalls the reply; what it does to it is noted later."""


class Chosen(NamedTuple):
    """A fault that changes the server's own reply. turn: which of the requests that it befalls this is, from 0."""

    keys: keys.FaultKeys
    turn: int
    effect: FaultEffect


class ReplyFaults:
    """The faults of one reply; they are added in the order in which they are set.

    request: `POST /v1/completions`. decode: texts of tokens.
    """

    def __init__(self, wire: Wire, decode: Decode, request: str, report: Report) -> None:
        self.in_place: ReplyInPlace | None = None
        """What answers in the server's place."""
        self._wire = wire
        self._decode = decode
        self._request = request
        self._report = report
        self._chosen: list[Chosen] = []

    def add(self, fault: Fault, set_on: SetOn, active: ActiveFaults) -> None:
        """Take a fault that is about this request, if it is its turn.

        Only the first that answers in the server's place does; later ones wait for the next request.
        """
        in_place = reply_in_place(fault.keys, self._wire)
        if in_place is not None and self.in_place is not None:
            return
        turn = active.turn(fault)
        if turn is None:
            return
        effect = FaultEffect(fault.describe(), set_on, self._request)
        self._report(effect)
        if in_place is None:
            self._chosen.append(Chosen(fault.keys, turn, effect))
        else:
            self.in_place = in_place
            effect.note_change()
            if isinstance(fault.keys, keys.DeadEngineKeys):
                active.killer = fault

    def begin(self, status: int, content_type: str) -> str:
        """The reply starts; the content type that is sent."""
        for chosen in self._chosen:
            chosen.effect.status = status
            if self.in_place is not None:
                chosen.effect.excuse("another fault answered in the server's place")
        wrong = self._of(keys.ContentTypeKeys)
        sent = next((fault.value for fault, _, _ in wrong), content_type)
        for fault, _, effect in wrong:
            if content_type != sent == fault.value:
                effect.note_change()
            else:
                effect.note_end(f"its content type is {sent} anyway")
        return sent

    def content_stages(self) -> list[Stage]:
        """What changes the reply's content; pauses first, for a full reply says how many tokens they are for."""
        wire = self._wire
        edits = [
            PlacedEdit(make_edit(fault, wire, self._decode), fault.event, effect)
            for fault, _, effect in self._of(keys.DocumentKeys)
            if not isinstance(fault, keys.MalformedJsonKeys)
        ]
        return [
            *(
                noting(stages.delaying(fault, turn, wire), effect, "no pause was due: it has one event or token")
                for fault, turn, effect in self._of(keys.LatencyKeys)
            ),
            *([stages.editing(edits, wire.framing)] if edits else []),
            *(
                noting(stages.malforming(fault, wire.framing), effect, f"its stream has no event {fault.event}")
                for fault, _, effect in self._of(keys.MalformedJsonKeys)
            ),
            *(
                noting(stages.failing(fault, wire), effect, f"its stream has no event {fault.after_events}")
                for fault, _, effect in self._of(keys.ErrorEventKeys)
            ),
            *(
                noting(stages.without_done, effect, "it has no event that ends it")
                for _, _, effect in self._of(keys.NoDoneKeys)
            ),
        ]

    def delivery_stages(self) -> list[Stage]:
        """What changes how the content is sent."""
        return [
            *(
                noting(stages.stopping(fault.after_events or 0, Stop.HANG), effect, "")
                for fault, _, effect in self._of(keys.HangKeys)
            ),
            *(noting(_closing(fault), effect, "") for fault, _, effect in self._of(keys.CloseKeys)),
            *(
                noting(stages.reframing(fault, self._wire.framing), effect, "it is no stream, or too short")
                for fault, _, effect in self._of(keys.FramingKeys)
            ),
        ]

    def _of(self, kind: type[K]) -> list[tuple[K, int, FaultEffect]]:
        return [(each.keys, each.turn, each.effect) for each in self._chosen if isinstance(each.keys, kind)]


def _closing(fault: keys.CloseKeys) -> Stage:
    if fault.mid_event is not None:
        return stages.cutting(fault.mid_event)
    return stages.stopping(fault.after_events or 0, Stop.CLOSE)
