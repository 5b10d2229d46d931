"""From generated ids to text: the running text, and the strings of the logprobs entries.

They are two things. The running text shows a character when its last byte has come. A logprobs entry shows its own
token, or where that token ends inside a character, what vLLM makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tokenizers import Tokenizer as Backend
from tokenizers.decoders import DecodeStream

from stubserver.tokenizer.base import Tokenizer

REPLACEMENT: Final = "\ufffd"
"""What bytes decode to that are no whole character."""

CONTEXT_TOKENS: Final = 4
"""How many tokens `decode_entries` looks back; a UTF-8 character has at most four bytes."""


class WholeTexts(dict[int, str]):
    """Id → what a token adds to the text wherever it stands; "" if that depends on the tokens around it.

    Where text is bytes put together, a token that is whole characters adds its own text after any token that is so too.
    `read`: id → text, or "". Each id is looked up once.
    """

    def __init__(self, read: Callable[[int], str]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, token_id: int) -> str:
        text = self._read(token_id)
        if text:
            self[token_id] = text
        return text


class IncrementalDetokenizer:
    """The running text of one generation, primed with its prompt.

    A prompt which ends inside a character is completed by the first generated tokens. Ids without a token give "".
    Where the stream loses its thread (bytes that decode one way alone and another way together), it starts anew with
    the token at hand.

    skip_special_tokens: special tokens give "".
    bare_tokens: id → text of added tokens which, where they follow one another, give this text instead of what the
    decoder makes of them (spaces_between_special_tokens=False).

    Source: vLLM 0.32.0, `v1/engine/detokenizer.py`, which decodes everything by a stream. Here tokens that add their
    own text in any case do without: the stream is there from another token on until the next one of them.
    """

    def __init__(
        self,
        backend: Backend,
        whole_texts: WholeTexts,
        prompt_token_ids: Sequence[int],
        *,
        skip_special_tokens: bool,
        bare_tokens: dict[int, str] | None = None,
    ) -> None:
        self._backend = backend
        self._whole_texts = whole_texts
        self._skip_special_tokens = skip_special_tokens
        self._bare_tokens = bare_tokens
        self._after_bare = False
        self._before: Sequence[int] = prompt_token_ids[-1:]
        self._stream: DecodeStream | None = None
        if bare_tokens or (prompt_token_ids and not whole_texts[prompt_token_ids[-1]]):
            self._stream = DecodeStream(ids=list(prompt_token_ids), skip_special_tokens=skip_special_tokens)

    def step(self, token_id: int) -> str:
        """The text that this token completes: "" while a character is unfinished."""
        whole = self._whole_texts[token_id]
        if self._stream is None:
            if whole:
                self._before = (token_id,)
                return whole
            self._stream = DecodeStream(ids=list(self._before), skip_special_tokens=self._skip_special_tokens)
        text = self._decode(self._stream, token_id)
        if whole and not self._bare_tokens:
            self._stream, self._before = None, (token_id,)
        return text

    def _decode(self, stream: DecodeStream, token_id: int) -> str:
        text = self._step(stream, token_id)
        if self._bare_tokens:
            bare = self._bare_tokens.get(token_id)
            if bare is not None and self._after_bare:
                text = bare
            self._after_bare = bare is not None
        return text or ""

    def _step(self, stream: DecodeStream, token_id: int) -> str | None:
        try:
            return stream.step(self._backend, token_id)
        except (OverflowError, TypeError):  # an id that is negative or too large
            return None
        except Exception as error:  # tokenizers has no class of its own for it
            if not str(error).startswith("Invalid prefix encountered"):
                raise
            self._stream = DecodeStream(skip_special_tokens=self._skip_special_tokens)
            return self._stream.step(self._backend, token_id)


def decode_entries(tokenizer: Tokenizer, token_ids: Sequence[int], context: Sequence[int]) -> list[str]:
    """The strings that the logprobs entries of one position show, one per id.

    token_ids: the alternatives at this position: the sampled (or prompt) token and the top ones.
    context: the tokens at the positions before it, oldest first; only the last four matter. vLLM counts only positions
    that have entries: for the output the sampled tokens without the prompt, for the prompt all but its first token.

    Each is `token_text`, unless that ends in U+FFFD. Then it is "" while its bytes end inside a character, and the
    token that completes a character shows the whole of it.

    Source: vLLM 0.32.0, `v1/engine/logprobs.py`.
    """
    texts = [tokenizer.token_text(token_id) for token_id in token_ids]
    return [
        _completed(tokenizer, token_id, context) if text.endswith(REPLACEMENT) else text
        for token_id, text in zip(token_ids, texts, strict=True)
    ]


def _completed(tokenizer: Tokenizer, token_id: int, context: Sequence[int]) -> str:
    """What it shows after the shortest context with which the text ends in a whole character; "" if none does."""
    for length in range(1, min(len(context), CONTEXT_TOKENS) + 1):
        window = list(context[-length:])
        text = tokenizer.decode([*window, token_id])
        if not text.endswith(REPLACEMENT):
            return _after_prefix(text, tokenizer.decode(_without_unfinished(tokenizer, window)))
    return ""


def _without_unfinished(tokenizer: Tokenizer, window: list[int]) -> list[int]:
    """The window without the unfinished tokens at its end: what they hold is shown by the token that completes it."""
    end = len(window)
    while end and tokenizer.decode(window[end - 1 : end]).endswith(REPLACEMENT):
        end -= 1
    return window[:end]


def _after_prefix(text: str, prefix: str) -> str:
    """`text` without what it has in common with `prefix` from the start on."""
    common = 0
    for ours, theirs in zip(text, prefix, strict=False):
        if ours != theirs:
            break
        common += 1
    return text[common:]
