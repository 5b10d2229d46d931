"""Functions and classes that a script, or a setting, names: `file.py:function`, `module:function`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from stubserver.errors import ScriptError


def import_function(reference: str, directory: Path) -> Callable[..., Any]:
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
    function: Callable[..., Any] = target
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
