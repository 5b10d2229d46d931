"""Server-sent events, as the fields of the HTML standard have them."""

from __future__ import annotations

import pytest

from stubserver.serving.framing import EventCutter, Framing

FRAMING = Framing(done=b"data: [DONE]\n\n")


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_are_cut_at_blank_lines_however_they_arrive(end: bytes, size: int) -> None:
    events = [b'data: {"a":1}' + end, b": comment" + end, b"event: x\ndata: 1\ndata: 2" + end]
    stream, cutter = b"".join(events) + b"data: cut", EventCutter()
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert [event for piece in pieces for event in cutter.feed(piece)] == events
    assert cutter.rest() == b"data: cut"


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b'data: {"a":1}\n\n', b'{"a":1}'),
        (b'data:{"a":1}\r\n\r\n', b'{"a":1}'),
        (b"data:  x\n\n", b" x"),
        (b": comment\n\n", b""),
        (b"event: x\nid: 3\ndata: 1\ndata: 2\n\n", b"1\n2"),
        (b"data: cut", b"cut"),
    ],
)
def test_read(event: bytes, data: bytes) -> None:
    assert FRAMING.read(event) == data


@pytest.mark.parametrize(
    ("event", "text", "rewritten"),
    [
        (b"data: 1\n\n", b"2", b"data: 2\n\n"),
        (b"event: x\r\ndata:1\r\n\r\n", b"2", b"event: x\r\ndata: 2\r\n\r\n"),
        (b"data: 1\ndata: 2\n\n", b"3\n4", b"data: 3\ndata: 4\n\n"),
    ],
)
def test_rewrite(event: bytes, text: bytes, rewritten: bytes) -> None:
    assert FRAMING.rewrite(event, text) == rewritten
    assert FRAMING.read(rewritten) == text


def test_restyle() -> None:
    event = FRAMING.write(b'{"a":"data: x"}')
    assert FRAMING.restyle(event) == event
    assert FRAMING.restyle(event, space=False) == b'data:{"a":"data: x"}\n\n'
    assert FRAMING.restyle(event, crlf=True, comment="c") == b': c\r\n\r\ndata: {"a":"data: x"}\r\n\r\n'


def test_the_event_that_ends_a_stream() -> None:
    assert [FRAMING.is_done(each) for each in (b"data: [DONE]\n\n", b"data:[DONE]\r\n\r\n", b"data: x\n\n")] == [
        *(True, True, False)
    ]
    assert not Framing().is_done(b"data: [DONE]\n\n")
    assert not Framing().is_done(b": comment\n\n")


def test_is_stream() -> None:
    assert FRAMING.is_stream("text/event-stream; charset=utf-8")
    assert not FRAMING.is_stream("application/json")
