"""A full reply out of a recorded stream, and a stream out of a full reply. Nothing is added that wasn't recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from stubserver.playback.canonical import parse_json
from stubserver.playback.exchange import Event, Reply, Request

CONVERTED = "x-stub-converted"
"""The header of a converted reply; its value is the form that was recorded."""

USAGE = {"include_usage": True}
DONE = b"data: [DONE]\n\n"


def other_form(request: Request) -> Iterator[Request]:
    """The requests for the same in the other form: full for a stream; a stream, with and without usage, for full."""
    try:
        body = parse_json(request.body)
    except ValueError:
        return
    if not isinstance(body, dict):
        return
    plain = {key: value for key, value in body.items() if key not in ("stream", "stream_options")}
    others = (
        ({}, {"stream": False}) if body.get("stream") else ({"stream": True, "stream_options": USAGE}, {"stream": True})
    )
    for fields in others:
        yield replace(request, body=json.dumps({**plain, **fields}).encode())


def convert_reply(reply: Reply, request: Request) -> Reply | None:
    """The reply in its other form; None if it can't be told."""
    if reply.status != 200:
        return reply
    body = parse_json(request.body)
    try:
        return _to_full(reply) if reply.events is not None else _to_stream(reply, body)
    except (ValueError, KeyError, TypeError, IndexError):
        return None


def _reply(reply: Reply, form: str, media_type: str, body: bytes, events: tuple[Event, ...] | None) -> Reply:
    headers = tuple(pair for pair in reply.headers if pair[0] != "content-type")
    return replace(reply, headers=(*headers, ("content-type", media_type), (CONVERTED, form)), body=body, events=events)


# Full → stream --------------------------------------------------------------------------------------------------------


def _to_stream(reply: Reply, body: dict[str, Any]) -> Reply:
    full = parse_json(reply.body)
    head = {key: value for key, value in full.items() if key not in ("choices", "usage")}
    is_chat = full["object"].startswith("chat.")
    if is_chat:
        head["object"] = "chat.completion.chunk"
    parts = [{**head, "choices": [_chat_part(choice) if is_chat else choice]} for choice in full["choices"]]
    if (body.get("stream_options") or {}).get("include_usage"):
        parts.append({**head, "choices": [], "usage": full.get("usage")})
    events = [
        b"data: " + json.dumps(part, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n" for part in parts
    ]
    timed = tuple(Event(reply.seconds, event) for event in (*events, DONE))
    return _reply(reply, "full", "text/event-stream; charset=utf-8", b"", timed)


def _chat_part(choice: dict[str, Any]) -> dict[str, Any]:
    delta = dict(choice["message"])
    if delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(delta["tool_calls"])]
    return {**{key: value for key, value in choice.items() if key != "message"}, "delta": delta}


# Stream → full --------------------------------------------------------------------------------------------------------


def _to_full(reply: Reply) -> Reply:
    parts = [parse_json(event.data.removeprefix(b"data:")) for event in reply.events or () if not _is_done(event)]
    full = {**parts[0], "choices": [], "usage": None}
    choices: dict[int, dict[str, Any]] = {}
    for part in parts:
        if "error" in part:
            raise ValueError("the stream ended in an error")
        full["usage"] = part.get("usage") or full["usage"]
        for choice in part["choices"]:
            known = choices.get(choice["index"])
            choices[choice["index"]] = choice if known is None else _joined(known, choice)
    full["choices"] = [_whole_choice(choices[index]) for index in sorted(choices)]
    full["object"] = full["object"].removesuffix(".chunk")
    body = json.dumps(full, ensure_ascii=False, separators=(",", ":")).encode()
    return _reply(reply, "stream", "application/json", body, None)


def _is_done(event: Event) -> bool:
    return event.data.removeprefix(b"data:").strip() in (b"[DONE]", b"")


def _whole_choice(choice: dict[str, Any]) -> dict[str, Any]:
    if "delta" not in choice:
        return choice
    message = dict(choice["delta"])
    if message.get("tool_calls"):
        message["tool_calls"] = [{key: call[key] for key in call if key != "index"} for call in message["tool_calls"]]
    return {**{key: value for key, value in choice.items() if key != "delta"}, "message": message}


FIXED = ("index", "id", "role", "type", "name", "finish_reason", "stop_reason", "object", "model")
"""Keys whose later value stands; texts of other keys go one after the other."""


def _joined(before: Any, after: Any, key: str = "") -> Any:
    """Two parts of a value as one: texts and lists one after the other, objects key by key."""
    if after is None or before is None or key in FIXED:
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
