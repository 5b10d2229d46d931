"""Requests over all routes: number n of a seed is always the same one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fields import CHAT, COMPLETION, CONSTRAINTS, FORMATS, GENERATE_PARAMS, IDS, MESSAGES, OTHER, TEXTS, WRONG, Field

KINDS = {"valid": 35, "sampled": 10, "edge": 20, "wrong type": 15, "structured outputs": 15, "http": 5}
"""How often requests are of each kind."""

ROUTES = {
    "/v1/completions": 28,
    "/v1/chat/completions": 28,
    "/inference/v1/generate": 14,
    "/v1/completions/render": 5,
    "/v1/chat/completions/render": 6,
    "/v1/chat/completions/batch": 3,
    "/tokenize": 5,
    "/detokenize": 2,
    "/generative_scoring": 4,
    "/v1/systemone": 2,
    "/invocations": 2,
    "/inference/v1/abort_requests": 1,
}
"""How often requests go to each route."""

GENERATING = ("/v1/completions", "/v1/chat/completions", "/inference/v1/generate")

METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH")

PATHS = (
    *("/health", "/ping", "/load", "/v1/models", "/docs", "/redoc", "/kv_event_sources", "/is_scaling_elastic_ep"),
    *("/nope", "/v1/models/", "/v1/responses/x", "/v1/embeddings", "/health/", "//health", "/v1", *ROUTES),
)

CONTENT_TYPES = (
    "application/json",
    "application/json ",
    "application/json;",
    "text/plain",
    "APPLICATION/JSON; a=b",
    "",
)

RAW_BODIES = ("null", "", "  ", "{", "[]", "5", '"x"', "NaN", "{} {}", "{'a': 1}", '{"a": 1,}', "[" * 2000, '"\x01"')


class Request(NamedTuple):
    """number, kind: of the series. request: as recordings have it."""

    number: int
    kind: str
    request: dict[str, Any]


def make_request(seed: int, number: int) -> Request:
    """Number n of this seed."""
    rng = random.Random(f"{seed}-{number}")
    kind = _weighted(rng, KINDS)
    if kind == "http":
        return Request(number, kind, _http(rng))
    route = rng.choice(GENERATING) if kind in ("sampled", "structured outputs") else _weighted(rng, ROUTES)
    body = BODIES[kind](rng, route)
    return Request(number, kind, {"method": "POST", "path": route, "body": body})


def _weighted(rng: random.Random, weights: Mapping[str, int]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def _fields(route: str) -> Mapping[str, Field]:
    if route in OTHER:
        return OTHER[route]
    if "chat" in route:
        return CHAT
    return GENERATE_PARAMS if route == "/inference/v1/generate" else COMPLETION


def _base(rng: random.Random, route: str) -> dict[str, Any]:
    """The least that a request to this route has. Greedy, and with its token ids, so that it can be followed."""
    if route == "/tokenize":
        return {"messages": rng.choice(MESSAGES)} if rng.random() < 0.4 else {"prompt": rng.choice(TEXTS)}
    if route in OTHER:
        names = {"/generative_scoring": ("query", "items", "label_token_ids"), "/v1/systemone": ("state", "questions")}
        return {name: rng.choice(OTHER[route][name].right) for name in names.get(route, tuple(OTHER[route])[:1])}
    common = {"temperature": 0, "max_tokens": rng.choice((1, 2, 3))}
    if route == "/inference/v1/generate":
        return {"token_ids": rng.choice(IDS), "sampling_params": common}
    if route.endswith("/batch"):
        return {"messages": [rng.choice(MESSAGES), rng.choice(MESSAGES)], **common, "return_token_ids": True}
    is_chat = "chat" in route or (route == "/invocations" and rng.random() < 0.5)
    given = {"messages": rng.choice(MESSAGES)} if is_chat else {"prompt": rng.choice((*TEXTS, *IDS))}
    return {**given, **common, "return_token_ids": True}


def _parameters(route: str, body: dict[str, Any]) -> dict[str, Any]:
    """The part of a body that fields go to."""
    return body["sampling_params"] if route == "/inference/v1/generate" else body  # type: ignore[no-any-return]


def _add(rng: random.Random, route: str, body: dict[str, Any], count: int, *, edge: bool = False) -> None:
    """Give some fields right values, and one of them one at the edge."""
    fields, place = _fields(route), _parameters(route, body)
    keeps_greedy = ("temperature", "n", "return_token_ids")
    names = [name for name in fields if fields[name].right and name not in keeps_greedy and name not in place]
    for name in rng.sample(names, min(count, len(names))):
        place[name] = rng.choice(fields[name].right)
    if route in ("/tokenize",) and "prompt" in place and "messages" in place:
        del place[rng.choice(("prompt", "messages"))]
    if edge:
        # Only where the drawn tokens can be followed may they be drawn.
        drawn = () if route in GENERATING else ("temperature", "n")
        name = rng.choice([name for name in fields if fields[name].edge and name not in drawn])
        place[name] = rng.choice(fields[name].edge)


def _valid(rng: random.Random, route: str) -> dict[str, Any]:
    body = _base(rng, route)
    _add(rng, route, body, rng.choice((0, 1, 2, 3, 5)))
    return body


def _sampled(rng: random.Random, route: str) -> dict[str, Any]:
    body = _base(rng, route)
    _add(rng, route, body, rng.choice((0, 1, 2, 3)))
    place = _parameters(route, body)
    place |= {"temperature": rng.choice((0.3, 0.7, 1, 1.5)), "n": rng.choice((1, 1, 2))}
    place.pop("use_beam_search", None)
    return body


def _edge(rng: random.Random, route: str) -> dict[str, Any]:
    body = _base(rng, route)
    _add(rng, route, body, rng.choice((0, 1, 2)), edge=True)
    return body


def _wrong_type(rng: random.Random, route: str) -> dict[str, Any]:
    body = _base(rng, route)
    place = _parameters(route, body)
    name = rng.choice([*_fields(route), *([] if route in OTHER else ["response_format", "structured_outputs"])])
    if name != "temperature" or route in GENERATING:
        place[name] = rng.choice(WRONG)
    if rng.random() < 0.15:
        body[rng.choice(list(body))] = rng.choice(WRONG)
    return body


def _structured(rng: random.Random, route: str) -> dict[str, Any]:
    body = _base(rng, route)
    place = _parameters(route, body)
    if route == "/inference/v1/generate" or rng.random() < 0.7:
        place["structured_outputs"] = rng.choice(CONSTRAINTS)
    else:
        place["response_format"] = rng.choice(FORMATS)
    place["max_tokens"] = rng.choice((1, 2, 4, 8))
    place["logprobs"] = True if "chat" in route else 5
    if "chat" in route:
        place["top_logprobs"] = 5
    return body


BODIES: dict[str, Callable[[random.Random, str], dict[str, Any]]] = {
    "valid": _valid,
    "sampled": _sampled,
    "edge": _edge,
    "wrong type": _wrong_type,
    "structured outputs": _structured,
}


def _http(rng: random.Random) -> dict[str, Any]:
    """A request that is about HTTP: its method, its headers, or a body that is no object."""
    if rng.random() < 0.5:
        headers = rng.choice(({}, {"origin": "http://a.example"}, {"x-data-parallel-rank": "1"}))
        if rng.random() < 0.2:
            headers = {"origin": "http://a.example", "access-control-request-method": rng.choice(METHODS)}
        return {"method": rng.choice(METHODS), "path": rng.choice(PATHS), "headers": headers}
    route = rng.choice(list(ROUTES))
    if rng.random() < 0.5:
        return {"method": "POST", "path": route, "raw": rng.choice(RAW_BODIES)}
    kept = json.loads(json.dumps(_base(rng, route)))
    return {"method": "POST", "path": route, "headers": {"content-type": rng.choice(CONTENT_TYPES)}, "body": kept}
