"""What a fault did to a reply: every kind says whether it changed something, and why not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from fault_server import REQUEST, SCRIPT

from stubserver.errors import ConnectionClosedError
from stubserver.testing import Stub

CHANGES: dict[str, tuple[dict[str, Any], bool]] = {
    "latency": ({"first": 0.001}, True),
    "close": ({"after_events": 1}, True),
    "framing": ({"no_space": True}, False),
    "content_type": ({}, True),
    "error_event": ({}, True),
    "no_done": ({}, False),
    "malformed_json": ({}, True),
    "choices": ({}, True),
    "usage": ({"value": None}, True),
    "logprobs": ({}, True),
    "missing_step": ({}, True),
    "truncate_top": ({"keep": 1}, True),
    "drop_label": ({"label": " B"}, True),
    "nan": ({}, True),
    "minus_infinity": ({}, True),
    "sentinel": ({}, True),
    "duplicate_keys": ({}, True),
    "sort_top_by_value": ({}, False),
    "drop_sampled": ({}, True),
}
"""Kind → (its keys, whether a full reply is changed by it)."""

IDLE: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"kind": "latency", "between": 1}, {"max_tokens": 1}, "no pause was due: it has one event or token"),
    ({"kind": "framing", "crlf": True}, {}, "it is no stream, or too short"),
    ({"kind": "content_type", "value": "application/json"}, {}, "its content type is application/json anyway"),
    ({"kind": "no_done"}, {}, "it has no event that ends it"),
    ({"kind": "malformed_json", "event": 3}, {"stream": True}, "its stream has no event 3"),
    ({"kind": "usage"}, {"stream": True}, "it has no usage that could be changed"),
    ({"kind": "logprobs"}, {"logprobs": None}, "it has no logprobs that could be changed"),
    ({"kind": "nan", "event": 3}, {"stream": True}, "its stream has no event 3, only 3 of them"),
    ({"kind": "missing_step", "step": 3}, {}, "no choice has logprobs of a token 3, only of 3"),
    ({"kind": "truncate_top", "keep": 4}, {}, "of its top logprobs, no position has more than 4 of them"),
    ({"kind": "truncate_top", "keep": 1}, {"logprobs": None}, "it has no logprobs"),
    ({"kind": "truncate_top", "keep": 1}, {"logprobs": 99}, "it has no choices"),
    (
        {"kind": "drop_label", "label": " Maybe"},
        {"max_tokens": 1, "logprobs": 2},
        "there is no token ' Maybe' among its top logprobs, which have ' A', ' B'",
    ),
    (
        {"kind": "drop_label", "label": 5},
        {"max_tokens": 1, "logprobs": 2},
        "there is no token 5 among its top logprobs",
    ),
    ({"kind": "sentinel", "token": " Maybe"}, {}, "there is no token ' Maybe' among its logprobs"),
    ({"kind": "minus_infinity"}, {"logprobs": 1}, "it has no value of a masked token"),
    ({"kind": "sort_top_by_value"}, {}, "of its top logprobs, they are sorted already"),
]


@pytest.fixture(scope="module")
def shared_stub() -> Stub:
    return Stub(SCRIPT)


@pytest.fixture
def stub(shared_stub: Stub) -> Stub:
    shared_stub.reset()
    return shared_stub


def ask(stub: Stub, *faults: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    """What the journal has of the faults of a request that brings these."""

    async def post() -> None:
        async with stub.async_client() as client:
            headers = {"X-Stub-Faults": json.dumps(faults)} if faults else {}
            await client.post("/v1/completions", json={**REQUEST, **fields}, headers=headers)

    try:
        asyncio.run(post())
    except (ConnectionClosedError, httpx.HTTPError):
        assert faults
    described: list[dict[str, Any]] = stub.last.describe()["faults"]
    return described


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", CHANGES)
def test_a_fault_that_changes_something(stub: Stub, kind: str, stream: bool) -> None:
    keys, in_full = CHANGES[kind]
    fault = {"kind": kind, **keys}
    changed = in_full or (stream and kind != "sort_top_by_value")
    options = {"stream_options": {"include_usage": True}} if stream else {}
    (effect,) = ask(stub, fault, stream=stream, **options)
    assert (effect["fault"], effect["set_on"], effect["changed"]) == (fault, "request", changed)
    assert bool(effect["why"]) is not changed


@pytest.mark.parametrize(("fault", "fields", "why"), IDLE)
def test_a_fault_that_changes_nothing_says_why(stub: Stub, fault: Any, fields: Any, why: str) -> None:
    (effect,) = ask(stub, fault, **fields)
    assert effect["changed"] is False
    assert effect["why"].startswith(why)


def test_a_reply_that_no_fault_changes_goes_out_as_it_is(stub: Stub) -> None:
    ask(stub)
    plain = stub.last.reply["choices"]
    ask(stub, {"kind": "drop_label", "label": " Maybe"})
    assert stub.last.reply["choices"] == plain


def test_faults_of_server_and_rule(stub: Stub) -> None:
    stub.on(prompt="x").text(" A").fault("logprobs")
    stub.faults({"kind": "usage"})
    assert [(each["set_on"], each["changed"]) for each in ask(stub, prompt="x")] == [("server", True), ("rule", True)]


def test_in_place_of_a_reply_and_behind_it(stub: Stub) -> None:
    status, latency, drop = (
        {"kind": "status", "status": 503},
        {"kind": "latency", "first": 0.001},
        {"kind": "drop_label", "label": " A"},
    )
    effects = ask(stub, status, latency, drop)
    assert [each["changed"] for each in effects] == [True, True, None]
    assert effects[2]["why"] == "another fault answered in the server's place"


def test_a_reply_that_broke_off_says_nothing(stub: Stub) -> None:
    close, drop = {"kind": "close", "after_events": 1}, {"kind": "drop_label", "label": " Maybe"}
    assert [each["changed"] for each in ask(stub, close, drop, stream=True)] == [True, None]


def test_requests_to_a_dead_engine(stub: Stub) -> None:
    ask(stub, {"kind": "dead_engine"})
    assert ask(stub) == [{"fault": {"kind": "dead_engine"}, "set_on": "server", "changed": True, "why": ""}]


def test_without_faults_there_are_none(stub: Stub) -> None:
    assert ask(stub) == []


def test_the_same_over_http(stub: Stub) -> None:
    effects = ask(stub, {"kind": "logprobs"})

    async def journal() -> Any:
        async with stub.async_client() as client:
            return (await client.get("/stub/requests")).json()

    assert asyncio.run(journal())["requests"][0]["faults"] == effects
