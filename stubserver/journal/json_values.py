"""What the journal knows as JSON values."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

from stubserver.engine.label_values import LabelValue


def json_or_text(data: bytes) -> Any:
    """The JSON value of a body or an event, or its text if it has none; None for nothing."""
    if not data:
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data.decode("utf-8", "replace")


def describe_label(value: LabelValue) -> dict[str, Any]:
    """A label's values as JSON: null for what is masked."""
    return no_infinity(value._asdict())


def no_infinity(values: dict[str, Any]) -> dict[str, Any]:
    """The values, null for what isn't finite, which JSON can't carry."""
    return {name: None if isinstance(value, float) and not isfinite(value) else value for name, value in values.items()}
