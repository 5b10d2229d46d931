"""What befalls one reply: the faults that were chosen for it, in the order in which they act."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from starlette.types import ASGIApp

from stubserver.faults import events, keys
from stubserver.faults.edits import Decode, make_edit
from stubserver.faults.events import Stage, Stop
from stubserver.faults.fault import Fault
from stubserver.faults.replies import reply_in_place

Turn = Callable[[Fault], int | None]
"""Counts a request; which of those that the fault befalls it is, or None if it is none of them."""


K = TypeVar("K", bound=keys.FaultKeys)


class Plan:
    """The faults of one reply; they are added in the order in which they are set."""

    def __init__(self) -> None:
        self.in_place: ASGIApp | None = None
        """What answers in the server's place."""
        self.kills_engine = False
        self._chosen: list[tuple[keys.FaultKeys, int]] = []

    def add(self, fault: Fault, turn: Turn) -> None:
        """Take a fault that is about this request, if it is its turn.

        Only the first that answers in the server's place does; later ones wait for the next request.
        """
        in_place = reply_in_place(fault.keys)
        if in_place is not None and self.in_place is not None:
            return
        number = turn(fault)
        if number is None:
            return
        if in_place is None:
            self._chosen.append((fault.keys, number))
        else:
            self.in_place = in_place
            self.kills_engine = isinstance(fault.keys, keys.DeadEngineKeys)

    def content_type(self) -> str | None:
        """The content type that is sent; None for the reply's own."""
        return next((fault.value for fault, _ in self._of(keys.ContentTypeKeys)), None)

    def content_stages(self, decode: Decode) -> list[Stage]:
        """What changes the reply's content; pauses first, for a full reply says how many tokens they are for."""
        edits = [
            (fault.event, make_edit(fault, decode))
            for fault, _ in self._of(keys.DocumentKeys)
            if not isinstance(fault, keys.MalformedJsonKeys)
        ]
        return [
            *(events.delaying(fault, turn) for fault, turn in self._of(keys.LatencyKeys)),
            *([events.editing(edits)] if edits else []),
            *(events.malforming(fault) for fault, _ in self._of(keys.MalformedJsonKeys)),
            *(events.failing(fault) for fault, _ in self._of(keys.ErrorEventKeys)),
            *(events.without_done for _ in self._of(keys.NoDoneKeys)),
        ]

    def delivery_stages(self) -> list[Stage]:
        """What changes how the content is sent."""
        return [
            *(events.stopping(fault.after_events or 0, Stop.HANG) for fault, _ in self._of(keys.HangKeys)),
            *(_closing(fault) for fault, _ in self._of(keys.CloseKeys)),
            *(stage for fault, _ in self._of(keys.FramingKeys) for stage in events.framing(fault)),
        ]

    def _of(self, kind: type[K]) -> list[tuple[K, int]]:
        return [(fault, turn) for fault, turn in self._chosen if isinstance(fault, kind)]


def _closing(fault: keys.CloseKeys) -> Stage:
    if fault.mid_event is not None:
        return events.cutting(fault.mid_event)
    return events.stopping(fault.after_events or 0, Stop.CLOSE)
