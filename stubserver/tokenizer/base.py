"""What the server needs of a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """Text ↔ token ids. Ids that the tokenizer doesn't know decode to nothing, as vLLM has it."""

    @property
    def name(self) -> str:
        """Where it came from, for people: "builtin", or the path."""
        ...

    @property
    def vocab_size(self) -> int:
        """The highest token id plus one."""
        ...

    @property
    def eos_token_id(self) -> int | None:
        """The end-of-sequence token, if there is one."""
        ...

    @property
    def chat_template(self) -> str | None:
        """The Jinja template of tokenizer_config.json (or chat_template.jinja)."""
        ...

    @property
    def special_tokens(self) -> dict[str, str]:
        """For the chat template: "bos_token", "eos_token", "pad_token", … → text."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Text → ids. `add_special_tokens` runs the post-processor, which may add BOS and the like."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Ids → text; bytes that are no whole UTF-8 character become U+FFFD."""
        ...

    def id_to_piece(self, token_id: int) -> str | None:
        """The vocabulary's own spelling of a token ("Ġblue"), or None if there is no such token."""
        ...

    def token_text(self, token_id: int) -> str:
        """What this token alone decodes to, its leading space kept; a byte token may give U+FFFD."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that this token adds to the output."""
        ...

    def one_token(self, text: str) -> int:
        """The id of a text that must be exactly one token; TokenizerError, with how it splits, if it isn't."""
        ...

    def token_of_bytes(self, data: bytes) -> int:
        """The token whose bytes are exactly these; TokenizerError if there is none."""
        ...

    def detokenizer(
        self,
        prompt_token_ids: Sequence[int],
        *,
        skip_special_tokens: bool,
        spaces_between_special_tokens: bool = True,
    ) -> Detokenizer:
        """A new incremental detokenizer for a generation that follows this prompt."""
        ...


class Detokenizer(Protocol):
    """Turns generated ids into text one by one."""

    def step(self, token_id: int) -> str:
        """The text that this token completes: "" while a character is unfinished."""
        ...
