"""No request, however broken, gets a 500 or stops the server."""

import json
import logging
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from stubserver.app import create_app
from stubserver.dialects.vllm.completions.protocol import CompletionRequest
from stubserver.dialects.vllm.tokenize.protocol import DetokenizeRequest, TokenizeChatRequest, TokenizeCompletionRequest

BIGRAM = Path(__file__).parents[2] / "fixtures" / "bigram512"
TABLE = np.load(BIGRAM / "logits.npz")["table"]

GOOD: dict[str, Any] = {"prompt": [300], "max_tokens": 1, "temperature": 0, "return_token_ids": True}
BEST_AFTER_300 = int(TABLE[300].argmax())
GREETING = {"role": "user", "content": "Hi"}
JSON = {"content-type": "application/json"}

ROUTES = ("/v1/completions", "/tokenize", "/detokenize")

fuzz = settings(
    derandomize=True,
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@cache
def client() -> TestClient:
    """A context of 32 tokens bounds the time that a request may take."""
    return TestClient(create_app(BIGRAM / "script.yaml", max_model_len=32), raise_server_exceptions=False)


def send(path: str, content: bytes, **headers: Any) -> Any:
    """The reply, after it has been checked; and the server still gives the right answer."""
    headers = {**JSON, **{name.replace("_", "-"): value for name, value in headers.items()}}
    reply = client().post(path, content=content, headers=headers)
    check(reply)
    after = client().post("/v1/completions", json=GOOD)
    assert after.status_code == 200
    assert after.json()["choices"][0]["token_ids"] == [BEST_AFTER_300]
    return reply


def check(reply: Any) -> None:
    """JSON in vLLM's shape, or a stream that ends as it has to; no 500, in a stream neither."""
    assert reply.status_code < 500, reply.text
    if reply.headers["content-type"].startswith("text/event-stream"):
        assert reply.status_code == 200
        *events, done, end = reply.text.split("\n\n")
        assert (done, end) == ("data: [DONE]", "")
        for event in events:
            body = strict_json(event.removeprefix("data: "))
            assert "error" not in body or is_error(body)
    else:
        body = strict_json(reply.text)
        assert reply.status_code == 200 or is_error(body) or body.keys() == {"detail"}


def is_error(body: dict[str, Any]) -> bool:
    error = body.get("error")
    return isinstance(error, dict) and error.keys() == {"message", "type", "param", "code"} and error["code"] < 500


def strict_json(text: str) -> Any:
    """JSON without NaN and infinities."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def encode(body: Any) -> bytes:
    """JSON, and what Python writes beyond it: NaN, Infinity; lone surrogates are escaped."""
    return json.dumps(body).encode()


HUGE = 10**400
NUMBERS = (
    st.sampled_from([0, 1, -1, 2, 5, 511, 512, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, HUGE, -HUGE]) | st.floats()
)
TEXTS = st.sampled_from(["", " ", "a", " blue", "\x00", "\ud800", "é", "🙂", "x" * 10_000, "512", "1e5"]) | st.text(
    max_size=5
)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
KEYS = st.sampled_from(["0", "-1", "512", "1_0", "9" * 5000, "a", "\ud800", "type", "role", "content"]) | st.text(
    max_size=3
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
LONG = st.sampled_from([[0] * 2000, [[0]] * 200, ["a"] * 2000, {str(i): 1 for i in range(600)}])

CONSTRAINTS = st.sampled_from(
    [
        {},
        {"choice": []},
        {"choice": [""]},
        {"choice": ["\ud800"]},
        {"choice": ["blue", "red"]},
        {"regex": ""},
        {"regex": "("},
        {"regex": "(" * 2000},
        {"regex": r"\1"},
        {"regex": "a{99999999999}"},
        {"regex": "\ud800"},
        {"json": "["},
        {"json": "[" * 5000},
        {"json": {"type": ["x"]}},
        {"json": {"$ref": "#"}},
        {"json": {"enum": []}},
        {"json": {"type": "integer", "multipleOf": 0}},
        {"json": {"a": float("nan")}},
        {"json": {"const": HUGE}},
        {"json": {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}},
        {"json_object": True},
        {"json_object": False},
        {"grammar": "start: start"},
        {"grammar": "start: " + "(" * 5000},
        {"grammar": "root ::= root"},
        {"grammar": "start: <[999999]>"},
        {"grammar": "\ud800"},
        {"choice": ["a"], "regex": "a"},
        {"structural_tag": "{}"},
    ]
)
FORMATS = st.sampled_from(
    [
        {"type": "json_object"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "x"}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "x"}}},
        {"type": "structural_tag", "format": 1},
        {"type": "structural_tag", "structures": [], "triggers": []},
    ]
)

# So many choices or beams as may be asked for are another matter than broken requests: they take their time.
COUNTS = st.sampled_from([0, 1, 3, -1, 16385, HUGE, 1.5, "2", None, True, float("nan")])

ANY = VALUES | LONG
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(CompletionRequest.model_fields, ANY),
    "n": COUNTS,
    "structured_outputs": CONSTRAINTS | ANY,
    "response_format": FORMATS | ANY,
    "stream": st.booleans() | ANY,
    "no_such_field": ANY,
}
COMPLETIONS = st.fixed_dictionaries({}, optional=FIELDS) | st.lists(
    st.sampled_from(sorted(FIELDS)), min_size=1, max_size=3, unique=True
).flatmap(lambda names: st.fixed_dictionaries({name: FIELDS[name] for name in names}))


ODD: list[Any] = [
    None, True, False, 0, -1, 2, 2**63, HUGE, -HUGE, 1.5, float("nan"), float("inf"), -1e308,
    "", "a", "\ud800", "\x00", "x" * 10_000,
    [], [[]], [None], [HUGE], ["\ud800"], [""], ["a", 1], [0] * 2000,
    {}, {"0": float("nan")}, {"0": HUGE}, {"9" * 5000: 1}, {"\ud800": 1}, {"a": {"a": []}},
]  # fmt: skip


@pytest.mark.parametrize("field", CompletionRequest.model_fields)
def test_every_field_of_a_completion_with_every_odd_value(field: str) -> None:
    for value in ODD:
        for beams in (False, True):
            content = encode({**GOOD, "logprobs": 1, "use_beam_search": beams, field: value})
            check(client().post("/v1/completions", content=content, headers=JSON))
    send("/v1/completions", encode(GOOD))


@pytest.mark.parametrize(
    ("path", "good", "field"),
    [
        *(("/tokenize", {"prompt": "a"}, field) for field in TokenizeCompletionRequest.model_fields),
        *(("/tokenize", {"messages": [GREETING]}, field) for field in TokenizeChatRequest.model_fields),
        *(("/detokenize", {"tokens": [1]}, field) for field in DetokenizeRequest.model_fields),
    ],
)
def test_every_field_of_the_tokenizer_routes_with_every_odd_value(path: str, good: dict[str, Any], field: str) -> None:
    for value in ODD:
        check(client().post(path, content=encode({**good, field: value}), headers=JSON))
    send("/v1/completions", encode(GOOD))


@pytest.mark.parametrize("part", ["role", "content", "name", "tool_calls"])
def test_every_part_of_a_message_with_every_odd_value(part: str) -> None:
    for value in [*ODD, *([value] for value in ODD), *([{"type": "text", "text": value}] for value in ODD)]:
        check(client().post("/tokenize", content=encode({"messages": [{**GREETING, part: value}]}), headers=JSON))
    send("/v1/completions", encode(GOOD))


@fuzz
@given(body=COMPLETIONS)
def test_completions_with_some_odd_fields(body: dict[str, Any]) -> None:
    send("/v1/completions", encode({"prompt": "The sky", "max_tokens": 2, **body}))


@fuzz
@given(body=COMPLETIONS, logprobs=st.integers(0, 20))
def test_completions_with_logprobs_of_everything_and_some_odd_fields(body: dict[str, Any], logprobs: int) -> None:
    asked = {"logprobs": logprobs, "prompt_logprobs": logprobs, "echo": True, "return_token_ids": True}
    send("/v1/completions", encode({"prompt": "The sky", "max_tokens": 2, **asked, **body}))


MESSAGES = st.lists(
    st.fixed_dictionaries({}, optional={"role": VALUES, "content": VALUES, "tool_calls": VALUES, "name": VALUES}),
    max_size=3,
)


@fuzz
@given(
    body=st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(TokenizeChatRequest.model_fields, VALUES),
            "messages": MESSAGES | ANY,
            "prompt": ANY,
            "tools": st.lists(st.dictionaries(KEYS, VALUES, max_size=2), max_size=2) | ANY,
            "chat_template_kwargs": st.dictionaries(
                st.sampled_from(["messages", "tools", "self", "bos_token", "add_generation_prompt"]) | KEYS, VALUES
            )
            | ANY,
        },
    )
)
def test_tokenize_with_odd_fields(body: dict[str, Any]) -> None:
    send("/tokenize", encode(body))


@fuzz
@given(body=st.fixed_dictionaries({}, optional={"tokens": st.lists(NUMBERS) | ANY, "model": ANY, "no_such_field": ANY}))
def test_detokenize_with_odd_fields(body: dict[str, Any]) -> None:
    send("/detokenize", encode(body))


@fuzz
@given(path=st.sampled_from(ROUTES), body=VALUES, end=st.integers(0, 60), junk=st.binary(max_size=4))
def test_bodies_that_are_no_objects_or_no_json(path: str, body: Any, end: int, junk: bytes) -> None:
    send(path, encode(body)[:end] + junk)


@fuzz
@given(
    header=VALUES.map(json.dumps)
    | st.lists(st.lists(SCALARS, max_size=3), max_size=3).map(json.dumps)
    | st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20),
    body=st.fixed_dictionaries({}, optional={"stream": st.booleans(), "n": COUNTS, "use_beam_search": st.booleans()}),
)
def test_odd_forced_tokens(header: str, body: dict[str, Any]) -> None:
    send("/v1/completions", encode({**GOOD, "max_tokens": 3, **body}), x_stub_force_token_ids=header)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"NaN",
        b"9" * 5000,
        b"[" * 100_000,
        b'{"prompt":' * 100_000,
        b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"tokens": [1' + b"0" * 400 + b"]}",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\xed\xa0\x80"}',
        b'{"prompt": "a", "prompt": null}',
        b'\xef\xbb\xbf{"prompt": "a"}',
        '{"prompt": "a"}'.encode("utf-16"),
        b'{"prompt": "a"',
    ],
    ids=lambda content: f"{content[:12]!r}+{len(content)}",
)
def test_broken_bodies(path: str, content: bytes) -> None:
    send(path, content)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("content_type", ["", "text/plain", "application/xml", "multipart/form-data", "/", "\xff"])
def test_other_content_types_are_refused(path: str, content_type: str) -> None:
    reply = send(path, encode(GOOD), content_type=content_type.encode("latin-1"))
    assert reply.status_code == 400
    assert "Only 'application/json' is allowed" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "field",
    [
        {"request_id": "\ud800", "stream": True},
        {"logit_bias": {"0": float("nan")}, "logprobs": 1},
        {"logit_bias": {"0": float("inf")}, "logprobs": 1},
        {"truncate_prompt_tokens": 0},
        {"length_penalty": 1e308, "use_beam_search": True},
        {"length_penalty": -1e308, "use_beam_search": True},
        {"length_penalty": float("nan"), "use_beam_search": True},
        {"structured_outputs": {"json": {"items": json.loads('{"items":' * 400 + "{}" + "}" * 400)}}},
        {"structured_outputs": {"regex": "[a-z]{1,100000}"}},
        {"structured_outputs": {"json": {"items": {}, "minItems": 10**9}}},
    ],
    ids=lambda field: str(field)[:50],
)
def test_values_that_are_too_much(field: dict[str, Any]) -> None:
    send("/v1/completions", encode({**GOOD, **field}))


@pytest.mark.parametrize("header", ["[" * 100_000, "[[" + "9" * 5000 + "]]", "[[1e400]]", '[["\\ud800"]]', "\xff", ""])
def test_forced_tokens_that_are_none_are_refused(header: str) -> None:
    reply = send("/v1/completions", encode(GOOD), x_stub_force_token_ids=header.encode("latin-1"))
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith("X-Stub-Force-Token-Ids")


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "eos_token", "self", "context"])
def test_template_arguments_that_stand_for_others_are_no_bug(name: str) -> None:
    body = {"messages": [GREETING], "chat_template_kwargs": {name: "x"}}
    send("/tokenize", encode(body))


def test_long_texts() -> None:
    text = " blue" * 200_000
    tokens = send("/tokenize", encode({"prompt": text})).json()["tokens"]
    assert len(tokens) == 200_000
    assert send("/detokenize", encode({"tokens": tokens})).json()["prompt"] == text
    refused = send("/v1/completions", encode({**GOOD, "prompt": text})).json()["error"]
    assert refused["message"].startswith("This model's maximum context length is 32 tokens.")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/completions", 405), ("PUT", "/tokenize", 405), ("POST", "/health", 405), ("GET", "/v1/nope", 404)],
)
def test_other_methods_and_routes(method: str, path: str, status: int) -> None:
    reply = client().request(method, path)
    assert reply.status_code == status
    assert reply.json().keys() == {"detail"}


class BrokenProcessor:
    """A custom logits processor that fails on prompts which end with id 296, and only on those."""

    def apply(self, logits: np.ndarray) -> np.ndarray:
        if np.array_equal(logits, TABLE[296]):
            raise LookupError("no label for blue")
        return logits


def broken_script(context: Any) -> np.ndarray:
    """The table, which fails after id 296."""
    if context.token_ids[-1] == 296:
        raise LookupError("no label for blue")
    row: np.ndarray = TABLE[context.token_ids[-1]]
    return row


@pytest.fixture(params=["script", "processor"])
def broken(request: pytest.FixtureRequest) -> TestClient:
    """A server whose script, or whose processor, raises after " blue"."""
    if request.param == "script":
        app = create_app(broken_script, tokenizer=str(BIGRAM))
    else:
        app = create_app(BIGRAM / "script.yaml", logits_processors=[f"{__file__}:BrokenProcessor"])
    return TestClient(app, raise_server_exceptions=False)


def test_what_a_script_or_a_processor_raises_is_a_500_with_its_words(
    broken: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    """In vLLM's shape; the traceback is in the log, and the server goes on."""
    with caplog.at_level(logging.ERROR):
        reply = broken.post("/v1/completions", json={**GOOD, "prompt": [296]})
    error = reply.json()["error"]
    assert reply.status_code == 500
    assert error["message"].startswith("LookupError: no label for blue")
    assert {**error, "message": ""} == {"message": "", "type": "InternalServerError", "param": None, "code": 500}
    assert "Traceback" in caplog.text
    assert 'raise LookupError("no label for blue")' in caplog.text
    assert broken.post("/v1/completions", json=GOOD).json()["choices"][0]["token_ids"] == [BEST_AFTER_300]


def test_in_a_stream_it_is_the_last_event_but_done(broken: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    """The first token is forced to be " blue"; it goes out, and the next fails."""
    body = {**GOOD, "max_tokens": 3, "stream": True}
    with caplog.at_level(logging.ERROR):
        reply = broken.post("/v1/completions", json=body, headers={"X-Stub-Force-Token-Ids": "[[296]]"})
    first, error, done, end = reply.text.split("\n\n")
    assert reply.status_code == 200
    assert json.loads(first.removeprefix("data: "))["choices"][0]["token_ids"] == [296]
    assert json.loads(error.removeprefix("data: "))["error"]["message"].startswith("LookupError: no label for blue")
    assert (done, end) == ("data: [DONE]", "")
    assert 'raise LookupError("no label for blue")' in caplog.text
    assert broken.post("/v1/completions", json=GOOD).json()["choices"][0]["token_ids"] == [BEST_AFTER_300]
