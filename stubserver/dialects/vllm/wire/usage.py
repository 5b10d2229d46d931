"""Token counts, in the shapes that vLLM gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stubserver.config.settings import Settings
from stubserver.dialects.vllm.protocol import StreamOptions

# No prefix is ever cached here, so what vLLM reports of its cache is 0. Completions don't report what was added to it.
COMPLETION_DETAILS = {"cached_tokens": 0}
CHAT_DETAILS = {"cached_tokens": 0, "created_cache_tokens": 0}

_ALL_DETAILS = {"cached_tokens": None, "created_cache_tokens": None, "multimodal_tokens": None}


def usage(
    prompt_tokens: int,
    completion_tokens: int,
    *,
    details: Mapping[str, int] | None = None,
    reasoning_tokens: int | None = None,
    nulls: bool = False,
) -> dict[str, Any]:
    """Counts of a reply. A full reply (`nulls`) has every field, an event leaves out what isn't set.

    details: what is known of the prompt's tokens, where the server is set up to tell.
    """
    counts: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }
    if nulls:
        counts["prompt_tokens_details"] = {**_ALL_DETAILS, **details} if details is not None else None
        counts["completion_tokens_details"] = None
    elif details is not None:
        counts["prompt_tokens_details"] = details
    if reasoning_tokens is not None:
        counts["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
    return counts


def usage_in_stream(options: StreamOptions | None, settings: Settings) -> tuple[bool, bool]:
    """(whether a stream's last event reports usage, whether every event does)."""
    if settings.enable_force_include_usage:
        return True, True
    include = bool(options and options.include_usage)
    return include, include and bool(options and options.continuous_usage_stats)
