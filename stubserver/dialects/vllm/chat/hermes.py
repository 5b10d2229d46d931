"""The hermes tool parser: calls as JSON between `<tool_call>` and `</tool_call>`.

Source: vLLM 0.32.0, `tool_parsers/hermes_tool_parser.py`. A whole text and a stream of it are read by different rules
there, so they are here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from stubserver.dialects.vllm.chat.message import Delta, ToolCall, ToolCallDelta
from stubserver.dialects.vllm.chat.reasoning import partial_overlap
from stubserver.dialects.vllm.chat.segments import CallIds

BEGIN, END = "<tool_call>", "</tool_call>"

_CALL = re.compile(f"{BEGIN}(.*?){END}|{BEGIN}(.*)", re.DOTALL)
_NAME = re.compile(r'"name"\s*:\s*"([^"]+)"')
_ARGUMENTS = re.compile(r'"arguments"\s*:\s*')


def read_calls(text: str, ids: CallIds) -> tuple[str | None, list[ToolCall]]:
    """(content, calls) of a whole text; without calls if one of them can't be read, and then all of it is content."""
    if BEGIN not in text:
        return text, []
    try:
        read = [json.loads(closed or left_open) for closed, left_open in _CALL.findall(text)]
        named = [(call["name"], json.dumps(call["arguments"], ensure_ascii=False)) for call in read]
    except (ValueError, KeyError, TypeError):
        return text, []
    content = text[: text.find(BEGIN)]
    return content or None, [ToolCall(ids.next(), name, arguments) for name, arguments in named]


@dataclass
class _Sent:
    """What of a call has been sent."""

    name: str | None = None
    arguments: str = ""


@dataclass
class HermesStream:
    """A text with calls in it, piece by piece."""

    ids: CallIds
    _text: str = ""
    _content_sent: int = 0
    _calls: list[_Sent] = field(default_factory=list)

    def feed(self, text: str, *, finished: bool) -> Delta | None:
        """What a piece adds; None if nothing can be told yet."""
        self._text += text
        content = self._content()
        calls = list(self._new_calls())
        if content is None and not calls:
            return None
        if finished and calls:
            last = calls[-1]
            # A call that ends before its arguments began has an empty object of them.
            left = "{}" if not _ARGUMENTS.search(self._text.rpartition(BEGIN)[2]) else ""
            calls[-1] = last._replace(arguments=(last.arguments or "") + left)
        return Delta(content, None, calls)

    def _content(self) -> str | None:
        place = self._text.find(BEGIN)
        end = place if place >= 0 else len(self._text) - partial_overlap(self._text, (BEGIN,))
        if end <= self._content_sent:
            return None
        content, self._content_sent = self._text[self._content_sent : end], end
        return content

    def _new_calls(self) -> Iterator[ToolCallDelta]:
        for number, (written, complete) in enumerate(self._written_calls()):
            if number == len(self._calls):
                self._calls.append(_Sent())
            sent = self._calls[number]
            if sent.name is None:
                name = _NAME.search(written)
                if name is None:
                    return
                sent.name = name[1]
                yield ToolCallDelta(number, self.ids.next(), sent.name)
            arguments = _written_arguments(written, complete=complete)
            if len(arguments) > len(sent.arguments):
                more, sent.arguments = arguments[len(sent.arguments) :], arguments
                yield ToolCallDelta(number, arguments=more)

    def _written_calls(self) -> Iterator[tuple[str, bool]]:
        """(the JSON so far, whether it is complete) of each call."""
        for part in self._text.split(BEGIN)[1:]:
            written, closed, _ = part.partition(END)
            if not closed:
                written = written[: len(written) - partial_overlap(written, (END,))]
            yield written.strip(), bool(closed) or _is_json(written.strip())


def _written_arguments(written: str, *, complete: bool) -> str:
    """The arguments as they are written so far; of a complete call without the brace that closes it."""
    begin = _ARGUMENTS.search(written)
    if begin is None:
        return ""
    arguments = written[begin.end() :]
    return arguments.rstrip().removesuffix("}").rstrip() if complete else arguments


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
