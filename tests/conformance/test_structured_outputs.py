"""Recorded exchanges with structured outputs, replayed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from compare import Comparison
from recordings import FIXTURES, SCRIPT, Exchange
from starlette.testclient import TestClient

from stubserver.app import create_app
from stubserver.engine.grammar import xgrammar
from stubserver.engine.grammar.xgrammar.bindings import load_bindings

FOLDER = FIXTURES / "vllm-0.32.0-structured"

NEEDS_LIBRARY = {
    "auto-constraints-multipleOf": "a schema that xgrammar is never chosen for, and follows in its own way",
    "auto-constraints-TokenMacro": "a macro that isn't imitated",
}
"""Exchanges that the imitation doesn't match, and why."""

FORMS_OF_TAGS = (
    *("any_text", "const", "regex", "schema", "or", "sequence", "tag", "triggered", "at_least_one", "grammar"),
    *("bad_regex", "legacy", "legacy yes no", "no trigger"),
)
"""Structural tags that are well formed, as far as can be told without the library, which alone has their masks."""

OTHER_LLGUIDANCE = {f"config_{number}-config-multipleOf" for number in (2, 4)}
"""Left out: vLLM 0.32.0 has llguidance 1.7, whose masks for multiples differ from those of later versions."""


def exchanges() -> Iterator[Exchange]:
    for path in sorted(FOLDER.glob("*.jsonl")):
        header, *lines = map(json.loads, path.read_text(encoding="utf-8").strip("\n").split("\n"))
        settings = {
            **header["server"],
            "served_model_name": header["served_model_name"],
            "max_model_len": 512,
            "model_runner": "v1",
        }
        for line in lines:
            yield Exchange(path.stem, settings, line["group"], line["name"], line["request"], line["response"])


EXCHANGES = [exchange for exchange in exchanges() if exchange.id not in OTHER_LLGUIDANCE]
TAGS = [
    exchange
    for exchange in EXCHANGES
    if exchange.file == "tags" and exchange.name.endswith(tuple(f" {form}" for form in FORMS_OF_TAGS))
]
UNCHECKED_TAGS = [
    exchange
    for exchange in EXCHANGES
    if exchange.file == "tags_guidance" and exchange.name.endswith((" bad_regex", " no trigger"))
]
"""What only the library would refuse: the front end asks it, whatever the backend."""
IMITATED = [
    exchange
    for exchange in EXCHANGES
    if exchange.id not in NEEDS_LIBRARY and exchange not in TAGS and exchange not in UNCHECKED_TAGS
]


@cache
def client(settings: str, *, imitated: bool) -> TestClient:
    """A server whose engine has chosen its backend, the library or its imitation."""
    made = TestClient(create_app(SCRIPT, **json.loads(settings)), raise_server_exceptions=False)
    ask = {"model": "bigram", "prompt": "a", "max_tokens": 1, "structured_outputs": {"choice": ["A"]}}
    assert made.post("/v1/completions", json=ask).status_code == 200
    return made


def timeless(value: Any) -> Any:
    """Without the times in xgrammar's messages."""
    return json.loads(re.sub(r"\[\d\d:\d\d:\d\d\]", "[time]", json.dumps(value)))


@pytest.mark.skipif(not load_bindings() and "CI" not in os.environ, reason="xgrammar 0.2.8 isn't installed")
@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.id)
def test_recorded_exchange(exchange: Exchange) -> None:
    assert load_bindings(), "make test installs xgrammar"
    assert_alike(exchange, imitated=False)


@pytest.mark.parametrize("exchange", IMITATED, ids=lambda exchange: exchange.id)
def test_recorded_exchange_by_the_imitation(exchange: Exchange, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xgrammar, "load_bindings", lambda: None)
    assert_alike(exchange, imitated=True)


@pytest.mark.parametrize("exchange", TAGS, ids=lambda exchange: exchange.id)
def test_structural_tags_without_the_library_are_refused_as_ours(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xgrammar, "load_bindings", lambda: None)
    server = client(json.dumps(exchange.settings), imitated=True)
    reply = server.post(exchange.path, content=exchange.content, headers=exchange.headers)
    assert (reply.status_code, reply.json()["error"]["message"]) == (
        501,
        "Structural tags take the package xgrammar 0.2.8, which isn't installed here.",
    )


def assert_alike(exchange: Exchange, *, imitated: bool) -> None:
    reply = client(json.dumps(exchange.settings), imitated=imitated).request(
        exchange.request["method"], exchange.path, content=exchange.content, headers=exchange.headers
    )
    recorded = timeless(exchange.response)
    assert reply.status_code == recorded["status"], reply.text
    assert reply.headers.get("content-type", "") == recorded["content_type"]
    if "events" in recorded:
        events = [event.removeprefix("data: ") for event in reply.text.split("\n\n") if event]
        ours = [event if event == "[DONE]" else json.loads(event) for event in events]
        found = list(Comparison().streams(recorded["events"], timeless(ours)))
    else:
        found = list(Comparison().values(recorded["body"], timeless(reply.json())))
    assert not found, "\n".join(found)


def test_lists_name_exchanges() -> None:
    assert NEEDS_LIBRARY.keys() | OTHER_LLGUIDANCE <= {exchange.id for exchange in exchanges()}
