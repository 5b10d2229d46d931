"""Token counts, in the shapes that vLLM gives them."""

from __future__ import annotations

from typing import Any


def usage(prompt_tokens: int, completion_tokens: int, *, details: bool = False, nulls: bool = False) -> dict[str, Any]:
    """Counts of a reply. A full reply (`nulls`) has every field, an event leaves out what isn't set."""
    counts: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }
    # No prefix is ever cached here, so what vLLM reports of its cache is 0.
    cached: dict[str, Any] = {"cached_tokens": 0}
    if nulls:
        cached |= {"created_cache_tokens": None, "multimodal_tokens": None}
        counts["prompt_tokens_details"] = cached if details else None
        counts["completion_tokens_details"] = None
    elif details:
        counts["prompt_tokens_details"] = cached
    return counts
