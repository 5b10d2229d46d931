"""Tokenizers in the format of Hugging Face's `tokenizers` library (tokenizer.json)."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders

from stubserver.errors import TokenizerError, ValidationError
from stubserver.memory import remembering
from stubserver.tokenizer.detokenizer import REPLACEMENT, IncrementalDetokenizer, WholeTexts
from stubserver.tokenizer.files import (
    TOKENIZER_FILE,
    TokenizerConfig,
    find_tokenizer_file,
    load_backend,
    load_config,
    save_config,
)
from stubserver.tokenizer.pieces import Spelling, read_bytes, spell_bytes

BUILTIN: Final = "builtin"

_SHOWN_PARTS: Final = 8

_KEPT_TEXTS: Final = 8192
"""How many texts are remembered with their ids, and how many ids with their texts, those used last: a test suite asks
the same again and again."""

_LONGEST_KEPT: Final = 512
"""Characters of a text, and ids, that are remembered."""


def load_tokenizer(name: str, *, vocab: Sequence[str] = ()) -> HFTokenizer:
    """Load "builtin", a tokenizer.json, or a directory with one.

    tokenizer_config.json, chat_template.jinja, generation_config.json and config.json count where they lie beside it.

    vocab: texts that have to be one token each; those that aren't yet get new ids at the end, in this order.

    Raises TokenizerError if there is no such file, if it is no tokenizer, or for a text that can't be added.
    """
    tokenizer = _load_builtin() if name == BUILTIN else _load(name, find_tokenizer_file(name))
    return tokenizer.with_vocab(vocab) if vocab else tokenizer


def builtin_directory() -> Path:
    """The directory of the built-in tokenizer, for a client that loads it with transformers."""
    return Path(__file__).parent / BUILTIN


@cache
def _load_builtin() -> HFTokenizer:
    return _load(BUILTIN, builtin_directory() / TOKENIZER_FILE)


def _load(name: str, path: Path) -> HFTokenizer:
    backend, config = load_backend(path), load_config(path.parent)
    _make_special(backend, config.special_tokens)
    return HFTokenizer(backend, name, config)


class HFTokenizer:
    """The `Tokenizer` protocol over a `tokenizers.Tokenizer`, which it owns and doesn't change.

    What is known per token is found when first asked for and kept, so a vocabulary of 150,000 tokens costs nothing in
    advance.
    """

    def __init__(self, backend: Tokenizer, name: str, config: TokenizerConfig) -> None:
        self._backend = backend
        self._name = name
        self._config = config
        self._spelling = Spelling.of(backend)
        self._texts: dict[int, str] = {}
        self._encode_again = remembering(self._encode, _KEPT_TEXTS)
        self._decode_again = remembering(self._decode, _KEPT_TEXTS)

    def __repr__(self) -> str:
        return f"HFTokenizer({self._name!r}, vocab_size={self.vocab_size})"

    @property
    def name(self) -> str:
        """Where it came from: "builtin", or the path as it was given."""
        return self._name

    @cached_property
    def vocab_size(self) -> int:
        """The highest token id plus one."""
        count = self._backend.get_vocab_size(with_added_tokens=True)
        if all(map(self._backend.id_to_token, range(count))):
            return count  # no id is left out: found in half the time that the whole vocabulary takes to come over
        return max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def eos_token_id(self) -> int | None:
        """The eos_token of tokenizer_config.json, else the eos_token_id of generation_config.json or config.json."""
        eos_token = self.special_tokens.get("eos_token")
        return self._config.eos_token_id if eos_token is None else self._backend.token_to_id(eos_token)

    @property
    def chat_template(self) -> str | None:
        """The Jinja template, if the directory has one."""
        return self._config.chat_template

    def with_chat_template(self, template: str) -> HFTokenizer:
        """The same tokenizer with another chat template."""
        return HFTokenizer(self._backend, self._name, replace(self._config, chat_template=template))

    @cached_property
    def config(self) -> dict[str, Any]:
        """What tokenizer_config.json says, as it is written."""
        return self._config.written

    @cached_property
    def added_tokens(self) -> dict[int, str]:
        """Id → text of the tokens that are in no merge."""
        decoder = self._backend.get_added_tokens_decoder()
        return {token_id: decoder[token_id].content for token_id in sorted(decoder)}

    @property
    def special_tokens(self) -> dict[str, str]:
        """For the chat template: "bos_token", "eos_token", "pad_token", … → text."""
        return self._config.special_tokens

    @cached_property
    def special_token_ids(self) -> frozenset[int]:
        """Tokens that `skip_special_tokens` leaves out of the text, and that no grammar allows."""
        decoder = self._backend.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in decoder.items() if token.special)

    @cached_property
    def max_chars_per_token(self) -> int:
        """The longest spelling of a token: no text of n tokens has more than n times as many characters."""
        return max(map(len, self._backend.get_vocab(with_added_tokens=True)), default=1)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Text → ids. `add_special_tokens` runs the post-processor, which may add BOS and the like.

        Raises ValidationError for a text with a lone surrogate, which has no UTF-8.
        """
        encode = self._encode_again if len(text) <= _LONGEST_KEPT else self._encode
        return encode(text, add_special_tokens).tolist()

    def offsets(self, text: str) -> list[list[int]]:
        """Where each token of a text begins and ends, in characters: [[start, end], …]."""
        return [list(span) for span in self._backend.encode(text, add_special_tokens=True).offsets]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Ids → text; ids without a token give nothing, bytes that are no whole UTF-8 character U+FFFD."""
        try:
            packed = array("I", token_ids).tobytes()  # to be remembered in few bytes
        except OverflowError:  # negative, or above 32 bits
            packed = array("I", [each for each in token_ids if 0 <= each < self.vocab_size]).tobytes()
        decode = self._decode_again if len(token_ids) <= _LONGEST_KEPT else self._decode
        return decode(packed, skip_special_tokens)

    def id_to_piece(self, token_id: int) -> str | None:
        """The vocabulary's own spelling of a token ("Ġblue"), or None if there is no such token."""
        try:
            return self._backend.id_to_token(token_id)
        except OverflowError:
            return None

    def token_text(self, token_id: int) -> str:
        """What this token alone decodes to, special ones too, its leading space kept; a byte token may give U+FFFD.

        "" for an id without a token. Source: vLLM 0.32.0, `tokenizers/detokenizer_utils.py`.
        """
        text = self._texts.get(token_id)
        if text is None:
            piece = self.id_to_piece(token_id)
            if piece is None:
                return ""
            text = self._spelling.restore_spaces(piece, self._backend.decode([token_id], skip_special_tokens=False))
            self._texts[token_id] = text
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that this token adds to the output; b"" for an id without a token."""
        piece = self.id_to_piece(token_id)
        return b"" if piece is None else self._piece_bytes(token_id, piece)

    def one_token(self, text: str) -> int:
        """The id of a text that must be exactly one token, special and added tokens included.

        Raises TokenizerError otherwise, which shows how the text splits.
        """
        token_id = self._find(text)
        if token_id is None:
            raise TokenizerError(self._describe_split(text))
        return token_id

    def token_of_bytes(self, data: bytes) -> int:
        """The token whose bytes are exactly these.

        Of several, a piece goes before a byte token ("A" before "<0x41>"), then the lowest id. Raises TokenizerError if
        there is none.
        """
        token_id = self._ids_of_bytes.get(data)
        if token_id is None:
            raise TokenizerError(f"no token of {self._name!r} has exactly the bytes {data.hex(' ') or '(none)'}")
        return token_id

    def detokenizer(
        self,
        prompt_token_ids: Sequence[int],
        *,
        skip_special_tokens: bool,
        spaces_between_special_tokens: bool = True,
    ) -> IncrementalDetokenizer:
        """A new incremental detokenizer for a generation that follows this prompt."""
        bare = not (skip_special_tokens or spaces_between_special_tokens)
        return IncrementalDetokenizer(
            self._backend,
            self._unskipped_texts if skip_special_tokens else self._whole_texts,
            prompt_token_ids,
            skip_special_tokens=skip_special_tokens,
            bare_tokens=self._added_tokens if bare else None,
        )

    def with_vocab(self, vocab: Sequence[str]) -> HFTokenizer:
        """A new tokenizer in which each of these texts is one token; one that is already keeps its id.

        Raises TokenizerError for the empty text, one that is given twice, and one that the decoder would garble.
        """
        _check_vocab(vocab)
        added = [text for text in vocab if self._find(text) is None]
        for text in added:
            self._check_free(text)
        backend = Tokenizer.from_str(self._backend.to_str())
        _add_tokens(backend, added, self._spelling)
        extended = HFTokenizer(backend, self._name, self._config)
        for text in added:
            extended.one_token(text)  # raises where another added token, or the decoder, is in the way
        return extended

    def save(self, directory: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, with which transformers' AutoTokenizer gives the same ids."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._backend.save(str(directory / TOKENIZER_FILE), pretty=False)
        eos_token = None if self.eos_token_id is None else self.id_to_piece(self.eos_token_id)
        special_tokens = self.special_tokens if eos_token is None else self.special_tokens | {"eos_token": eos_token}
        save_config(directory, special_tokens, self.chat_template)

    @cached_property
    def _whole_texts(self) -> WholeTexts:
        return WholeTexts(self._whole_text)

    @cached_property
    def _unskipped_texts(self) -> WholeTexts:
        return WholeTexts(lambda token_id: "" if token_id in self.special_token_ids else self._whole_texts[token_id])

    def _whole_text(self, token_id: int) -> str:
        text = self.token_text(token_id) if self._spelling.joins_bytes else ""
        return "" if REPLACEMENT in text else text

    @cached_property
    def _added_tokens(self) -> dict[int, str]:
        """Id → text of the tokens on top of the model's vocabulary, special ones included."""
        return {token_id: token.content for token_id, token in self._backend.get_added_tokens_decoder().items()}

    def _encode(self, text: str, add_special_tokens: bool) -> array[int]:
        try:
            return array("I", self._backend.encode(text, add_special_tokens=add_special_tokens).ids)
        except TypeError as error:
            raise ValidationError("The text has a lone surrogate, which has no UTF-8.", code="not_text") from error

    def _decode(self, packed: bytes, skip_special_tokens: bool) -> str:
        return self._backend.decode(array("I", packed).tolist(), skip_special_tokens=skip_special_tokens)

    def _piece_bytes(self, token_id: int, piece: str) -> bytes:
        if token_id in self._added_tokens:
            return piece.encode()
        return self._spelling.read(piece, self.token_text(token_id))

    @cached_property
    def _ids_of_bytes(self) -> dict[bytes, int]:
        pieces = self._backend.get_vocab(with_added_tokens=True).items()
        preferred = sorted(pieces, key=lambda item: (self._spelling.fallback_byte(item[0]) is not None, item[1]))
        ids: dict[bytes, int] = {}
        for piece, token_id in preferred:
            ids.setdefault(self._piece_bytes(token_id, piece), token_id)
        return ids

    def _find(self, text: str) -> int | None:
        """The one token that this text is, or None."""
        ids = self._split(text)
        if self._spelling.space_marker is not None:
            # Encoding puts a space of its own in front, so it can't tell "blue" from " blue".
            return self._ids_of_bytes.get(text.encode())
        return ids[0] if len(ids) == 1 and self.token_text(ids[0]) == text else None

    def _check_free(self, text: str) -> None:
        """Adding a text that is some token's spelling would take that token away: "é" spells the byte E9."""
        token_id = self._backend.token_to_id(text)
        if token_id is not None:
            raise TokenizerError(
                f"{_quote(text)} can't be added: {self._name!r} spells another token that way, {token_id} "
                f"(bytes {self.token_bytes(token_id).hex(' ')}); take another text, for instance with a space before it"
            )

    def _split(self, text: str) -> list[int]:
        try:
            return self.encode(text, add_special_tokens=False)
        except ValidationError:
            raise TokenizerError(f"{text!a} has a lone surrogate, so it is no text that a token could have") from None

    def _describe_split(self, text: str) -> str:
        ids = self._split(text)
        parts = [f"{_quote(self.token_text(token_id))} ({token_id})" for token_id in ids[:_SHOWN_PARTS]]
        shown = " + ".join(parts) + (" + …" if len(ids) > _SHOWN_PARTS else "")
        if len(ids) > 1:
            return f"{_quote(text)} is {len(ids)} tokens, not one: {shown}"
        nearest = f"; it encodes to {shown}" if ids else ""
        return f"{_quote(text)} is no token of {self._name!r}{nearest}"


