"""A reply as a flow of pieces, and the faults as stages on its way: each turns a piece into what is sent for it.

A full reply is one piece, an event of a stream another. Stages are made anew for each reply, so that they may count.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from random import Random
from typing import Any, Literal, NamedTuple

from stubserver.errors import GenerationError
from stubserver.faults import keys
from stubserver.faults.document_edits import Edit
from stubserver.serving.fault_effects import FaultEffect
from stubserver.serving.framing import Framing
from stubserver.serving.wire import Document, Wire


class Piece(NamedTuple):
    """A piece of a reply.

    number: how many events came before it. kind: an event of a stream, the one that ends it, a full reply's body, or
    the signal to send what is held back.
    """

    number: int
    data: bytes
    kind: Literal["event", "done", "full", "flush"] = "event"


class Wait(NamedTuple):
    """A pause."""

    seconds: float


class Stop(Enum):
    """Nothing more is sent: the connection is closed, or stays silent until the client leaves."""

    CLOSE = "close"
    HANG = "hang"


Item = Piece | Wait | Stop
Stage = Callable[[Piece], Iterable[Item]]


def flow(piece: Piece, stages: Sequence[Stage]) -> Iterator[Item]:
    """What is to be done for a piece, one thing at a time: a stage isn't asked before what comes first is done."""
    items: Iterator[Item] = iter([piece])
    for stage in stages:
        items = _through(stage, items)
    return items


def _through(stage: Stage, items: Iterator[Item]) -> Iterator[Item]:
    for item in items:
        if isinstance(item, Piece):
            yield from stage(item)
        else:
            yield item


def noting(stage: Stage, effect: FaultEffect, why_not: str) -> Stage:
    """The stage, which notes whether it has changed anything. why_not: why it hasn't, if so."""

    def noted(piece: Piece) -> Iterable[Item]:
        items = list(stage(piece))
        if _has_changed(piece, items):
            effect.note_change()
        elif piece.kind != "event":
            effect.note_end(why_not)
        return items

    return noted


def _has_changed(piece: Piece, items: Iterable[Item]) -> bool:
    sent = [item.data for item in items if isinstance(item, Piece) and item.data]
    interrupts = any(isinstance(item, Stop) or (isinstance(item, Wait) and item.seconds > 0) for item in items)
    return interrupts or sent != ([piece.data] if piece.data else [])


# What the reply says --------------------------------------------------------------------------------------------------


class PlacedEdit(NamedTuple):
    """An edit; of a stream, in the event with this number only, if there is one."""

    edit: Edit
    event: int | None
    effect: FaultEffect

    def apply(self, document: Document, piece: Piece) -> Document | None:
        """As the edit's own."""
        if self.event not in (None, piece.number) and piece.kind != "full":
            return document
        edited = self.edit.apply(document)
        if edited is not document:
            self.effect.note_change()
        return edited

    def note_end(self, piece: Piece) -> None:
        """The reply is over, and this its last piece."""
        if piece.kind != "full" and self.event is not None and self.event >= piece.number:
            self.effect.note_end(f"its stream has no event {self.event}, only {piece.number} of them")
        else:
            self.effect.note_end(self.edit.explain())


def editing(edits: Sequence[PlacedEdit], framing: Framing) -> Stage:
    """Edits of the JSON, one after the other."""

    def stage(piece: Piece) -> Iterator[Item]:
        document = original = _document(piece, framing)
        for each in edits:
            if document is not None:
                document = each.apply(document, piece)
        if piece.kind != "event":
            for each in edits:
                each.note_end(piece)
        if document is original:
            yield piece
        elif document is not None:
            yield _with_document(piece, document, framing)

    return stage


