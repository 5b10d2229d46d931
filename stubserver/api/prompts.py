"""Prompts: from what a request gives (text, ids, lists of them) to the token ids that the model sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from stubserver.engine.model import Model
from stubserver.errors import ValidationError

PromptInput = Sequence[int] | Sequence[Sequence[int]] | str | Sequence[str]


class Prompt(NamedTuple):
    """`text` is what echo shows: the text as it came (not truncated), or the ids decoded."""

    token_ids: list[int]
    text: str


class Truncation(NamedTuple):
    """How a prompt may be cut: to `limit` tokens (-1: to what the model takes), from the `side` that is dropped."""

    limit: int | None = None
    side: Literal["left", "right"] | None = None


def check_lengths(model: Model, max_tokens: int, truncation: Truncation, name: str = "max_tokens") -> None:
    """Refuse lengths that the model's context can't hold; `name` is max_tokens' own. Raises ValidationError."""
    limit = model.settings.max_model_len
    if max_tokens > limit:
        message = (
            f"{name}={max_tokens} cannot be greater than max_model_len={limit}. Please request fewer output tokens."
        )
        raise ValidationError(message, parameter=name, value=max_tokens)
    if truncation.limit is not None and truncation.limit > limit:
        message = (
            f"truncate_prompt_tokens={truncation.limit} cannot be greater than max_model_len = {limit}. "
            "Please request a smaller truncation size."
        )
        raise ValidationError(message, parameter="truncate_prompt_tokens", value=truncation.limit)


def render_prompts(
    model: Model, given: PromptInput, *, max_tokens: int, truncation: Truncation, add_special_tokens: bool
) -> list[Prompt]:
    """Every prompt of a request as token ids. Raises ValidationError if there is none, or one is too long."""
    if not given:
        raise ValidationError("You must pass at least one prompt")
    check_lengths(model, max_tokens, truncation)
    keep = truncation.limit
    if keep == -1:
        # Room for one token of output, unless none was asked for.
        keep = model.settings.max_model_len - (1 if max_tokens else 0)
    return [_render(model, prompt, keep, truncation, add_special_tokens=add_special_tokens) for prompt in _split(given)]


def _split(given: PromptInput) -> list[str | Sequence[int]]:
    if isinstance(given, str) or isinstance(given[0], int):
        return [given]  # type: ignore[list-item]
    return list(given)  # type: ignore[arg-type]


def _render(
    model: Model, prompt: str | Sequence[int], keep: int | None, truncation: Truncation, *, add_special_tokens: bool
) -> Prompt:
    if isinstance(prompt, str):
        if truncation.limit is None:
            _check_characters(model, prompt)
        token_ids = model.tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
        text = prompt
    else:
        token_ids = list(prompt)
        text = model.tokenizer.decode(token_ids)
    if keep is not None and keep < len(token_ids):
        token_ids = token_ids[len(token_ids) - keep :] if truncation.side == "left" else token_ids[:keep]
    _check_tokens(model, token_ids, tokenized=isinstance(prompt, str))
    return Prompt(token_ids, text)


def _check_characters(model: Model, text: str) -> None:
    limit = model.settings.max_model_len
    if len(text) <= limit:
        return
    longest = limit * model.tokenizer.max_chars_per_token
    if len(text) > longest:
        message = (
            f"This model's maximum context length is {limit} tokens. However, your prompt contains "
            f"{len(text)} characters (more than {longest} characters, which is the upper bound for "
            f"{limit} input tokens). Please reduce the length of the input prompt."
        )
        raise ValidationError(message, parameter="input_text", value=len(text))


def _check_tokens(model: Model, token_ids: Sequence[int], *, tokenized: bool) -> None:
    limit = model.settings.max_model_len
    if len(token_ids) <= limit:
        return
    # vLLM stops tokenizing one token after the limit, so of a text it only knows "at least" that many.
    count = limit + 1 if tokenized else len(token_ids)
    at_least = "at least " if count == limit + 1 else ""
    message = (
        f"This model's maximum context length is {limit} tokens. However, your prompt contains {at_least}{count} "
        "input tokens, which exceeds this limit even without any output tokens. "
        "Please reduce the length of the input prompt."
    )
    raise ValidationError(message, parameter="input_tokens", value=count)
