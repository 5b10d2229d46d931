"""From checked messages to what a chat template gets: parts read, media refused, calls as objects.

Source of the rules: vLLM 0.32.0, `renderers/chat_utils.py` and `renderers/hf.py`, and recordings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter
from pydantic import ValidationError as PydanticError

from stubserver.dialects.vllm.chat.messages import (
    PART_KEYS,
    ChatCompletionContentPartAudioParam,
    ChatCompletionContentPartImageParam,
    ChatCompletionContentPartVideoParam,
)
from stubserver.errors import RequestError, ValidationError

TemplateMessage = dict[str, Any]

TEXT_KEYS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""The types of parts that are text → the key that has it."""

MAY_LACK_TEXT = ("text", "refusal")

MEDIA_TYPES = (
    *("audio_embeds", "audio_url", "image_embeds", "image_pil", "image_url", "input_audio", "input_image"),
    *("prompt_embeds", "video_embeds", "video_url"),
)
SUPPORTED_TYPES = sorted([*TEXT_KEYS, *MEDIA_TYPES, "tool_reference"])

UNTYPED_KEYS = (
    *("image_url", "image_pil", "image_embeds", "audio_embeds", "video_embeds", "prompt_embeds", "audio_url"),
    *("input_audio", "video_url", "tool_reference"),
)
"""The keys that say what a part without a type is, the first that is there."""

_CHECKED: dict[str, TypeAdapter[Any]] = {
    "image_url": TypeAdapter(ChatCompletionContentPartImageParam),
    "audio_url": TypeAdapter(ChatCompletionContentPartAudioParam),
    "video_url": TypeAdapter(ChatCompletionContentPartVideoParam),
}
"""Parts that are checked once more when they are read."""

BILLING_HEADER = "x-anthropic-billing-header"


def read_conversation(messages: Sequence[Any], model_name: str, *, takes_parts: bool) -> list[TemplateMessage]:
    """The messages as a template gets them.

    takes_parts: a content is the list of its parts; else their texts, those that have one, joined by newlines.
    Raises RequestError for what can't be read or is no text.
    """
    try:
        shown = [_read_message(message, model_name, takes_parts=takes_parts) for message in messages]
    except PydanticError as error:
        # Parts are checked as they are read; then there is only pydantic's own text.
        raise RequestError(str(error)) from None
    for message in shown:
        if message["role"] == "assistant" and "tool_calls" in message:
            _use_objects(message)
    return shown


def _read_message(message: Any, model_name: str, *, takes_parts: bool) -> TemplateMessage:
    if not isinstance(message, dict):
        raise RequestError(f"'{type(message).__name__}' object is not subscriptable")
    role, content = message["role"], message.get("content")
    parts: Iterable[Any] = [] if content is None else content
    if isinstance(content, str):
        parts = [{"type": "text", "text": content}]
    if role == "system":
        # All of them are read, and so checked, before the first one is looked at.
        parts = list(_without_billing_header(parts))
    read = [_read_part(part, model_name, takes_parts=takes_parts) for part in parts]
    kept = [part for part in read if part]
    joined = not takes_parts or (role == "tool" and all(_is_text(part) for part in kept))
    shown = {"role": role, "content": "\n".join(map(_text_of, kept)) if joined else kept}
    for key, value in _EXTRAS.get(role, _no_extras)(message).items():
        shown[key] = value
    shown |= {key: message[key] for key in ("name", "task") if isinstance(message.get(key), str)}
    if role == "developer":
        shown["tools"] = message.get("tools")
    return shown


def _is_text(part: Any) -> bool:
    return isinstance(part, str) or part["type"] == "text"


def _text_of(part: Any) -> str:
    return part if isinstance(part, str) else str(part["text"])


def _assistant_extras(message: Mapping[str, Any]) -> dict[str, Any]:
    extras: dict[str, Any] = {}
    if message.get("tool_calls") is not None:
        extras["tool_calls"] = [
            {**call, "function": dict(call["function"])} if "function" in call else call
            for call in message["tool_calls"]
        ]
    if message.get("reasoning") is not None:
        extras |= {"reasoning": message["reasoning"], "reasoning_content": message["reasoning"]}
    return extras


def _tool_extras(message: Mapping[str, Any]) -> dict[str, Any]:
    return {"tool_call_id": message["tool_call_id"]} if "tool_call_id" in message else {}


def _no_extras(message: Mapping[str, Any]) -> dict[str, Any]:
    return {}