def malforming(fault: keys.MalformedJsonKeys, framing: Framing) -> Stage:
    """JSON that ends in the middle."""

    def stage(piece: Piece) -> Iterator[Item]:
        meant = piece.kind == "full" or (piece.kind == "event" and fault.event in (None, piece.number))
        text = _json(piece, framing)
        yield _with_json(piece, text[: len(text) // 2], framing) if meant else piece

    return stage


def failing(fault: keys.ErrorEventKeys, wire: Wire) -> Stage:
    """An error where an event should be, and no further event but the last: as vLLM does when its engine fails."""
    text = json.dumps(wire.error_reply(GenerationError(fault.message))[1]).encode()

    def stage(piece: Piece) -> Iterator[Item]:
        due = piece.number == fault.after_events
        if piece.kind == "full" or (piece.kind == "event" and due):
            yield _with_json(piece, text, wire.framing)
        elif piece.kind == "done" and piece.number <= fault.after_events:
            yield Piece(piece.number, wire.framing.write(text))
            yield piece
        elif piece.kind != "event" or piece.number < fault.after_events:
            yield piece

    return stage


def without_done(piece: Piece) -> Iterator[Item]:
    """A stage: no event that ends the stream."""
    if piece.kind != "done":
        yield piece


# When it is sent, and how much of it ----------------------------------------------------------------------------------


def delaying(fault: keys.LatencyKeys, turn: int, wire: Wire) -> Stage:
    """Pauses before events; before a full reply, those of all its tokens. turn: which request this is, for the seed."""

    def pause(number: int) -> float:
        extra = Random(f"{fault.seed} {turn} {number}").uniform(0, fault.jitter)
        return (fault.between if number else fault.first) + extra

    def stage(piece: Piece) -> Iterator[Item]:
        if piece.kind == "full":
            yield Wait(sum(map(pause, range(wire.count_tokens(_document(piece, wire.framing) or {})))))
        elif piece.kind == "event":
            yield Wait(pause(piece.number))
        yield piece

    return stage


def stopping(after_events: int, stop: Stop) -> Stage:
    """An end after so many events, before the last one at the latest; of a full reply, before its body."""

    def stage(piece: Piece) -> Iterator[Item]:
        if piece.kind == "event" and piece.number < after_events:
            yield piece
        else:
            yield Piece(piece.number, b"", "flush")
            yield stop

    return stage


def cutting(mid_event: int) -> Stage:
    """An end in the middle of the event with this number, or of a full reply's body; before the last at the latest."""

    def stage(piece: Piece) -> Iterator[Item]:
        if piece.kind == "event" and piece.number < mid_event:
            yield piece
        else:
            if piece.kind in ("event", "full"):
                yield piece._replace(data=piece.data[: len(piece.data) // 2])
            yield Piece(piece.number, b"", "flush")
            yield Stop.CLOSE

    return stage


def reframing(fault: keys.FramingKeys, framing: Framing) -> Stage:
    """Events written and packed in another way."""
    stages: list[Stage] = [_restyling(fault, framing)]
    if fault.coalesce:
        stages.append(_coalescing(fault.coalesce))
    if fault.split:
        stages.append(_splitting(fault.split))
    return lambda piece: flow(piece, stages)


def _restyling(fault: keys.FramingKeys, framing: Framing) -> Stage:
    comment = "a comment" if fault.comments else ""

    def stage(piece: Piece) -> Iterator[Item]:
        if piece.kind in ("event", "done"):
            data = framing.restyle(piece.data, space=not fault.no_space, crlf=fault.crlf, comment=comment)
            piece = piece._replace(data=data)
        yield piece

    return stage


def _coalescing(count: int) -> Stage:
    held: list[bytes] = []

    def stage(piece: Piece) -> Iterator[Item]:
        if piece.kind in ("event", "done"):
            held.append(piece.data)
        if held and (len(held) >= count or piece.kind != "event"):
            yield Piece(piece.number, b"".join(held))
            held.clear()
        if piece.kind in ("full", "flush"):
            yield piece

    return stage


def _splitting(size: int) -> Stage:
    def stage(piece: Piece) -> Iterator[Item]:
        for start in range(0, len(piece.data), size):
            yield piece._replace(data=piece.data[start : start + size])
            yield Wait(0)  # so that it leaves before the next one comes

    return stage


# The JSON of a piece --------------------------------------------------------------------------------------------------


def _json(piece: Piece, framing: Framing) -> bytes:
    return piece.data if piece.kind == "full" else framing.read(piece.data)


def _with_json(piece: Piece, text: bytes, framing: Framing) -> Piece:
    return piece._replace(data=text if piece.kind == "full" else framing.rewrite(piece.data, text))


def _document(piece: Piece, framing: Framing) -> dict[str, Any] | None:
    """The piece's JSON object, if it has one."""
    if piece.kind in ("done", "flush"):
        return None
    try:
        document = json.loads(_json(piece, framing))
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _with_document(piece: Piece, document: Document, framing: Framing) -> Piece:
    return _with_json(piece, json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(), framing)
