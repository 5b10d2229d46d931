"""A request gets to its endpoint by the exact path, and by Starlette's router where that is no use."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from stubserver.app import create_app

SCRIPT = {"rules": [{"steps": [{"tokens": [300]}]}], "served_model_name": "stub"}
ASKED = {"prompt": "a", "max_tokens": 1, "return_token_ids": True}


@pytest.mark.parametrize("prefix", ["", "/one/two"])
def test_an_app_answers_where_it_is_mounted(prefix: str) -> None:
    outer = Starlette(routes=[Mount(prefix or "/", create_app(SCRIPT))])
    with TestClient(outer) as client:
        reply = client.post(f"{prefix}/v1/completions", json=ASKED)
        refused = client.post(f"{prefix}/v1/completions", json=ASKED | {"model": "other"})
        unparsable = client.post(
            f"{prefix}/v1/completions", content=b"\xff", headers={"content-type": "application/json"}
        )
    assert reply.json()["choices"][0]["token_ids"] == [300]
    assert (refused.status_code, refused.json()["error"]["type"]) == (404, "NotFoundError")
    assert (unparsable.status_code, unparsable.json()) == (400, {"detail": "There was an error parsing the body"})


@pytest.mark.parametrize(
    ("method", "path", "status", "location"),
    [
        ("POST", "/v1/nothing", 404, None),
        ("GET", "/v1/completions", 405, None),
        ("HEAD", "/health", 405, None),
        ("GET", "/health/", 307, "http://testserver/health"),
        ("POST", "/ping", 200, None),
    ],
)
def test_what_no_endpoint_answers_is_answered_by_the_router(
    method: str, path: str, status: int, location: str | None
) -> None:
    with TestClient(create_app(SCRIPT), follow_redirects=False) as client:
        reply = client.request(method, path)
    assert (reply.status_code, reply.headers.get("location")) == (status, location)
