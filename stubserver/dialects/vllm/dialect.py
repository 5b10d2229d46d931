"""vLLM as a value: what the app is built from."""

from __future__ import annotations

from typing import Any

from stubserver.dialects.vllm.behaviour import VLLM_0_32_0
from stubserver.dialects.vllm.endpoints import ENDPOINTS
from stubserver.dialects.vllm.startup_checks import check_startup
from stubserver.dialects.vllm.wire.codec import WIRE
from stubserver.serving.dialect import Dialect


def _error_model() -> Any:
    from stubserver.dialects.vllm.protocol import ErrorReply

    return ErrorReply


VLLM = Dialect(
    name="vllm",
    endpoints=ENDPOINTS,
    behaviour=VLLM_0_32_0,
    wire=WIRE,
    guarded=("/v1", "/v2", "/inference", "/cohere"),
    uncounted=("/metrics", "/health", "/load", "/ping", "/version", "/server_info"),
    parameter_places=("sampling_params",),
    check_settings=check_startup,
    load_error_model=_error_model,
)
