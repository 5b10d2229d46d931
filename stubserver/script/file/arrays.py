"""Arrays from .npz and .npy files, checked: numbers, no NaN, something possible in every row."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stubserver.sampling.logits import Floats
from stubserver.script.rows import ArrayError, check_rows


class ArrayFiles:
    """Reads arrays and keeps them, so that a file with rows for a thousand steps is read once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._arrays: dict[tuple[Path, str | None], Floats] = {}

    def load(self, file: str, key: str | None) -> Floats:
        """A read-only float32 array, [V] or [n, V]. Raises ArrayError."""
        path = self._directory / file
        if (path, key) not in self._arrays:
            self._arrays[path, key] = _as_logits(_read(path, key))
        return self._arrays[path, key]


def _read(path: Path, key: str | None) -> NDArray[np.generic]:
    try:
        content = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise ArrayError(f"there is no such file: {path}") from None
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise ArrayError(f"{path} isn't a .npz or .npy file of plain arrays: {error}") from None
    if isinstance(content, np.ndarray):
        if key is not None:
            raise ArrayError(f"{path} holds one array without a key; leave `key` out")
        return content
    with content:
        return _member(content, path, key)


def _member(content: np.lib.npyio.NpzFile, path: Path, key: str | None) -> NDArray[np.generic]:
    names = ", ".join(content.files) or "nothing"
    if key is None and len(content.files) != 1:
        raise ArrayError(f"{path} holds {names}: say which one with `key`")
    if key is not None and key not in content.files:
        raise ArrayError(f"{path} has no array {key!r}; it holds {names}")
    try:
        array: NDArray[np.generic] = content[content.files[0] if key is None else key]
    except ValueError as error:
        raise ArrayError(f"the array {key!r} of {path} can't be read: {error}") from None
    return array


def _as_logits(array: NDArray[np.generic]) -> Floats:
    if array.dtype.kind not in "fiu":
        raise ArrayError(f"has to hold numbers; its dtype is {array.dtype}")
    if array.ndim not in (1, 2):
        raise ArrayError(f"has to be [V] or [n, V]; its shape is {list(array.shape)}")
    with np.errstate(over="ignore"):  # becomes inf, which is refused
        logits = np.ascontiguousarray(array, dtype=np.float32)
    check_rows(logits)
    logits.setflags(write=False)
    return logits
