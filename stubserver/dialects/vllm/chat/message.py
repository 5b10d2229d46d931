"""Taking a generated text apart into a chat message: content, reasoning and tool calls.

A server finds them by parsers for its model's markup. Here the script knows which part of its text is what, so the
parser only counts characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from stubserver.script.context import Segment
from stubserver.serving.sending import random_id
from stubserver.tokenizer.base import Tokenizer


class ToolCallDelta(NamedTuple):
    """A piece of a tool call: its name when it begins, then its arguments bit by bit."""

    number: int
    id: str | None = None
    name: str | None = None
    arguments: str | None = None


class Delta(NamedTuple):
    """What a piece of text adds to the message; None adds nothing."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: Sequence[ToolCallDelta] = ()


class MessageParser:
    """One choice's text, piece by piece, as deltas of its message. Without segments all of it is content."""

    def __init__(self, segments: Sequence[Segment], tokenizer: Tokenizer, *, skip_special_tokens: bool) -> None:
        self._segments = [
            (segment, _shown(segment, tokenizer, skip_special_tokens=skip_special_tokens)) for segment in segments
        ]
        self._scripted = bool(segments)
        self._calls = 0

    def feed(self, text: str) -> Delta:
        """The delta of the text that follows what came before."""
        if not self._scripted:
            return Delta(content=text)
        content, reasoning = "", ""
        calls: list[ToolCallDelta] = []
        while text and self._segments:
            segment, left = self._segments[0]
            piece, text = text[:left], text[left:]
            if segment.kind == "content":
                content += piece
            elif segment.kind == "reasoning":
                reasoning += piece
            elif segment.kind == "tool_call":
                calls.append(ToolCallDelta(self._calls - 1, arguments=piece))
            self._segments[0] = (segment, left - len(piece))
            if len(piece) == left:
                calls += self._next_segment()
        # Text that the script doesn't know of (it was forced or sampled otherwise) is content.
        return Delta((content + text) or None, reasoning or None, calls)

    def _next_segment(self) -> list[ToolCallDelta]:
        """Go on to the next segment; a tool call shows its name as soon as it is its turn."""
        self._segments.pop(0)
        if not self._segments or self._segments[0][0].kind != "tool_call":
            return []
        segment = self._segments[0][0]
        self._calls += 1
        return [ToolCallDelta(self._calls - 1, segment.id or f"chatcmpl-tool-{random_id()}", segment.name)]


def _shown(segment: Segment, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> int:
    """How many characters of a segment the output shows: markup may be special tokens."""
    token_ids = tokenizer.encode(segment.text, add_special_tokens=False)
    return len(tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens))


def delta_json(delta: Delta) -> dict[str, Any]:
    """A delta as an event has it: only what is set."""
    shown: dict[str, Any] = {}
    if delta.reasoning is not None:
        shown["reasoning"] = delta.reasoning
    if delta.content is not None or delta.tool_calls:
        shown["content"] = delta.content
    if delta.tool_calls:
        shown["tool_calls"] = [_call_delta_json(call) for call in delta.tool_calls]
    return shown


def _call_delta_json(call: ToolCallDelta) -> dict[str, Any]:
    if call.name is not None:
        return {"id": call.id, "type": "function", "index": call.number, "function": {"name": call.name}}
    return {"index": call.number, "function": {"arguments": call.arguments}}


def message_json(role: str, deltas: Iterable[Delta]) -> dict[str, Any]:
    """The message that the deltas add up to."""
    deltas = list(deltas)
    message: dict[str, Any] = {
        "role": role,
        "content": _joined(delta.content for delta in deltas),
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    tool_calls = _tool_calls(call for delta in deltas for call in delta.tool_calls)
    if tool_calls:
        message["tool_calls"] = tool_calls
    message["reasoning"] = _joined(delta.reasoning for delta in deltas)
    return message


def _joined(pieces: Iterable[str | None]) -> str | None:
    given = [piece for piece in pieces if piece is not None]
    return "".join(given) if given else None


def _tool_calls(deltas: Iterable[ToolCallDelta]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        if delta.name is not None:
            function = {"name": delta.name, "arguments": ""}
            calls.append({"id": delta.id, "type": "function", "function": function})
        else:
            calls[delta.number]["function"]["arguments"] += delta.arguments
    return calls
