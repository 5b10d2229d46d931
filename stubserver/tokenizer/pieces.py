"""How a vocabulary spells its tokens.

A vocabulary holds pieces, not text. Three spellings are in use: byte-level BPE writes each byte as one printable
character ("Ġblue" is " blue"), SentencePiece writes a space as "▁" and a byte that it has no piece for as "<0xE2>", and
the rest write plain text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tokenizers import Tokenizer

_FALLBACK_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_characters() -> list[str]:
    """GPT-2's character for each of the 256 bytes: its own if it is a visible one, else the next from U+0100 on."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in shown else next(others)) for byte in range(256)]


BYTE_CHARACTERS: Final = _byte_characters()
_BYTE_OF: Final = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}


def spell_bytes(data: bytes) -> str:
    """Bytes → their byte-level spelling: b" a" → "Ġa"."""
    return "".join(BYTE_CHARACTERS[byte] for byte in data)


def read_bytes(piece: str) -> bytes:
    """A byte-level spelling → its bytes; a piece with any other character in it stands for its own UTF-8."""
    try:
        return bytes(_BYTE_OF[character] for character in piece)
    except KeyError:
        return piece.encode()


@dataclass(frozen=True, slots=True)
class Spelling:
    """Which spellings a tokenizer's vocabulary uses.

    byte_level: pieces are bytes in the GPT-2 alphabet.
    byte_fallback: a piece "<0xE2>" is that byte.
    space_marker: what a leading space is written as where decoding one token alone would lose it, else None.
    joins_bytes: decoding puts the bytes of single tokens together, and does nothing else.
    """

    byte_level: bool
    byte_fallback: bool
    space_marker: str | None
    joins_bytes: bool

    @classmethod
    def of(cls, backend: Tokenizer) -> Spelling:
        """Read from the pre-tokenizer and the decoder."""
        pre_tokenizers = list(_steps(backend.pre_tokenizer))
        decoders = list(_steps(backend.decoder))
        kinds = {step["type"] for step in decoders}
        byte_level = "ByteLevel" in kinds
        return cls(
            byte_level,
            "ByteFallback" in kinds,
            _space_marker(pre_tokenizers, decoders),
            # A Replace before it changes one token at a time.
            joins_bytes=byte_level and kinds <= {"ByteLevel", "Replace"},
        )

    def read(self, piece: str, text: str) -> bytes:
        """The bytes of a piece of the model's vocabulary; `text` is what it decodes to."""
        byte = self.fallback_byte(piece)
        if byte is not None:
            return bytes([byte])
        return read_bytes(piece) if self.byte_level else text.encode()

    def fallback_byte(self, piece: str) -> int | None:
        """The byte that a piece like "<0xE2>" stands for."""
        match = _FALLBACK_BYTE.fullmatch(piece) if self.byte_fallback else None
        return int(match[1], 16) if match else None

    def restore_spaces(self, piece: str, text: str) -> str:
        """Give `text`, which the piece decodes to, as many leading spaces as the piece has markers.

        Source: vLLM 0.32.0, `tokenizers/detokenizer_utils.py`.
        """
        if self.space_marker is None:
            return text
        unspaced = text.lstrip(" ")
        markers = len(piece) - len(piece.lstrip(self.space_marker))
        return " " * max(markers, len(text) - len(unspaced)) + unspaced


def _steps(component: Any) -> Iterator[dict[str, Any]]:
    """A pre-tokenizer's or decoder's steps as JSON objects, sequences flattened; none for None."""
    if component is not None:
        yield from _flatten(json.loads(component.__getstate__()))


def _flatten(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    parts = step.get("pretokenizers") or step.get("decoders")
    if not parts:
        yield step
        return
    for part in parts:
        yield from _flatten(part)


def _space_marker(pre_tokenizers: list[dict[str, Any]], decoders: list[dict[str, Any]]) -> str | None:
    # vLLM asks the pre-tokenizer. The decoder is asked here too, because transformers rebuilds a Llama tokenizer, whose
    # file may only have a Replace and a Strip in the decoder, around a Metaspace pre-tokenizer.
    for step in (*pre_tokenizers, *decoders):
        if step["type"] == "Metaspace":
            return str(step.get("replacement", "▁"))
    for step in decoders:
        if step["type"] == "Replace" and step["content"] == " " and "String" in step["pattern"]:
            return str(step["pattern"]["String"])
    return None
