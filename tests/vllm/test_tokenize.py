"""POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from stubserver.app import create_app

MESSAGES = [{"role": "user", "content": "Hi"}]
UNTRUSTED = (
    "Chat template is passed with request, but --trust-request-chat-template is not set. Refused request with "
    "untrusted chat template."
)


def tokenize(fields: dict[str, Any], **settings: Any) -> Any:
    return TestClient(create_app(**settings)).post("/tokenize", json={"messages": MESSAGES, **fields}).json()


@pytest.mark.parametrize("fields", [{"chat_template": "x"}, {"chat_template_kwargs": {"chat_template": "x"}}])
def test_a_template_of_the_request_is_for_servers_that_trust_it(fields: dict[str, Any]) -> None:
    assert tokenize(fields)["error"]["message"] == UNTRUSTED
    assert tokenize(fields, trust_request_chat_template=True)["count"] == 1


def test_a_template_may_make_no_token() -> None:
    assert tokenize({"chat_template": "{{ x }}"}, trust_request_chat_template=True)["tokens"] == []


def test_media_options_are_of_their_type_and_for_trusted_clients() -> None:
    assert tokenize({"media_io_kwargs": 1})["error"]["param"] == "body.prompt"
    assert tokenize({"mm_processor_kwargs": {"a": 1}})["error"]["param"] == "mm_processor_kwargs"
    assert tokenize({"mm_processor_kwargs": {}, "media_io_kwargs": None})["count"] > 0


def test_ids_beyond_32_bits_are_no_ids() -> None:
    client = TestClient(create_app())
    assert client.post("/detokenize", json={"tokens": [2**32 - 1]}).json() == {"prompt": ""}
    error = client.post("/detokenize", json={"tokens": [2**32]}).json()["error"]
    assert (error["message"], error["code"]) == ("number too large to fit in target type", 400)
