"""Which tokens begin and end a thought, for `thinking_token_budget`. Source: vLLM 0.32.0, `config/reasoning.py`."""

from __future__ import annotations

from stubserver.config.settings import Settings
from stubserver.sampling.params import ThinkingMarks
from stubserver.tokenizer.base import Tokenizer

START, END = "<think>", "</think>"
"""What most of vLLM's reasoning parsers look for."""


def thinking_marks(settings: Settings, tokenizer: Tokenizer) -> ThinkingMarks | None:
    """The marks of the server's reasoning parser; None without one."""
    if not settings.reasoning_parser:
        return None
    start, end = (tokenizer.encode(text, add_special_tokens=False) for text in (START, END))
    return ThinkingMarks(start, end)
