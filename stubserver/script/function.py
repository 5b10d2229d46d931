"""The callable script: a Python function, context → logits, that is asked for every token."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from stubserver.errors import GenerationError, RequestError, ScriptError
from stubserver.sampling.logits import Floats, Logits
from stubserver.script.arrays import check_rows
from stubserver.script.context import Answer, Context, ScriptRequest
from stubserver.script.rows import SparseRow, read_only
from stubserver.script.tokens import TokenReader

LogitsFunction = Callable[[Context], Any]
"""Context → an array of V logits; or {token: logit}, every other token -inf; or ({token: logit}, rest)."""


class CallableScript:
    """The `Script` protocol over a function, whose every result is checked."""

    has_faults = False

    def __init__(self, function: LogitsFunction, tokens: TokenReader, vocab_size: int) -> None:
        self._function = function
        self._tokens = tokens
        self._vocab_size = vocab_size

    @property
    def vocab_size(self) -> int:
        """V: the length of every row."""
        return self._vocab_size

    def bind(self, request: ScriptRequest) -> Answer:
        """The function answers every request."""
        return Answer(self.next_logits)

    def next_logits(self, context: Context) -> Logits:
        """What the function says. Raises GenerationError, with the cause, if it fails or returns what is no logits.

        A RequestError of the function's own goes through: that is how it refuses a request.
        """
        try:
            return self._as_logits(self._function(context))
        except RequestError:
            raise
        except Exception as error:
            raise GenerationError(f"{type(error).__name__}: {error}") from error

    def _as_logits(self, result: Any) -> Logits:
        if isinstance(result, Mapping):
            return self._sparse(result, -inf)
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Mapping):
            return self._sparse(*result)
        if result is None:
            raise TypeError("the script's function returned None instead of logits")
        # A copy, for the function may go on using its array.
        return self._checked(np.array(result, dtype=np.float32))

    def _sparse(self, logits: Mapping[int | str, float], rest: float) -> Logits:
        # numpy's integers are ids too.
        named = {token.item() if isinstance(token, np.integer) else token: value for token, value in logits.items()}
        return self._checked(SparseRow(self._tokens.read_values(named), float(rest)).read(self._vocab_size).values)

    def _checked(self, values: Floats) -> Logits:
        if values.shape != (self._vocab_size,):
            raise ValueError(
                f"the script's function returned logits of shape {list(values.shape)} instead of [{self._vocab_size}]"
            )
        check_rows(values)
        return read_only(values)


def import_function(reference: str, directory: Path) -> LogitsFunction:
    """Import `file.py:function` (relative to the directory) or `module:function`. Raises ScriptError."""
    source, _, name = reference.rpartition(":")
    if not source or not name:
        raise ScriptError(f"{reference!r} isn't file.py:function or module:function")
    target: Any = _import_file(directory / source) if source.endswith(".py") else _import_module(source, directory)
    for part in name.split("."):
        if not hasattr(target, part):
            raise ScriptError(f"{source} has no {name!r}")
        target = getattr(target, part)
    if not callable(target):
        raise ScriptError(f"{name!r} of {source} is of type {type(target).__name__}, which can't be called")
    function: LogitsFunction = target
    return function


@contextmanager
def _importable(directory: Path) -> Iterator[None]:
    """Let a script's file import its neighbours, and `module:function` stand beside the script."""
    sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        sys.path.remove(str(directory))


def _import_module(name: str, directory: Path) -> ModuleType:
    try:
        with _importable(directory):
            return importlib.import_module(name)
    except Exception as error:
        raise ScriptError(f"can't import {name}: {type(error).__name__}: {error}") from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ScriptError(f"there is no such file: {path}")
    name = f"stubserver_script_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # the name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up by name
    try:
        with _importable(path.parent):
            spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ScriptError(f"can't import {path}: {type(error).__name__}: {error}") from error
    return module
