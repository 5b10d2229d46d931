"""A chat message and the pieces that it is made of: what parsers give, and how it is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class ToolCallDelta(NamedTuple):
    """A piece of a tool call: its name when it begins, then its arguments bit by bit."""

    number: int
    id: str | None = None
    name: str | None = None
    arguments: str | None = None


class Delta(NamedTuple):
    """What a piece of text adds to the message; None adds nothing. hidden: reasoning isn't shown, but as null."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: Sequence[ToolCallDelta] = ()
    hidden: bool = False


class ToolCall(NamedTuple):
    """A call of a tool, whole."""

    id: str
    name: str
    arguments: str


class Message(NamedTuple):
    """What a generated text is as a message."""

    content: str | None
    reasoning: str | None = None
    tool_calls: Sequence[ToolCall] = ()


def delta_json(delta: Delta) -> dict[str, Any]:
    """A delta as an event has it: only what is set."""
    shown: dict[str, Any] = {}
    if delta.reasoning is not None or delta.hidden:
        shown["reasoning"] = delta.reasoning
    if delta.content is not None or delta.tool_calls:
        shown["content"] = delta.content
    if delta.tool_calls:
        shown["tool_calls"] = [_call_delta_json(call) for call in delta.tool_calls]
    return shown


def _call_delta_json(call: ToolCallDelta) -> dict[str, Any]:
    if call.name is None:
        return {"index": call.number, "function": {"arguments": call.arguments}}
    function = {"name": call.name} if call.arguments is None else {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "index": call.number, "function": function}


def message_json(role: str, message: Message) -> dict[str, Any]:
    """A message as a full reply has it."""
    shown: dict[str, Any] = {
        "role": role,
        "content": message.content,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    if message.tool_calls:
        shown["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    shown["reasoning"] = message.reasoning
    return shown
