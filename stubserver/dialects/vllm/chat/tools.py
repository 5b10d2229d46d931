"""Which tools may be called: what is refused, and the grammar that a forced call has to follow.

Source of the rules: vLLM 0.32.0, `renderers/online_renderer.py`, `parser/abstract_parser.py` and
`tool_parsers/structural_tag_registry.py`, and recordings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from stubserver.config.settings import Settings
from stubserver.dialects.vllm.chat.protocol import ChatCompletionToolsParam, ChatFields, NamedToolChoice
from stubserver.engine.behaviour import RequestedConstraint
from stubserver.engine.model import Model
from stubserver.errors import RequestError


def parses_tools(settings: Settings) -> bool:
    """Whether calls of tools are taken out of what is generated: it takes both flags."""
    return bool(settings.enable_auto_tool_choice and settings.tool_call_parser)


def check_tools(model: Model, parsed: ChatFields) -> None:
    """Without a parser for the model's tool calls nothing can be called. Raises RequestError."""
    settings, choice = model.settings, parsed.tool_choice
    if parses_tools(settings) or choice in (None, "none"):
        return
    if choice == "auto":
        if settings.enable_auto_tool_choice:
            return
        raise RequestError('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
    shown = f'function "{choice.function.name}"' if isinstance(choice, NamedToolChoice) else f'"{choice}"'
    raise RequestError(f"tool_choice={shown} requires --tool-call-parser to be set")


def wants_tools(parsed: ChatFields) -> bool:
    """Whether the request lets the model call one of its tools."""
    return bool(parsed.tools) and parsed.tool_choice not in (None, "none")


def forces_a_call(parsed: ChatFields) -> bool:
    """Whether a tool has to be called."""
    return parsed.tool_choice == "required" or isinstance(parsed.tool_choice, NamedToolChoice)


def tool_constraint(settings: Settings, parsed: ChatFields) -> RequestedConstraint | None:
    """The grammar of the calls that a request forces; None if it leaves them free, as it does strict tools here.

    A call is `<tool_call>{"name": ..., "arguments": ...}</tool_call>`, with or without a newline inside either tag. The
    arguments are any JSON; those of a strict tool are of its schema.
    """
    grammatical = settings.tool_call_parser == "hermes" and parses_tools(settings)
    if not (grammatical and wants_tools(parsed) and forces_a_call(parsed)):
        return None
    tools, single = list(parsed.tools or ()), parsed.parallel_tool_calls is False
    if isinstance(parsed.tool_choice, NamedToolChoice):
        wanted, single = parsed.tool_choice.function.name, True
        tools = [tool for tool in tools if tool.function.name == wanted][:1]
    return "grammar", _calls_grammar(tools, single=single)


def _calls_grammar(tools: Sequence[ChatCompletionToolsParam], *, single: bool) -> str:
    """Lark, with llguidance's `%json`."""
    rules = ["start: call" if single else "start: call+", "call: " + " | ".join(f"tool_{i}" for i in range(len(tools)))]
    for number, tool in enumerate(tools):
        name, rule = tool.function.name, f"arguments_{number}"
        tight = f'{json.dumps(_OPEN + _HEAD % name)} {rule} "}}{_CLOSE}"'
        spaced = f"{json.dumps(_OPEN + chr(10) + _HEAD % name)} {rule} {json.dumps('}' + chr(10) + _CLOSE)}"
        rules += [f"tool_{number}: {tight} | {spaced}", f"{rule}: %json {json.dumps(_schema(tool))}"]
    return "\n".join(rules)


_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_HEAD = '{"name": "%s", "arguments": '


def _schema(tool: ChatCompletionToolsParam) -> dict[str, Any]:
    """Of a call's arguments: the tool's own if it is strict, else any JSON."""
    return (tool.function.parameters or {}) if tool.function.strict else {}
