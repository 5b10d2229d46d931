"""The vocabulary as grammar libraries see it: the bytes of every token."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from stubserver.tokenizer.hf import HFTokenizer


class Vocabulary:
    """Bytes and special ids of a model's tokens.

    Nothing in it leads to a library's object: those hold it, and Python can't see through them to free a cycle.
    """

    def __init__(self, tokenizer: HFTokenizer, vocab_size: int) -> None:
        self.tokenizer = tokenizer
        self.size = vocab_size
        self.eos_token_id = tokenizer.eos_token_id

    @cached_property
    def tokens(self) -> list[bytes]:
        """Bytes of each id; ids that the tokenizer doesn't know have none, so no grammar allows them."""
        known = self.tokenizer.vocab_size
        return [self.tokenizer.token_bytes(i) if i < known else b"" for i in range(self.size)]

    def llguidance(self, special_token_ids: list[int]) -> Any:
        """llguidance's tokenizer over it. special_token_ids: tokens that aren't text."""
        from llguidance import LLTokenizer, TokenizerWrapper

        return LLTokenizer(TokenizerWrapper(_Tokenizer(self, special_token_ids)), n_vocab=self.size)


class _Tokenizer:
    """What llguidance asks a tokenizer for."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, special_token_ids: list[int]) -> None:
        eos = vocabulary.eos_token_id
        self._tokenizer = vocabulary.tokenizer
        self.tokens = vocabulary.tokens
        self.eos_token_id = vocabulary.size - 1 if eos is None else eos
        self.special_token_ids = special_token_ids

    def __call__(self, text: str | bytes) -> list[int]:
        """Tokenize."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._tokenizer.encode(text, add_special_tokens=False)
