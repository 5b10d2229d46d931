"""Server-sent events: written, cut out of a stream of bytes as they arrive, read, and written in other ways."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class EventCutter:
    """Cuts a stream into whole events, each with its separator: joined they are the stream again."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The events that this piece completes."""
        data, start, events = self._rest + data, 0, []
        for end in _END.finditer(data):
            events.append(data[start : end.end()])
            start = end.end()
        self._rest = data[start:]
        return events

    def rest(self) -> bytes:
        """What stands after the last whole event."""
        return self._rest


@dataclass(frozen=True)
class Framing:
    """How a server writes events. done: the event that ends a stream; empty where nothing does."""

    done: bytes = b""
    media_type: str = field(default="text/event-stream", init=False)

    def write(self, text: bytes) -> bytes:
        """A JSON text as an event."""
        return b"data: " + text + b"\n\n"

    def read(self, event: bytes) -> bytes:
        """What the `data:` lines of an event hold; empty for a comment."""
        lines = [line.removeprefix(b"data:") for line in event.splitlines() if line.startswith(b"data:")]
        return b"\n".join(line.removeprefix(b" ") for line in lines)

    def rewrite(self, event: bytes, text: bytes) -> bytes:
        """The event with other data; its other lines (`event:`, `id:`) and its kind of line ends stay."""
        newline = b"\r\n" if event.endswith(b"\r\n") else b"\n"
        others = [line for line in event.splitlines() if line and not line.startswith(b"data:")]
        return newline.join([*others, *(b"data: " + line for line in text.split(b"\n"))]) + newline * 2

    def restyle(self, event: bytes, *, space: bool = True, crlf: bool = False, comment: str = "") -> bytes:
        """The same event as other servers write it: no space after `data:`, other line ends, a comment before it."""
        if not space:
            event = b"\n".join(re.sub(rb"^data: ", b"data:", line) for line in event.split(b"\n"))
        if comment:
            event = b": " + comment.encode() + b"\n\n" + event
        return event.replace(b"\n", b"\r\n") if crlf else event

    def is_done(self, event: bytes) -> bool:
        """Whether this is the event that ends a stream."""
        return bool(self.done) and self.read(event) == self.read(self.done)

    def is_stream(self, content_type: str) -> bool:
        """Whether a reply of this content type is a stream."""
        return content_type.startswith(self.media_type)


EVENTS = Framing()
"""Events of a server of which no more is known."""
