"""What tests use: `StubServer`, a real server in a thread, `Stub`, the same without a socket, and the contract suite.

Loaded when first asked for: pytest imports this package in every run, also in those that don't use it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stubserver.testing.contract import LabelReadbackContract, LabelRequest
    from stubserver.testing.server import StubServer
    from stubserver.testing.stub import Stub

__all__ = ["LabelReadbackContract", "LabelRequest", "Stub", "StubServer"]

_MODULES = {
    "LabelReadbackContract": "contract",
    "LabelRequest": "contract",
    "Stub": "stub",
    "StubServer": "server",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
