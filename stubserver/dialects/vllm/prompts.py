"""Prompts: from what a request gives (text, ids, lists of them) to the token ids that the model sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from stubserver.engine.model import Model
from stubserver.errors import ValidationError
from stubserver.serving.asked import Prompt

PromptInput = Sequence[int] | Sequence[Sequence[int]] | str | Sequence[str]


class Truncation(NamedTuple):
    """How a prompt may be cut: to `limit` tokens (-1: to what the model takes), from the `side` that is dropped.

    No side means the left one: vLLM 0.32.0 loads tokenizers with that, so that the last tokens are kept.
    """

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


class Renderer:
    """Makes prompts into token ids; the same for all prompts of a request, and for requests that agree in the rest.

    Raises ValidationError for lengths that the model's context can't hold.
    """

    def __init__(self, model: Model, *, max_tokens: int, truncation: Truncation, add_special_tokens: bool) -> None:
        check_lengths(model, max_tokens, truncation)
        self._tokenizer = model.tokenizer
        self._limit = model.settings.max_model_len
        self._truncation = truncation
        self._add_special_tokens = add_special_tokens
        self._keep = truncation.limit
        if self._keep == -1:
            # Room for one token of output, unless none was asked for.
            self._keep = self._limit - (1 if max_tokens else 0)

    def prompt(self, given: str | Sequence[int]) -> Prompt:
        """One prompt as token ids. Raises ValidationError if it is too long."""
        tokenizer, limit = self._tokenizer, self._limit
        tokenized = isinstance(given, str)
        if isinstance(given, str):
            text = self._fitting(given) if len(given) > limit else given
            token_ids = tokenizer.encode(text, add_special_tokens=self._add_special_tokens)
        else:
            text, token_ids = tokenizer.decode(given), list(given)
        keep = self._keep
        if keep is not None and keep < len(token_ids):
            right = self._truncation.side == "right"
            token_ids = token_ids[:keep] if right else token_ids[len(token_ids) - keep :]
        if len(token_ids) > limit:
            raise self._too_long(len(token_ids), tokenized=tokenized)
        return Prompt(token_ids, text, tokenized)

    def _fitting(self, text: str) -> str:
        """The text, cut to as many characters as the context may hold where a side is named to cut it from.

        Raises ValidationError for a text that is too long and isn't to be cut.
        """
        longest = self._limit * self._tokenizer.max_chars_per_token
        if len(text) <= longest:
            return text
        if self._truncation.limit is None:
            message = (
                f"This model's maximum context length is {self._limit} tokens. However, your prompt contains "
                f"{len(text)} characters (more than {longest} characters, which is the upper bound for "
                f"{self._limit} input tokens). Please reduce the length of the input prompt."
            )
            raise ValidationError(message, parameter="input_text", value=len(text))
        if self._truncation.side is None:
            return text
        return text[:longest] if self._truncation.side == "right" else text[-longest:]

    def _too_long(self, length: int, *, tokenized: bool) -> ValidationError:
        limit = self._limit
        # vLLM stops tokenizing one token after the limit, so of a text it only knows "at least" that many.
        count = limit + 1 if tokenized else length
        at_least = "at least " if count == limit + 1 else ""
        message = (
            f"This model's maximum context length is {limit} tokens. However, your prompt contains {at_least}{count} "
            "input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt."
        )
        return ValidationError(message, parameter="input_tokens", value=count)


def render_prompts(renderer: Renderer, given: PromptInput) -> list[Prompt]:
    """Every prompt of a request as token ids; they are one or more. Raises ValidationError if one is too long."""
    if isinstance(given, str) or isinstance(given[0], int):
        return [renderer.prompt(given)]  # type: ignore[arg-type]
    return [renderer.prompt(prompt) for prompt in given]  # type: ignore[arg-type]


LARGEST_ID = 2**32 - 1
"""Of the tokenizers library's."""


def check_decodable(token_ids: Sequence[int]) -> None:
    """Refuse to make text of ids that the tokenizer can't even read. Raises ValidationError, in the library's words."""
    if token_ids and max(token_ids) > LARGEST_ID:
        raise ValidationError("number too large to fit in target type")


def check_given(given: PromptInput | None) -> None:
    """Refuse a request without a prompt. Raises ValidationError."""
    if not given:
        raise ValidationError("You must pass at least one prompt")
