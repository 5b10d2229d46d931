"""How a script writes a token, and which token that is.

" blue"            its text, which has to be exactly one token
327                its id
token_id:327       its id where only text can stand, as in the keys of a JSON object
bytes:E282         its bytes in hex, for tokens that are no whole characters
text:bytes:E282    the text after `text:`, whatever it looks like
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from stubserver.errors import RequestError, TokenizerError
from stubserver.tokenizer.hf import HFTokenizer


class TokenError(TokenizerError):
    """A token of several can't be used; `key` is its key in the mapping, or its index in the list."""

    def __init__(self, message: str, key: int | str) -> None:
        super().__init__(message)
        self.key = key


class TokenReader:
    """Reads tokens as a script writes them; every one that it gives is below `vocab_size`."""

    def __init__(self, tokenizer: HFTokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._known: dict[str, int] = {}

    def read(self, written: object) -> int:
        """The token's id. Raises TokenizerError with what is wrong."""
        if isinstance(written, str):
            if written not in self._known:
                self._known[written] = self._read_text(written)
            return self._known[written]
        if isinstance(written, int) and not isinstance(written, bool):
            return self._check_id(written)
        raise TokenizerError(f"a token is a text or an id, got {written!r}")

    def read_values(self, values: Mapping[int | str, float]) -> dict[int, float]:
        """Token → value as token id → value. Raises TokenError, also where two keys name one token."""
        read: dict[int, float] = {}
        names: dict[int, int | str] = {}
        for written, value in values.items():
            token_id = self._read_at(written, written)
            if token_id in read:
                known = _quote(names[token_id])
                raise TokenError(f"{known} and {_quote(written)} are the same token ({token_id})", written)
            read[token_id], names[token_id] = float(value), written
        return read

    def read_list(self, tokens: Sequence[int | str]) -> list[int]:
        """The ids of tokens in a row. Raises TokenError."""
        return [self._read_at(written, index) for index, written in enumerate(tokens)]

    def split(self, text: str) -> list[int]:
        """The ids of a text that may be any number of tokens. Raises TokenizerError for what is no text."""
        try:
            return self._tokenizer.encode(text, add_special_tokens=False)
        except RequestError as error:
            raise TokenizerError(f"{text!a} can't be encoded: {error}") from None

    def _read_at(self, written: object, key: int | str) -> int:
        try:
            return self.read(written)
        except TokenizerError as error:
            raise TokenError(str(error), key) from None

    def _read_text(self, written: str) -> int:
        form, colon, rest = written.partition(":")
        if colon and form == "text":
            return self._tokenizer.one_token(rest)
        if colon and form == "bytes":
            return self._tokenizer.token_of_bytes(_parse_bytes(rest))
        if colon and form == "token_id":
            return self._check_id(_parse_id(rest))
        return self._tokenizer.one_token(written)

    def _check_id(self, token_id: int) -> int:
        if not 0 <= token_id < self._vocab_size:
            raise TokenizerError(f"there is no token {token_id}: ids go from 0 to {self._vocab_size - 1}")
        return token_id


def _parse_bytes(text: str) -> bytes:
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if not data:
        raise TokenizerError(
            f"bytes:{text} isn't hex such as bytes:E282 (for a text like that, write text:bytes:{text})"
        )
    return data


def _parse_id(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text):
        raise TokenizerError(
            f"token_id:{text} isn't an id such as token_id:327 (for a text like that, write text:token_id:{text})"
        )
    return int(text)


def _quote(written: int | str) -> str:
    return json.dumps(written, ensure_ascii=False)