def _make_special(backend: Tokenizer, special_tokens: dict[str, str]) -> None:
    """The named special tokens are special even if tokenizer.json doesn't say so, and are added if it lacks them.

    So transformers 5.19 loads them, and with it vLLM 0.32.0. It leaves out the add_bos_token and add_eos_token of
    tokenizer_config.json where there is a tokenizer.json: whether BOS is added is for the post-processor to say.
    """
    named = dict.fromkeys(special_tokens.values())
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in named])


def _check_vocab(vocab: Sequence[str]) -> None:
    seen: set[str] = set()
    for position, text in enumerate(vocab):
        if not text:
            raise TokenizerError(f"vocab[{position}] is the empty text, which can't be a token")
        if text in seen:
            raise TokenizerError(f"vocab[{position}] is {_quote(text)}, which stands in the list already")
        seen.add(text)


def _add_tokens(backend: Tokenizer, texts: Sequence[str], spelling: Spelling) -> None:
    backend.add_tokens([AddedToken(text, normalized=False, special=False) for text in texts])
    if not spelling.byte_level:
        return
    # The byte-level decoder takes an added "é" for the byte E9, so it has to be shown the spelling of its UTF-8.
    garbled = [text for text in texts if read_bytes(text) != text.encode()]
    if garbled:
        respell = [decoders.Replace(Regex(rf"\A{re.escape(text)}\z"), spell_bytes(text.encode())) for text in garbled]
        backend.decoder = decoders.Sequence([*respell, backend.decoder])


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
