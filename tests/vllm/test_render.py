"""What rendering refuses is what creating refuses before it starts; and what it answers itself."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from stubserver.app import create_app

PROMPT: dict[str, Any] = {"prompt": "Answer:"}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Answer:"}]}

REFUSED: list[tuple[str, dict[str, Any]]] = [
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


ROUTES = [("/v1/completions", PROMPT), ("/v1/chat/completions", CHAT)]


@pytest.mark.parametrize(("path", "body"), ROUTES)
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"use_beam_search": True}, "Beam search is not supported by the render endpoint"),
        ({"truncate_prompt_tokens": 0}, "No token_ids rendered"),
    ],
)
def test_rendering_refuses_by_itself(path: str, body: dict[str, Any], fields: dict[str, Any], message: str) -> None:
    with TestClient(create_app({"default": "random"}, enable_scale_out=True)) as client:
        reply = client.post(f"{path}/render", json={**body, **fields})
    error = {"message": message, "type": "BadRequestError", "param": None, "code": 400}
    assert (reply.status_code, reply.json()) == (400, {"error": error})


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_what_the_engine_would_refuse_is_rendered(path: str, body: dict[str, Any]) -> None:
    """It checks what it takes; integers may be larger than it takes them, too."""
    fields: dict[str, Any] = {"top_k": 10**30, "logit_bias": {"99999": 1}, "structured_outputs": {"choice": []}}
    with TestClient(create_app({"default": "random"}, enable_scale_out=True)) as client:
        reply = client.post(f"{path}/render", json={**body, **fields})
    rendered = reply.json()[0] if path == "/v1/completions" else reply.json()
    assert rendered["sampling_params"]["top_k"] == 10**30
    assert rendered["sampling_params"]["logit_bias"] == {"99999": 1.0}
    assert rendered["sampling_params"]["structured_outputs"]["choice"] == []


def test_fields_that_are_only_handed_on() -> None:
    fields = {
        "cache_salt": "salt",
        "priority": 3,
        "model": "alias",
        "watermarking": False,
        "spaces_between_special_tokens": False,
        "stream_interval": 4,
        "routed_experts_prompt_start": 1,
        "vllm_xargs": {"a": 1},
        "repetition_detection": {"max_pattern_size": 2, "min_count": 3},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with TestClient(
        create_app({"default": "random"}, served_model_name=["m", "alias"], enable_scale_out=True)
    ) as client:
        (rendered,) = client.post("/v1/completions/render", json={**PROMPT, **fields}).json()
    assert (rendered["cache_salt"], rendered["priority"], rendered["model"]) == ("salt", 3, "alias")
    assert rendered["stream_options"] == {"include_usage": True, "continuous_usage_stats": False}
    params = rendered["sampling_params"]
    assert params["repetition_detection"] == {"max_pattern_size": 2, "min_pattern_size": 0, "min_count": 3}
    assert params["structured_outputs"]["json"] == {"type": "object"}
    assert (params["extra_args"], params["stream_interval"], params["routed_experts_prompt_start"]) == ({"a": 1}, 4, 1)
    assert (params["watermarking"], params["spaces_between_special_tokens"]) == (False, False)
