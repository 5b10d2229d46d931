"""vLLM's wire as one value: what faults, the journal, playback and assertions read and write its replies with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from stubserver.dialects.vllm.behaviour import VLLM_0_32_0
from stubserver.dialects.vllm.wire import conversion, errors, parts, recorded, requests
from stubserver.dialects.vllm.wire.positions import placeholder
from stubserver.serving.framing import Framing
from stubserver.serving.wire import Wire


class VllmWire:
    """The `Wire` protocol for the shapes of every route of vLLM's that has choices."""

    framing = Framing(done=b"data: [DONE]\n\n")
    own_paths: Sequence[str] = ("/health", "/ping", "/load", "/metrics", "/openapi.json")
    identity_paths: Mapping[str, str] = MappingProxyType(requests.IDENTITY_PATHS)
    fresh_fields: Collection[str] = frozenset({"id", "request_id", "created", "system_fingerprint"})
    masked = VLLM_0_32_0.sentinel

    error_reply = staticmethod(errors.error_reply)
    http_error = staticmethod(errors.http_error)
    status_body = staticmethod(errors.status_body)
    dead_reply = staticmethod(errors.dead_reply)

    read_choices = staticmethod(parts.read_choices)
    write_choices = staticmethod(parts.write_choices)
    write_part = staticmethod(parts.write_part)
    read_model = staticmethod(parts.read_model)
    count_tokens = staticmethod(parts.count_tokens)

    describe_server = staticmethod(requests.describe_server)
    last_prompt = staticmethod(requests.last_prompt)
    other_form = staticmethod(conversion.other_form)
    fold = staticmethod(conversion.fold)
    unfold = staticmethod(conversion.unfold)

    def token_names(self, token_id: int, text: str | None) -> set[str]:
        """A token's text, or its stand-in."""
        return {placeholder(token_id)} | (set() if text is None else {text})

    read_request = staticmethod(recorded.read_request)
    read_endings = staticmethod(recorded.read_endings)
    read_token_id = staticmethod(recorded.read_token_id)


WIRE: Wire = VllmWire()
