"""Routes that are only there with --enable-scale-out."""

from __future__ import annotations

from stubserver.errors import PermissionDeniedError
from stubserver.serving.state import ServerState


def check_scale_out(state: ServerState) -> None:
    """Refuse what the server wasn't started with. Raises PermissionDeniedError."""
    if not state.settings.enable_scale_out:
        raise PermissionDeniedError(
            "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
        )
