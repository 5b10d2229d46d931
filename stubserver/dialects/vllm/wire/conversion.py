"""A full reply out of a stream's events, and events out of a full reply: completions and chat.

Nothing is added that wasn't there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from stubserver.serving.wire import Document

_USAGE = {"include_usage": True}


def other_form(body: Document) -> Iterator[Document]:
    """The bodies that ask for the same in the other form: full for a stream; a stream, with and without usage."""
    plain = {key: value for key, value in body.items() if key not in ("stream", "stream_options")}
    if body.get("stream"):
        others: Sequence[Document] = ({}, {"stream": False})
    else:
        others = ({"stream": True, "stream_options": _USAGE}, {"stream": True})
    yield from ({**plain, **fields} for fields in others)


# Full → stream --------------------------------------------------------------------------------------------------------


def unfold(document: Document, body: Document) -> list[Document]:
    """An event a choice, and one for the usage if `body` asks for it. Raises KeyError or TypeError."""
    head = {key: value for key, value in document.items() if key not in ("choices", "usage")}
    is_chat = document["object"].startswith("chat.")
    if is_chat:
        head["object"] = "chat.completion.chunk"
    events = [{**head, "choices": [_chat_part(choice) if is_chat else choice]} for choice in document["choices"]]
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append({**head, "choices": [], "usage": document.get("usage")})
    return events


def _chat_part(choice: Document) -> Document:
    delta = dict(choice["message"])
    if delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(delta["tool_calls"])]
    return {**{key: value for key, value in choice.items() if key != "message"}, "delta": delta}


# Stream → full --------------------------------------------------------------------------------------------------------


def fold(documents: Sequence[Document]) -> Document:
    """The full reply of these events. Raises ValueError for an error among them, KeyError, TypeError or IndexError."""
    full = {**documents[0], "choices": [], "usage": None}
    choices: dict[int, Document] = {}
    for document in documents:
        if "error" in document:
            raise ValueError("the stream ended in an error")
        full["usage"] = document.get("usage") or full["usage"]
        for choice in document["choices"]:
            known = choices.get(choice["index"])
            choices[choice["index"]] = choice if known is None else _joined(known, choice)
    full["choices"] = [_whole_choice(choices[index]) for index in sorted(choices)]
    full["object"] = full["object"].removesuffix(".chunk")
    return full


def _whole_choice(choice: Document) -> Document:
    if "delta" not in choice:
        return choice
    message = dict(choice["delta"])
    if message.get("tool_calls"):
        message["tool_calls"] = [{key: call[key] for key in call if key != "index"} for call in message["tool_calls"]]
    return {**{key: value for key, value in choice.items() if key != "delta"}, "message": message}


_FIXED = ("index", "id", "role", "type", "name", "finish_reason", "stop_reason", "object", "model")
"""Keys whose later value stands; texts of other keys go one after the other."""


def _joined(before: Any, after: Any, key: str = "") -> Any:
    """Two parts of a value as one: texts and lists one after the other, objects key by key."""
    if after is None or before is None or key in _FIXED:
        return before if after is None else after
    if isinstance(before, dict) and isinstance(after, dict):
        return {name: _joined(before.get(name), after.get(name), name) for name in [*before, *(after.keys() - before)]}
    if key == "tool_calls":
        return _joined_calls(before, after)
    if isinstance(before, str) and isinstance(after, str):
        return before + after
    return before + after if isinstance(before, list) and isinstance(after, list) else after


def _joined_calls(before: list[Any], after: list[Any]) -> list[Any]:
    calls = {call["index"]: call for call in before}
    for call in after:
        known = calls.get(call["index"])
        calls[call["index"]] = call if known is None else _joined(known, call)
    return [calls[index] for index in sorted(calls)]
