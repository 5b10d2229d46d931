"""Structural tags: free text with parts that follow a grammar. Masks come from the library; there is no imitation.

Source: xgrammar 0.2.8, `structural_tag.py`, and how vLLM 0.32.0 calls it (`v1/structured_output/backend_xgrammar.py`).
"""

from __future__ import annotations

import json
from typing import Any, Final

from stubserver.errors import UnsupportedError

FORMATS: Final = frozenset(
    (
        *(
            "any_text",
            "any_tokens",
            "const_string",
            "dispatch",
            "exclude_token",
            "grammar",
            "json_schema",
            "optional",
            "or",
        ),
        *("or", "plus", "qwen_xml_parameter", "regex", "repeat", "sequence", "star", "tag", "tags_with_separator"),
        *("token", "token_dispatch", "token_triggered_tags", "triggered_tags"),
    )
)
"""The types of a structural tag's `format`."""

NEEDS_LIBRARY: Final = "Structural tags take the package xgrammar 0.2.8, which isn't installed here."


def as_format(text: str) -> str:
    """A structural tag in the form that the library reads; the older one, with structures and triggers, is rewritten.

    Raises ValueError, TypeError or KeyError for what has neither form.
    """
    tag = json.loads(text)
    if "structures" not in tag:
        return text
    tags = [
        {
            "type": "tag",
            "begin": each["begin"],
            "content": {"type": "json_schema", "json_schema": each["schema"]},
            "end": each["end"],
        }
        for each in tag["structures"]
    ]
    triggered = {"type": "triggered_tags", "triggers": tag["triggers"], "tags": tags}
    return json.dumps({"type": "structural_tag", "format": triggered})


def check_form(text: str) -> None:
    """What can be told of a structural tag without the library.

    Raises ValueError or TypeError if it is none, and else UnsupportedError.
    """
    tag = json.loads(as_format(text))
    form: dict[str, Any] = tag["format"]
    if tag.get("type") != "structural_tag" or form["type"] not in FORMATS:
        raise ValueError("no structural tag")
    if form["type"] == "triggered_tags" and not (form["triggers"] and form["tags"]):
        raise ValueError("no triggers or tags")
    raise UnsupportedError(NEEDS_LIBRARY)
