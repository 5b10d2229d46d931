"""What `bad_words` stand for. Source: vLLM 0.32.0, `sampling_params.py`."""

from __future__ import annotations

from collections.abc import Sequence

from stubserver.errors import GenerationError, ValidationError
from stubserver.tokenizer.base import Tokenizer


def bad_words_token_ids(tokenizer: Tokenizer, bad_words: Sequence[str]) -> list[list[int]]:
    """The token sequences that spell the words, at the beginning of a text and after a space.

    Raises ValidationError for a word that has no tokens.
    """
    sequences: list[list[int]] = []
    for word in filter(None, bad_words):
        _check_text(word)
        bare = tokenizer.encode(word.lstrip(), add_special_tokens=False)
        if not bare:
            message = "bad_words entries must tokenize to at least one token."
            raise ValidationError(message, parameter="bad_words", value=list(bad_words))
        spaced = tokenizer.encode(" " + word.lstrip(), add_special_tokens=False)
        sequences.append(bare)
        # The spaced form counts where the space makes another first token and not one more.
        if spaced and spaced[0] != bare[0] and len(spaced) == len(bare):
            sequences.append(spaced)
    return sequences


def _check_text(word: str) -> None:
    """Fail at what is no text: the tokenizer raises a TypeError there, inside of vLLM's engine."""
    try:
        word.encode()
    except UnicodeEncodeError as error:
        raise GenerationError(str(error), code="unsaid") from None
