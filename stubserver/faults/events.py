"""A reply as a flow of events, and the faults as stages on its way: each turns an event into what is sent for it.

A full reply is one event. Stages are made anew for each reply, so that they may count.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from random import Random
from typing import Any, Literal, NamedTuple

from stubserver.dialects.vllm.wire.codec import WIRE
from stubserver.errors import GenerationError
from stubserver.faults import keys
from stubserver.faults.edits import Edit

PREFIX = b"data: "
END = b"\n\n"
DONE = b"data: [DONE]"


class Event(NamedTuple):
    """A piece of a reply.

    number: how many events came before it. kind: an event of a stream, its [DONE], a full reply's body, or the signal
    to send what is held back.
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


Item = Event | Wait | Stop
Stage = Callable[[Event], Iterable[Item]]


def flow(event: Event, stages: Sequence[Stage]) -> Iterator[Item]:
    """What is to be done for an event, one thing at a time: a stage isn't asked before what comes first is done."""
    items: Iterator[Item] = iter([event])
    for stage in stages:
        items = _through(stage, items)
    return items


def _through(stage: Stage, items: Iterator[Item]) -> Iterator[Item]:
    for item in items:
        if isinstance(item, Event):
            yield from stage(item)
        else:
            yield item


# What the reply says --------------------------------------------------------------------------------------------------


def editing(edits: Sequence[tuple[int | None, Edit]]) -> Stage:
    """Edits of the JSON, one after the other; each in the event with its number only, if it has one."""

    def stage(event: Event) -> Iterator[Item]:
        document = original = _document(event)
        for number, edit in edits:
            if document is not None and (number is None or event.kind == "full" or number == event.number):
                document = edit(document)
                if document is None:
                    return
        yield event if document is original or document is None else _with_document(event, document)

    return stage


def malforming(fault: keys.MalformedJsonKeys) -> Stage:
    """JSON that ends in the middle."""

    def stage(event: Event) -> Iterator[Item]:
        meant = event.kind == "full" or (event.kind == "event" and fault.event in (None, event.number))
        yield _with_json(event, _json(event)[: len(_json(event)) // 2]) if meant else event

    return stage


def failing(fault: keys.ErrorEventKeys) -> Stage:
    """An error where an event should be, and no further event but [DONE]: as vLLM does when its engine fails."""
    text = json.dumps(WIRE.error_reply(GenerationError(fault.message))[1]).encode()

    def stage(event: Event) -> Iterator[Item]:
        due = event.number == fault.after_events
        if event.kind == "full" or (event.kind == "event" and due):
            yield _with_json(event, text)
        elif event.kind == "done" and event.number <= fault.after_events:
            yield Event(event.number, PREFIX + text + END)
            yield event
        elif event.kind != "event" or event.number < fault.after_events:
            yield event

    return stage


def without_done(event: Event) -> Iterator[Item]:
    """A stage: no [DONE]."""
    if event.kind != "done":
        yield event


# When it is sent, and how much of it ----------------------------------------------------------------------------------


def delaying(fault: keys.LatencyKeys, turn: int) -> Stage:
    """Pauses before events; before a full reply, those of all its tokens. turn: which request this is, for the seed."""

    def pause(number: int) -> float:
        extra = Random(f"{fault.seed} {turn} {number}").uniform(0, fault.jitter)
        return (fault.between if number else fault.first) + extra

    def stage(event: Event) -> Iterator[Item]:
        if event.kind == "full":
            yield Wait(sum(map(pause, range(_tokens(event)))))
        elif event.kind == "event":
            yield Wait(pause(event.number))
        yield event

    return stage


def _tokens(event: Event) -> int:
    counts = (_document(event) or {}).get("usage")
    tokens = counts.get("completion_tokens") if isinstance(counts, dict) else None
    return max(tokens, 1) if isinstance(tokens, int) else 1


def stopping(after_events: int, stop: Stop) -> Stage:
    """An end after so many events, before [DONE] at the latest; of a full reply, before its body."""

    def stage(event: Event) -> Iterator[Item]:
        if event.kind == "event" and event.number < after_events:
            yield event
        else:
            yield Event(event.number, b"", "flush")
            yield stop

    return stage


def cutting(mid_event: int) -> Stage:
    """An end in the middle of the event with this number, or of a full reply's body; before [DONE] at the latest."""

    def stage(event: Event) -> Iterator[Item]:
        if event.kind == "event" and event.number < mid_event:
            yield event
        else:
            if event.kind in ("event", "full"):
                yield event._replace(data=event.data[: len(event.data) // 2])
            yield Event(event.number, b"", "flush")
            yield Stop.CLOSE

    return stage


def framing(fault: keys.FramingKeys) -> list[Stage]:
    """Events written and packed in another way."""
    stages: list[Stage] = [_writing(fault)]
    if fault.coalesce:
        stages.append(_coalescing(fault.coalesce))
    if fault.split:
        stages.append(_splitting(fault.split))
    return stages


def _writing(fault: keys.FramingKeys) -> Stage:
    def stage(event: Event) -> Iterator[Item]:
        if event.kind not in ("event", "done"):
            yield event
            return
        data = event.data
        if fault.no_space and data.startswith(PREFIX):
            data = b"data:" + data.removeprefix(PREFIX)
        if fault.comments:
            data = b": a comment" + END + data
        yield event._replace(data=data.replace(b"\n", b"\r\n") if fault.crlf else data)

    return stage


def _coalescing(count: int) -> Stage:
    held: list[bytes] = []

    def stage(event: Event) -> Iterator[Item]:
        if event.kind in ("event", "done"):
            held.append(event.data)
        if held and (len(held) >= count or event.kind != "event"):
            yield Event(event.number, b"".join(held))
            held.clear()
        if event.kind in ("full", "flush"):
            yield event

    return stage


def _splitting(size: int) -> Stage:
    def stage(event: Event) -> Iterator[Item]:
        for start in range(0, len(event.data), size):
            yield event._replace(data=event.data[start : start + size])
            yield Wait(0)  # so that it leaves before the next piece comes

    return stage


# The JSON of an event -------------------------------------------------------------------------------------------------


def _json(event: Event) -> bytes:
    return event.data if event.kind == "full" else event.data.removeprefix(PREFIX).rstrip()


def _with_json(event: Event, text: bytes) -> Event:
    return event._replace(data=text if event.kind == "full" else PREFIX + text + END)


def _document(event: Event) -> dict[str, Any] | None:
    """The event's JSON object, if it has one."""
    if event.kind in ("done", "flush"):
        return None
    try:
        document = json.loads(_json(event))
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _with_document(event: Event, document: dict[str, Any]) -> Event:
    return _with_json(event, json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode())
