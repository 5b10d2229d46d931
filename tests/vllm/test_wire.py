"""vLLM's shapes, read and written again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stubserver.dialects.vllm.wire.codec import WIRE
from stubserver.serving.wire import MISSING, Choice, Position, TopLogprob

LISTS = {
    "text_offset": [7, 9],
    "token_logprobs": [None, -0.5],
    "tokens": [" A", " B"],
    "top_logprobs": [None, {" B": -0.5, " C": -1.5}],
}


def listed(**name: Any) -> dict[str, Any]:
    other = {"token": " C"} if "token" in name else {"token_id": 6}
    entry = {**name, "logprob": -0.5, "rank": 1}
    return {"content": [{**entry, "top_logprobs": [entry, {**other, "logprob": -1.5, "rank": 2}]}]}


SHAPES = {
    "four lists": (LISTS, [" A", " B"], [None, [" B", " C"]]),
    "texts": (listed(token=" B"), [" B"], [[" B", " C"]]),
    "ids": (listed(token_id=5), ["token_id:5"], [["token_id:5", "token_id:6"]]),
    "no top ones": ({"content": [{"token": "x", "logprob": 0.0}]}, ["x"], [None]),
    "nothing yet": ({"content": []}, [], []),
}


def positions_of(logprobs: Any) -> Any:
    (choice,) = WIRE.read_choices({"choices": [{"index": 2, "logprobs": logprobs}]})
    assert choice.index == 2
    return choice.positions


@pytest.mark.parametrize("shape", SHAPES)
def test_positions_are_read_and_written(shape: str) -> None:
    logprobs, tokens, tops = SHAPES[shape]
    positions = positions_of(logprobs)
    assert [each.token for each in positions] == tokens
    assert [each.top and [top.token for top in each.top] for each in positions] == tops
    document = {"id": "x", "choices": [{"index": 0, "logprobs": logprobs}, {"index": 1, "logprobs": None}]}
    written = WIRE.write_choices(document, WIRE.read_choices(document))
    assert json.dumps(written) == json.dumps(document)


@pytest.mark.parametrize("shape", ["four lists", "texts", "ids"])
def test_other_positions(shape: str) -> None:
    logprobs, _, _ = SHAPES[shape]
    document = {"choices": [{"index": 0, "logprobs": logprobs}]}
    *_, last = positions_of(logprobs)
    assert last.top
    changed = last._replace(logprob=-3.0, top=[*last.top, last.top[0]._replace(logprob=-9.0)])
    written = json.dumps(WIRE.write_choices(document, [Choice(0, [changed])]))
    again = json.loads(written, object_pairs_hook=lambda pairs: [value for _, value in pairs])
    assert json.dumps(again).count("-9.0") == 1
    assert written.count("-3.0") == 1
    assert WIRE.write_choices(document, [Choice(0, None)]) == {"choices": [{"index": 0, "logprobs": None}]}
    assert document == {"choices": [{"index": 0, "logprobs": logprobs}]}


def test_lists_may_lack_columns() -> None:
    assert positions_of({"tokens": ["a"]}) == [Position("a", None, None)]
    logprobs = {"tokens": ["a"], "top_logprobs": [{"b": -1.0}]}
    assert positions_of(logprobs) == [Position("a", None, [TopLogprob("b", -1.0)])]
    document = {"choices": [{"logprobs": logprobs}]}
    written = WIRE.write_choices(document, WIRE.read_choices(document))
    assert json.dumps(written) == json.dumps(document)


@pytest.mark.parametrize("logprobs", [None, 3, [], {}, {"content": None}, {"content": [3]}, {"content": [{}]}])
def test_what_is_no_logprobs_stays(logprobs: Any) -> None:
    document = {"choices": [{"index": 0, "logprobs": logprobs}, 5]}
    assert WIRE.read_choices(document) == [Choice(0, None)]
    assert WIRE.write_choices(document, [Choice(0, None)]) is document


@pytest.mark.parametrize("document", [{}, {"choices": None}, {"error": {"message": "x"}}])
def test_documents_of_another_kind(document: dict[str, Any]) -> None:
    assert WIRE.read_choices(document) == []
    assert WIRE.write_choices(document, []) is document
    assert WIRE.write_part(document, "logprobs", None) is document
    assert WIRE.read_model(document) is None
    assert WIRE.count_tokens(document) == 1


def test_parts() -> None:
    document = {"choices": [{"index": 0, "logprobs": LISTS}], "usage": {"completion_tokens": 3}, "model": "m"}
    assert WIRE.write_part(document, "choices", []) == {**document, "choices": []}
    assert WIRE.write_part(document, "usage", MISSING) == {key: document[key] for key in ("choices", "model")}
    assert WIRE.write_part(document, "logprobs", MISSING) == {**document, "choices": [{"index": 0}]}
    without = WIRE.write_part(document, "logprobs", None)
    assert without == {**document, "choices": [{"index": 0, "logprobs": None}]}
    assert WIRE.write_part(without, "logprobs", None) is without
    assert (WIRE.read_model(document), WIRE.count_tokens(document)) == ("m", 3)


def test_an_event_that_is_there_for_its_usage_goes_with_it() -> None:
    assert WIRE.write_part({"choices": [], "usage": {"completion_tokens": 3}}, "usage", MISSING) is None
    assert WIRE.write_part({"choices": [], "usage": None}, "usage", MISSING) == {"choices": []}


def test_names_of_a_token() -> None:
    assert WIRE.token_names(5, " A") == {" A", "token_id:5"}
    assert WIRE.token_names(5, None) == {"token_id:5"}
