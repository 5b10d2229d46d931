"""What rendering refuses is what creating refuses: both begin with one understanding of the body."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from stubserver.app import create_app

PROMPT: dict[str, Any] = {"prompt": "Answer:"}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Answer:"}]}

REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {**PROMPT, "stream": True, "use_beam_search": True}),
    ("/v1/completions", {**PROMPT, "temperature": -1}),
    ("/v1/completions", {**PROMPT, "structured_outputs": {"choice": ["A"], "regex": "B"}}),
    ("/v1/completions", {"prompt": ""}),
    ("/v1/completions", {**PROMPT, "model": "other"}),
    ("/v1/chat/completions", {**CHAT, "temperature": -1}),
    ("/v1/chat/completions", {"messages": 5}),
    ("/v1/chat/completions", {**CHAT, "tools": [{"type": "function", "function": {"name": "f"}}]}),
    ("/v1/chat/completions", {**CHAT, "structured_outputs": {"choice": ["A"], "regex": "B"}}),
]


@pytest.mark.parametrize(("path", "body"), REFUSED)
def test_rendering_refuses_what_creating_refuses(path: str, body: dict[str, Any]) -> None:
    with TestClient(create_app({"default": "random"}, enable_scale_out=True)) as client:
        created, rendered = client.post(path, json=body), client.post(f"{path}/render", json=body)
    assert created.status_code in (400, 404)
    assert (rendered.status_code, rendered.json()) == (created.status_code, created.json())
