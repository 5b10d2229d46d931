"""vLLM's wire as one value: what faults, the journal, playback and assertions read and write its replies with."""

from __future__ import annotations

from stubserver.dialects.vllm.behaviour import VLLM_0_32_0
from stubserver.dialects.vllm.wire import conversion, errors, parts, positions, recorded, requests
from stubserver.serving.framing import Framing
from stubserver.serving.wire import Wire

WIRE = Wire(
    framing=Framing(done=b"data: [DONE]\n\n"),
    own_paths=("/health", "/ping", "/load", "/metrics", "/openapi.json"),
    identity_paths=requests.IDENTITY_PATHS,
    fresh_fields=frozenset({"id", "request_id", "created", "system_fingerprint"}),
    masked=VLLM_0_32_0.sentinel,
    error_reply=errors.error_reply,
    http_error=errors.http_error,
    status_body=errors.status_body,
    dead_reply=errors.dead_reply,
    read_choices=parts.read_choices,
    write_choices=parts.write_choices,
    write_part=parts.write_part,
    read_model=parts.read_model,
    count_tokens=parts.count_tokens,
    token_names=positions.token_names,
    describe_server=requests.describe_server,
    last_prompt=requests.last_prompt,
    other_form=conversion.other_form,
    fold=conversion.fold,
    unfold=conversion.unfold,
    read_request=recorded.read_request,
    read_endings=recorded.read_endings,
    read_token_id=recorded.read_token_id,
)
