"""Which tools may be called: what is refused, and the grammar that a forced call has to follow.

Source of the rules: vLLM 0.32.0, `renderers/online_renderer.py`, `parser/abstract_parser.py` and
`tool_parsers/structural_tag_registry.py`, and recordings.
"""

from __future__ import annotations

from stubserver.config.settings import Settings
from stubserver.dialects.vllm.chat.protocol import ChatFields, NamedToolChoice
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
