"""CORS, request ids and a root path, beyond what is recorded: how they go with the rest."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from stubserver.app import create_app

PAGE = {"origin": "http://page.example"}
PREFLIGHT = {**PAGE, "access-control-request-method": "POST", "access-control-request-headers": "content-type"}
ASKED = {"prompt": "a", "max_tokens": 1}


def serving(**settings: Any) -> TestClient:
    return TestClient(create_app(**settings), follow_redirects=False)


def test_no_page_may_read_replies_at_first() -> None:
    reply = serving().post("/v1/completions", json=ASKED, headers=PAGE)
    assert (reply.status_code, reply.headers["vary"]) == (200, "Origin")
    assert "access-control-allow-origin" not in reply.headers
    assert serving().options("/v1/completions", headers=PREFLIGHT).status_code == 400


@pytest.mark.parametrize("origins", [["*"], '["*"]', ['["*"]'], "*", ["http://page.example"]])
def test_origins_are_given_in_every_way_of_a_list(origins: Any) -> None:
    server = serving(allowed_origins=origins)
    assert server.options("/v1/completions", headers=PREFLIGHT).text == "OK"
    assert server.get("/health", headers=PAGE).headers["access-control-allow-origin"] in ("*", PAGE["origin"])


@pytest.mark.parametrize("fault", [{"kind": "status", "status": 503}, {"kind": "no_done"}])
def test_a_page_may_read_what_faults_send(fault: dict[str, Any]) -> None:
    script = {"faults": [fault], "default": "random"}
    reply = serving(script=script, allowed_origins=["*"]).post("/v1/completions", json=ASKED, headers=PAGE)
    assert reply.headers["access-control-allow-origin"] == "*"


def test_a_preflight_needs_no_api_key_and_is_in_no_journal() -> None:
    server = serving(api_key="secret", allowed_origins=["*"], journal=True, control="any")
    assert server.options("/v1/completions", headers=PREFLIGHT).status_code == 200
    assert server.post("/v1/completions", json=ASKED, headers=PAGE).status_code == 401
    assert server.get("/stub/requests", headers={"authorization": "Bearer secret"}).json()["requests"] == []


def test_the_parts_of_a_server_know_nothing_of_its_root_path() -> None:
    fault = {"kind": "status", "status": 503, "paths": ["/v1/completions"]}
    server = serving(script={"faults": [fault], "default": "random"}, root_path="/api/", journal=True, control="any")
    assert server.post("/api/v1/completions", json=ASKED).status_code == 503
    (entry,) = server.get("/api/stub/requests").json()["requests"]
    assert entry["path"] == "/v1/completions"
    assert server.get("/api/health/").headers["location"] == "http://testserver/api/health"
    assert server.get("/apihealth").status_code == 404


def test_request_ids_are_sent_back() -> None:
    server = serving(enable_request_id_headers=True, api_key="secret")
    assert server.get("/nope", headers={"x-request-id": "mine"}).headers["x-request-id"] == "mine"
    first, second = (server.get("/v1/models").headers["x-request-id"] for _ in range(2))
    assert len(first) == 32
    assert first != second


def test_without_control_there_are_no_control_routes() -> None:
    server = serving(control="off", api_key="secret")
    assert [server.request(method, "/stub/requests").status_code for method in ("GET", "HEAD", "PUT")] == [404] * 3


@pytest.mark.parametrize(("settings", "status"), [({}, 200), ({"embeddings_endpoint": False}, 404)])
def test_embeddings_can_be_taken_away(settings: dict[str, Any], status: int) -> None:
    server = serving(**settings)
    assert server.post("/v1/embeddings", json={"input": "a"}).status_code == status
    assert ("/v1/embeddings" in server.get("/openapi.json").json()["paths"]) == (status == 200)


def test_a_chat_template_of_the_server_is_used(tmp_path: Any) -> None:
    (tmp_path / "own.jinja").write_text("{{ messages[0].content }}!")
    asked = {"messages": [{"role": "user", "content": "The sky"}], "return_token_strs": True}
    for template in (str(tmp_path / "own.jinja"), "{{ messages[0].content }}!"):
        assert "".join(serving(chat_template=template).post("/tokenize", json=asked).json()["token_strs"]).endswith("!")
    (tmp_path / "script.yaml").write_text("default: random\nchat_template: own.jinja\n")
    reply = serving(script=tmp_path / "script.yaml").post("/tokenize", json=asked).json()
    assert reply["token_strs"][-1] == "!"
    with pytest.raises(Exception, match="there is no such file, and it is no template"):
        create_app(chat_template="nowhere.jinja")


def test_a_body_under_sagemakers_name_is_a_request_of_its_route() -> None:
    def row(context: Any) -> Any:
        return {f"token_id:{300 if context.request.endpoint == '/v1/completions' else 301}": 9.0}, 0.0

    reply = serving(script=row).post("/invocations", json={**ASKED, "temperature": 0, "return_token_ids": True})
    assert reply.json()["choices"][0]["token_ids"] == [300]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/completions/derender"])
def test_routes_that_are_not_imitated_say_so(path: str) -> None:
    reply = serving().post(path, json={"model": "stub"})
    assert (reply.status_code, reply.json()["error"]["type"]) == (501, "NotImplementedError")
    assert f"POST {path}" in reply.json()["error"]["message"]
