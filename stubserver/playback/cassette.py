"""The cassette file: JSON lines, the first one about the file and the recorded server, then an exchange a line.

Each exchange is one write of one whole line: whatever kills the process, what was written before stays whole. A last
line that isn't whole is the exchange that was in flight then; readers leave it out, the next recorder takes it away.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stubserver.playback.errors import CassetteError
from stubserver.playback.exchange import Exchange, read_exchange, write_exchange

VERSION = 1

_BEGINNING = b'{"cassette":'

Header = Mapping[str, Any]
"""`cassette`: the version of the format. `upstream`: what is known of the server: url, version, models."""


@dataclass(frozen=True)
class Cassette:
    """What a file holds. unfinished: the bytes of a last line that isn't whole, which counts for nothing."""

    path: Path
    header: Header = field(default_factory=dict)
    exchanges: tuple[Exchange, ...] = ()
    unfinished: int = 0

    @property
    def upstream(self) -> Mapping[str, Any]:
        """What is known of the recorded server."""
        upstream = self.header.get("upstream")
        return upstream if isinstance(upstream, Mapping) else {}


def read_cassette(path: Path) -> Cassette:
    """Everything in the file. Raises CassetteError with the line that can't be used."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CassetteError(f"{path}: {error.strerror}; `stubserver record` makes a cassette") from None
    whole, _, rest = content.rpartition(b"\n")
    lines = whole.split(b"\n") if whole else []
    if not lines:
        if rest[: len(_BEGINNING)] != _BEGINNING[: len(rest)]:
            raise _no_cassette(path)
        return Cassette(path, unfinished=len(rest))
    header = _read_header(path, lines[0])
    exchanges = tuple(_read_line(path, number, line) for number, line in enumerate(lines[1:], 2) if line.strip())
    return Cassette(path, header, exchanges, len(rest))


def _read_header(path: Path, line: bytes) -> Header:
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    version = header.get("cassette") if isinstance(header, dict) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise _no_cassette(path)
    if version > VERSION:
        raise CassetteError(
            f"{path}:1: the cassette is of version {version}, and this stubserver reads up to {VERSION}: "
            "pip install --upgrade llm-stubserver"
        )
    assert isinstance(header, dict)
    return header


def _no_cassette(path: Path) -> CassetteError:
    return CassetteError(
        f"{path}:1: this is no cassette: its first line has to be like "
        f'{{"cassette": {VERSION}, …}}; `stubserver cassette convert` reads vcrpy, HAR and JSONL recordings'
    )


def _read_line(path: Path, number: int, line: bytes) -> Exchange:
    try:
        return read_exchange(json.loads(line))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise CassetteError(f"{path}:{number}: this is no exchange: {problem}") from None


def make_header(upstream: Mapping[str, Any]) -> Header:
    """The first line of a new cassette."""
    return {"cassette": VERSION, "upstream": upstream}


def write_cassette(path: Path, header: Header, exchanges: Iterable[Exchange]) -> None:
    """Write a whole file, in the place of one that may be there. Raises CassetteError."""
    lines = [_line(header), *(_line(write_exchange(exchange)) for exchange in exchanges)]
    new = path.with_name(path.name + ".new")
    lock = CassetteWriter(path) if path.exists() else None
    try:
        new.write_bytes(b"".join(lines))
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise CassetteError(f"{path}: {error.strerror}") from None
    finally:
        if lock:
            lock.close()


def _line(value: Mapping[str, Any]) -> bytes:
    # A lone surrogate, which only an import may bring, has no UTF-8.
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


class CassetteWriter:
    """Appends exchanges, and keeps every other writer off the file until it is closed.

    Raises CassetteError if the file can't be had.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise CassetteError(f"{path}: {error.strerror}") from None
        try:
            _lock(self._file, path)
            self._size = _whole_size(path)
            os.ftruncate(self._file, self._size)
        except BaseException:
            os.close(self._file)
            raise

    @property
    def is_new(self) -> bool:
        """Nothing is written yet, so the header comes first."""
        return self._size == 0

    def start_over(self) -> None:
        """Put what is there aside, as `FILE~`, and begin with an empty file. Raises CassetteError."""
        if self.is_new:
            return
        aside, old = self._path.with_name(self._path.name + "~"), self._file
        try:
            self._path.replace(aside)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except OSError as error:
            raise CassetteError(f"{self._path}: {error.strerror}") from None
        _lock(self._file, self._path)
        os.close(old)
        self._size = 0

    def write_header(self, header: Header) -> int:
        """Write the first line; how many bytes that was. Raises OSError, and then nothing is written."""
        return self._append(_line(header))

    def append(self, exchange: Exchange) -> int:
        """Write one exchange; how many bytes that was. Raises OSError, and then nothing of it is left in the file."""
        return self._append(_line(write_exchange(exchange)))

    def _append(self, line: bytes) -> int:
        written = 0
        try:
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += written
        return written

    def close(self) -> None:
        """Let others write. A file to which nothing was written is taken away again."""
        if self.is_new and _is_at(self._file, self._path):
            self._path.unlink()
        os.close(self._file)


def _lock(file: int, path: Path) -> None:
    try:
        import fcntl
    except ImportError:
        raise CassetteError(f"{path}: this system can't lock files, so nothing can be recorded on it") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise CassetteError(
            f"{path}: another process is recording to this cassette: wait for it, or choose another file"
        ) from None
    if not _is_at(file, path):
        raise CassetteError(f"{path}: another process has just replaced this cassette: try again")


def _is_at(file: int, path: Path) -> bool:
    """Whether the open file is still the one at this path."""
    return path.exists() and os.path.samestat(os.fstat(file), path.stat())


def _whole_size(path: Path) -> int:
    """Where the last whole line ends."""
    return path.read_bytes().rfind(b"\n") + 1
