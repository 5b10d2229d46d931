"""The compiled part of the package xgrammar, without its Python part, which imports torch and transformers."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Final

VERSION: Final = "0.2.8"
"""The version that vLLM 0.32.0 asks for. Others have other masks, and other functions in the compiled part."""

_NAME: Final = "_stubserver_xgrammar_bindings"


@cache
def load_bindings() -> Any | None:
    """The module that has the classes of the compiled part, or None if this version isn't installed.

    It needs apache-tvm-ffi besides, which is small.
    """
    try:
        if version("xgrammar") != VERSION:
            return None
        library = import_module("tvm_ffi.libinfo")
    except (PackageNotFoundError, ImportError):
        return None
    spec = find_spec("xgrammar")
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    library.load_lib_module("xgrammar", "xgrammar_bindings", extra_lib_paths=places)
    return _load(places[0] / "tvm_ffi_binding" / "_ffi_api.py")


def _load(path: Path) -> Any:
    spec = spec_from_file_location(_NAME, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[_NAME] = module
    spec.loader.exec_module(module)
    return module