_EXTRAS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "assistant": _assistant_extras,
    "tool": _tool_extras,
}


def _without_billing_header(parts: Iterable[Any]) -> Iterable[Any]:
    """Without the line that Claude Code puts in front of a system text: it would differ with every request."""
    for part in parts:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
        if not (isinstance(text, str) and text.startswith(BILLING_HEADER)):
            yield part
        elif rest := text.partition("\n")[2]:
            yield rest if isinstance(part, str) else {**part, "text": rest}


def _read_part(part: Any, model_name: str, *, takes_parts: bool) -> Any:
    """A part as the template gets it; None or "" for one that it doesn't get."""
    if isinstance(part, str):
        return part
    kind = _kind_of(part)
    if kind in TEXT_KEYS:
        text = part.get(TEXT_KEYS[kind])
        if text is None and kind in MAY_LACK_TEXT:
            return None
        return {"type": "text", "text": text, **_further_keys(part)} if takes_parts else text
    if kind == "tool_reference":
        return {"type": kind, "name": part.get("name")} if takes_parts else part.get("name")
    raise _refusal(part, kind, model_name)


def _further_keys(part: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key not in PART_KEYS}


def _kind_of(part: Mapping[str, Any]) -> str:
    """A part's type, or what it is by its keys. Raises ValidationError if nothing says it."""
    kind, given = part.get("type"), part.get("uuid") is not None
    if isinstance(kind, str) and kind in SUPPORTED_TYPES and not given:
        return kind
    if kind is None or given:
        named = next((key for key in UNTYPED_KEYS if key in part), None)
        if named is None:
            raise ValidationError("Missing 'type' field in multimodal part.", parameter="type")
        return named
    if not isinstance(kind, str):
        raise ValidationError("Invalid 'type' field in multimodal part.", parameter="type")
    return kind


def _refusal(part: Mapping[str, Any], kind: str, model_name: str) -> RequestError:
    """Why a part that is no text is refused: the model takes text alone."""
    if kind not in SUPPORTED_TYPES:
        message = f"Unsupported chat content part type: {kind!r}. Supported types: {', '.join(SUPPORTED_TYPES)}."
        return ValidationError(message, parameter="type", value=kind)
    if kind == "prompt_embeds":
        if not part.get("data"):
            message = "prompt_embeds content part requires a non-empty `data` field with base64-encoded tensor bytes."
            return ValidationError(message, parameter="prompt_embeds")
        message = "You must set `--enable-prompt-embeds` to input `prompt_embeds`"
        return ValidationError(message, parameter="prompt_embeds")
    if kind.endswith("_embeds"):
        return RequestError("The model is not multimodal.")
    if part.get("type") in _CHECKED and part.get("uuid") is None:
        _CHECKED[kind].validate_python(part)
    return RequestError(f"{model_name} is not a multimodal model")


def _use_objects(message: TemplateMessage) -> None:
    """Arguments of calls as objects, in place: a text that is none becomes an empty one. Raises ValidationError."""
    if not message["tool_calls"]:
        del message["tool_calls"]
        return
    for call in message["tool_calls"]:
        function = call.get("function")
        if call.get("type", "function") != "function" or not isinstance(function, dict):
            message_text = "chat completions only support assistant tool_calls of type 'function'."
            raise ValidationError(message_text, parameter="tool_calls")
        function["arguments"] = _arguments(function.get("arguments"))


def _arguments(given: Any) -> dict[str, Any]:
    try:
        read = json.loads(given) if given else {}
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def without_developers(messages: Sequence[TemplateMessage]) -> Sequence[TemplateMessage]:
    """For a template that doesn't know the role: developers' messages are the system's.

    Those of the system then come first, as one, their texts with an empty line between; if it isn't the first alone.
    """
    if not any(message["role"] == "developer" for message in messages):
        return messages
    shown = [_as_system(message) if message["role"] == "developer" else message for message in messages]
    places = [place for place, message in enumerate(shown) if message["role"] == "system"]
    if places == [0]:
        return shown
    texts = [_joined(shown[place].get("content", "")) for place in places]
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in shown if message["role"] != "system")]


def _as_system(message: TemplateMessage) -> TemplateMessage:
    return {**{key: value for key, value in message.items() if key != "tools"}, "role": "system"}


def _joined(content: Any) -> str:
    if isinstance(content, str):
        return content
    texts = [
        part if isinstance(part, str) else part["text"] for part in content if isinstance(part, str) or "text" in part
    ]
    return "\n".join(texts)
