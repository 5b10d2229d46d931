"""Recorded requests and replies, as far as a script can be made of them: completions and chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stubserver.serving.wire import Document, LeftOutError, RecordedRequest

ROUTES = ("/v1/completions", "/v1/chat/completions")

MOVING = (
    *("allowed_token_ids", "bad_words", "logit_bias", "structured_outputs", "response_format", "min_tokens"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "top_p", "top_k", "min_p"),
)
"""Fields that move processed logprobs away from what the model says, and the greedy token from the likeliest one."""

_NEUTRAL: Sequence[Any] = (None, 0, 1, -1, [], {})
"""Values with which they do nothing."""


def read_request(path: str, body: Document) -> RecordedRequest:
    """What a recorded request asked for. Raises LeftOutError."""
    if path not in ROUTES:
        raise LeftOutError("no logprobs in it")
    if body.get("echo"):
        raise LeftOutError("it echoes its prompt")
    moved = [name for name in MOVING if body.get(name) not in _NEUTRAL]
    choices = max(int(body.get("n") or 1), 1)
    return RecordedRequest(_prompts(body), choices, _count_top(body), moved, body.get("temperature"))


def read_endings(document: Document, body: Document) -> list[bool]:
    """For each choice of a full reply, whether the model's own end of sequence ended it."""
    return [
        choice.get("finish_reason") == "stop" and choice.get("stop_reason") is None and not body.get("stop")
        for choice in document.get("choices") or ()
    ]


def read_token_id(token: str) -> int | None:
    """The id that is shown in place of a token's text, `token_id:N`; None for a text."""
    kind, _, number = token.partition(":")
    return int(number) if kind == "token_id" and number.isdecimal() else None


def _count_top(body: Mapping[str, Any]) -> int | None:
    """How many of the likeliest tokens were asked for; None for all."""
    if body.get("logprob_token_ids"):
        return 0
    count = body.get("top_logprobs" if "messages" in body else "logprobs")
    return None if count == -1 else int(count or 0)


def _prompts(body: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    """For each prompt, the condition that it is asked again."""
    if "messages" in body:
        fields = {name: {"exact": body[name]} for name in ("messages", "tools") if body.get(name) is not None}
        return [{"field": fields}]
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return [{"prompt": {"exact": prompt}}]
    if not isinstance(prompt, list) or not prompt:
        raise LeftOutError("it has no prompt")
    if isinstance(prompt[0], int):
        return [{"prompt": {"token_ids": prompt}}]
    return [{"prompt": {"exact": each} if isinstance(each, str) else {"token_ids": each}} for each in prompt]
