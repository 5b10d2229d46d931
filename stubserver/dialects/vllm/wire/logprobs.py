"""Logprobs in the shapes of the wire: four lists for completions, a list of entries for chat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from stubserver.dialects.vllm.behaviour import VLLM_0_32_0
from stubserver.dialects.vllm.wire.positions import placeholder as placeholder
from stubserver.engine.generate import Step, check_finite
from stubserver.engine.model import Model
from stubserver.sampling.logprobs import PositionLogprobs
from stubserver.tokenizer.base import Tokenizer

R = TypeVar("R")

MASKED = VLLM_0_32_0.sentinel


def sendable(value: float) -> float:
    """A value as it can go out: -inf has no JSON."""
    return MASKED if value < MASKED else value


class Display(NamedTuple):
    """How a request wants to see logprobs.

    limit: how many entries beside the first `top_logprobs` may have; None for all. as_token_ids: `token_id:N` for text.
    """

    tokenizer: Tokenizer
    limit: int | None
    as_token_ids: bool


class DisplayFields(Protocol):
    """What of a request says how it wants to see them."""

    logprob_token_ids: list[int] | None
    return_tokens_as_token_ids: bool | None


def make_display(model: Model, request: DisplayFields, count: int | None) -> Display:
    """What the request says, else the server's setting. `count`: how many top tokens are asked for; -1 means all."""
    as_token_ids = request.return_tokens_as_token_ids
    if as_token_ids is None:
        as_token_ids = model.settings.return_tokens_as_token_ids
    everything = bool(request.logprob_token_ids) or count == -1
    return Display(model.tokenizer, None if everything else count, as_token_ids)


def completion_logprobs(
    token_ids: Sequence[int], positions: Iterable[PositionLogprobs | None], display: Display, offset: int
) -> tuple[dict[str, Any], int]:
    """(the lists for these tokens, where the text after them begins). `offset`: where the first one's text begins.

    A position without values (the first of a prompt) gets null. Two ids with the same text share one key of
    `top_logprobs`, and the later one's value, as in vLLM.
    """
    offsets: list[int] = []
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    for token_id, position in zip(token_ids, positions, strict=True):
        if position is None:
            token, value, top = display.tokenizer.decode([token_id]), None, None
            token = placeholder(token_id) if display.as_token_ids else token
        else:
            token, value, top = _shown(_entry, position, token_id, display)
        offsets.append(offset)
        offset += len(token)
        tokens.append(token)
        token_logprobs.append(value)
        top_logprobs.append(top)
    lists = {
        "text_offset": offsets,
        "token_logprobs": token_logprobs,
        "tokens": tokens,
        "top_logprobs": top_logprobs,
    }
    return lists, offset


def chat_logprobs(step: Step, display: Display) -> dict[str, Any]:
    """`logprobs` of a chat choice: an entry a token of the step, with at most `limit` top ones, the sampled one first.

    A top token's bytes are those of what is shown for it, a placeholder's too; a generated token's are its own text's.
    """
    positions = step.logprobs or ()
    pairs = zip(step.token_ids, positions, strict=False)
    return {"content": [_shown(_chat_entry, position, token_id, display) for token_id, position in pairs]}


def prompt_logprobs(positions: Iterable[PositionLogprobs | None]) -> list[dict[str, Any] | None]:
    """`prompt_logprobs` of a reply: per token, id → logprob, rank and text. Raises ValidationError for NaN."""
    positions = list(positions)
    check_finite(value for position in positions if position for value in position.logprobs)
    return [None if position is None else _prompt_entry(position) for position in positions]


Make = Callable[[PositionLogprobs, int, Display], R]


def _shown(make: Make[R], position: PositionLogprobs, token_id: int, display: Display) -> R:
    """What `make` makes of these: once, where the values come again."""
    if position.shown is None:
        return make(position, token_id, display)
    key = (make, token_id, display)
    made: R | None = position.shown.find(key)
    if made is None:
        made = make(position, token_id, display)
        position.shown.keep(key, made)
    return made


def _entry(position: PositionLogprobs, token_id: int, display: Display) -> tuple[str, float, dict[str, float]]:
    """What completions have of a token in each of their lists but the offsets."""
    place = position.token_ids.index(token_id)
    token = placeholder(token_id) if display.as_token_ids else position.tokens[place]
    return token, sendable(position.logprobs[place]), _top(position, display)


def _top(position: PositionLogprobs, display: Display) -> dict[str, float]:
    count = len(position.token_ids) if display.limit is None else display.limit + 1
    names = list(map(placeholder, position.token_ids)) if display.as_token_ids else position.tokens
    shown = zip(names[:count], position.logprobs[:count], strict=True)
    return {name: sendable(value) for name, value in shown}


def _chat_entry(position: PositionLogprobs, token_id: int, display: Display) -> dict[str, Any]:
    place = position.token_ids.index(token_id)
    text = position.tokens[place]
    names = list(map(placeholder, position.token_ids)) if display.as_token_ids else position.tokens
    top = list(zip(names, position.logprobs, strict=True))[: display.limit]
    return {
        "token": placeholder(token_id) if display.as_token_ids else text,
        "logprob": sendable(position.logprobs[place]),
        "bytes": _utf8(text),
        "top_logprobs": [{"token": name, "logprob": sendable(value), "bytes": _utf8(name)} for name, value in top],
    }


def _utf8(text: str) -> list[int]:
    return list(text.encode("utf-8", "replace"))


def _prompt_entry(position: PositionLogprobs) -> dict[str, Any]:
    rows = zip(position.token_ids, position.logprobs, position.ranks, position.tokens, strict=True)
    return {
        str(token_id): {"logprob": sendable(value), "rank": rank, "decoded_token": token}
        for token_id, value, rank, token in rows
    }
