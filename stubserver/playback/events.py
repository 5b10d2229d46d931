"""Server-sent events, cut out of a stream of bytes as they arrive."""

from __future__ import annotations

import re

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
