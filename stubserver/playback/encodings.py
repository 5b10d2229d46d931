"""Content encodings: taken off what is recorded, put on again where it is played back."""

from __future__ import annotations

import zlib
from collections.abc import Callable

MAX_BYTES = 256 * 2**20
"""What a request's body may unpack to: a few bytes can stand for many."""

_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}

KNOWN = tuple(_WINDOW_BITS)
"""The encodings that can be taken off. The proxy asks upstream for no other."""


Unpacker = Callable[[bytes], bytes]
"""Takes an encoding off, piece by piece: what this piece adds. Raises zlib.error if it isn't of the encoding."""


def unpacker(encoding: str) -> Unpacker | None:
    """For a reply in this encoding, "" for none; None if it isn't known."""
    if encoding in ("", "identity"):
        return bytes
    if encoding not in KNOWN:
        return None
    unpacking = zlib.decompressobj(_WINDOW_BITS[encoding])
    return lambda data: unpacking.decompress(data)


def unpack(encoding: str, data: bytes) -> bytes:
    """The whole of a body; the body as it is if it can't be unpacked, or becomes too large."""
    if encoding not in KNOWN:
        return data
    try:
        unpacking = zlib.decompressobj(_WINDOW_BITS[encoding])
        found = unpacking.decompress(data, MAX_BYTES)
    except zlib.error:
        return data
    return found if unpacking.eof else data


def packer(encoding: str) -> Callable[[bytes, bool], bytes]:
    """Puts an encoding on, piece by piece, each of which can be unpacked as it arrives; True: it is the last."""
    packing = zlib.compressobj(wbits=_WINDOW_BITS[encoding])

    def pack(data: bytes, is_last: bool) -> bytes:
        return packing.compress(data) + packing.flush(zlib.Z_FINISH if is_last else zlib.Z_SYNC_FLUSH)

    return pack


def accepted(offer: str) -> list[str]:
    """The known encodings that an Accept-Encoding header offers, in its order; `*` offers none in particular."""
    offers = [part.strip().lower().partition(";") for part in offer.split(",")]
    return [name.strip() for name, _, quality in offers if name.strip() in KNOWN and not _is_zero(quality)]


def _is_zero(quality: str) -> bool:
    value = quality.replace(" ", "").removeprefix("q=")
    return value.strip("0.") == "" and value != ""
