"""A scripted chat message as the text that a model would generate for it.

The markup around reasoning and tool calls is that of Qwen's and Hermes' chat format, without the newlines that models
put around reasoning: vLLM's parsers would leave them in. A server with the parsers for it takes it out again;
/v1/completions shows it.
"""

from __future__ import annotations

import json

from stubserver.script.context import Segment
from stubserver.script.file.schema import MessageKeys, ToolCallKeys


def message_segments(message: MessageKeys) -> tuple[Segment, ...]:
    """The parts of the message, in the order in which they are generated."""
    segments: list[Segment] = []
    if message.reasoning is not None:
        segments += [
            Segment("markup", "<think>"),
            Segment("reasoning", message.reasoning),
            Segment("markup", "</think>"),
        ]
    if message.content is not None:
        segments.append(Segment("content", message.content))
    for tool_call in message.tool_calls:
        segments += _tool_call(tool_call)
    return tuple(segments)


def _tool_call(tool_call: ToolCallKeys) -> list[Segment]:
    arguments = tool_call.arguments
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    head = f'<tool_call>\n{{"name": {json.dumps(tool_call.name, ensure_ascii=False)}, "arguments": '
    return [
        Segment("markup", head),
        Segment("tool_call", text, tool_call.name, tool_call.id),
        Segment("markup", "}\n</tool_call>\n"),
    ]
