"""The docs stay true: they are what docs/generate.py writes, nothing is left out, and what they say happens."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from stubserver.app import create_app
from stubserver.config.settings import Settings, flag_name

DOCS = Path(__file__).parents[1] / "docs"
GENERATE = runpy.run_path(str(DOCS / "generate.py"))
ROUTES = (DOCS / "routes.md").read_text(encoding="utf-8")
SETTINGS = (DOCS / "settings.md").read_text(encoding="utf-8")

ENDPOINTS = create_app(enable_tokenizer_info_endpoint=True).state.endpoints

VALUES = {
    "cache_salt": "salt",
    "mm_payload": "none",
    "session_id": "s",
    "user": "u",
    "suffix": "end",
    "prompt_embeds": "AAAA",
    "kv_transfer_params": {},
    "ec_transfer_params": {},
    "vllm_xargs": {},
    "media_io_kwargs": {"image": {"size": 1}},
    "mm_processor_kwargs": {"size": 1},
}
"""Values of fields that don't take a 1."""


FIELDS = {fields.route: fields for fields in GENERATE["FIELDS"]}

VLLM_FIELDS = json.loads((Path(__file__).parent / "vllm_fields.json").read_text(encoding="utf-8"))
"""Route → the fields of its request in vLLM 0.32.0."""

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Answer:"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Answer:"}]},
}


def ask(route: str, **fields: Any) -> Any:
    body = {**BODIES[route], "max_tokens": 4, "temperature": 0, **fields}
    return TestClient(create_app(reasoning_parser="any")).post(route, json=body)


@pytest.mark.parametrize("name", GENERATE["PAGES"])
def test_pages_are_up_to_date(name: str) -> None:
    written = (DOCS / name).read_text(encoding="utf-8")
    assert written == GENERATE["PAGES"][name](), "run python docs/generate.py"


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_in_the_docs(name: str) -> None:
    line = next(line for line in SETTINGS.splitlines() if line.startswith(f"| `{flag_name(name)}` |"))
    assert f"| `STUBSERVER_{name.upper()}` | `{name}` |" in line
    assert str(Settings.model_fields[name].description) in line


def test_defaults_in_the_docs() -> None:
    defaults = {
        line.split(" | ")[2]: line.split(" | ")[3] for line in SETTINGS.splitlines() if line.startswith("| `--")
    }
    assert {key: defaults[key] for key in ("`port`", "`served_model_name`", "`enable_scale_out`", "`api_key`")} == {
        "`port`": "`8000`",
        "`served_model_name`": "`stub`",
        "`enable_scale_out`": "`false`",
        "`api_key`": "none",
    }


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: f"{endpoint.method} {endpoint.path}")
def test_every_route_is_in_the_docs(endpoint: Any) -> None:
    assert f"| `{endpoint.method} {endpoint.path}` | {endpoint.summary} |" in ROUTES.splitlines()


@pytest.mark.parametrize("route", FIELDS)
def test_every_field_of_vllm_is_in_the_docs_once(route: str) -> None:
    fields = FIELDS[route]
    named = [*GENERATE["heeded"](fields), *fields.no_effect, *fields.refused]
    assert sorted(named) == sorted(VLLM_FIELDS[route])
    section = ROUTES.split(f"## The fields of `POST {route}`")[1].split("## ")[0]
    assert [name for name in named if f"`{name}`" not in section] == []


@pytest.mark.parametrize(("route", "field"), [(route, name) for route in FIELDS for name in FIELDS[route].no_effect])
def test_fields_without_effect_have_none(route: str, field: str) -> None:
    plain, given = ask(route), ask(route, **{field: VALUES.get(field, 1)})
    assert given.status_code == 200
    assert given.json()["choices"] == plain.json()["choices"]
    assert given.json()["usage"] == plain.json()["usage"]


@pytest.mark.parametrize(("route", "field"), [(route, name) for route in FIELDS for name in FIELDS[route].refused])
def test_refused_fields_are_refused(route: str, field: str) -> None:
    assert ask(route, **{field: VALUES[field]}).status_code == 400


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        ("/v1/completions", {"structured_outputs": {"structural_tag": "{}"}}),
        ("/v1/completions", {"response_format": {"type": "structural_tag", "format": {}}}),
        ("/v1/completions", {"use_beam_search": True, "stream": True}),
        ("/v1/chat/completions", {"structured_outputs": {"structural_tag": "{}"}}),
        ("/v1/chat/completions", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        ("/v1/chat/completions", {"chat_template": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}),
    ],
)
def test_refused_combinations_are_refused(route: str, fields: dict[str, Any]) -> None:
    assert ask(route, **fields).status_code == 400
