"""What people want to know of a recorded server and of what it was asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stubserver.serving.wire import Document

IDENTITY_PATHS = {"version": "/version", "models": "/v1/models"}


def describe_server(identity: Mapping[str, Any]) -> dict[str, str]:
    """Its version and its models, as far as they are known."""
    version, models = (identity.get(key) for key in IDENTITY_PATHS)
    named = version.get("version") if isinstance(version, dict) else version
    entries = models.get("data", []) if isinstance(models, dict) else []
    names = ", ".join(str(entry.get("id")) for entry in entries if isinstance(entry, dict))
    return {"version": str(named or ""), "models": names}


def last_prompt(body: Document) -> Any:
    """The prompt, or the last message's content."""
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    return body.get("prompt", last.get("content") if isinstance(last, dict) else None)
