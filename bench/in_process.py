"""Measures inside one process, without a socket; run by cases.py in a process of its own, on the servers' core.

    python bench/in_process.py label_read ROUNDS CALLS
    python bench/in_process.py rules ROUNDS CALLS

Prints JSON: what was measured → a value a round.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from itertools import cycle, islice
from statistics import median
from typing import Any

import bare_app
import httpx
import workload
from servers import ms_since, pin_server
from starlette.types import ASGIApp, Message

from stubserver.app import create_app
from stubserver.testing import StubServer

Ask = Callable[[bytes], Awaitable[bytes]]
Values = dict[str, list[float]]

FEW_RULES, MANY_RULES = 10, 10_000
SETTINGS = {"served_model_name": [workload.MODEL], "logprobs_mode": "processed_logprobs"}


async def label_read(rounds: int, calls: int) -> Values:
    """µs of a label read, ours and the bare app's, called directly and through httpx; ms of a new app and server."""
    ours = create_app(workload.BIGRAM, **SETTINGS)
    bodies = [workload.label_read(prompt) for prompt in workload.texts()]
    bare = bare_app.create_app(await ask_directly(ours)(bodies[0]))
    asks = {
        "direct": ask_directly(ours),
        "direct, bare": ask_directly(bare),
        "httpx": ask_by_httpx(ours),
        "httpx, bare": ask_by_httpx(bare),
    }
    measured = await timed(asks, bodies, rounds, calls)
    news = {"new app": new_app_ms, "new server": new_server_ms}
    return measured | {name: [measure() for _ in range(rounds + 1)][1:] for name, measure in news.items()}


async def rules(rounds: int, calls: int) -> Values:
    """µs of a label read that the same few rules answer, alone and as the last ones of many."""
    prompts = workload.texts(MANY_RULES)
    asked = prompts[-FEW_RULES:]
    script = {"tokenizer": str(workload.BIGRAM.parent)}
    few = create_app(script | {"rules": workload.exact_rules(asked)}, **SETTINGS)
    many = create_app(script | {"rules": workload.exact_rules(prompts)}, **SETTINGS)
    asks = {"few": ask_directly(few), "many": ask_directly(many)}
    return await timed(asks, [workload.label_read(prompt) for prompt in asked], rounds, calls)


def new_app_ms() -> float:
    started = time.perf_counter()
    create_app(workload.BIGRAM, **SETTINGS)
    return ms_since(started)


def new_server_ms() -> float:
    """In a thread, as a test's fixture starts it, until requests are answered."""
    started = time.perf_counter()
    with StubServer(workload.BIGRAM, **SETTINGS):
        return ms_since(started)


async def timed(asks: dict[str, Ask], bodies: list[bytes], rounds: int, calls: int) -> Values:
    """Median µs of a call, the ones in turn with the others; a first round isn't counted."""
    measured: Values = {name: [] for name in asks}
    turns = {name: cycle(bodies) for name in asks}
    for _ in range(rounds + 1):
        for name, ask in asks.items():
            measured[name].append(await median_us(ask, islice(turns[name], calls)))
    return {name: values[1:] for name, values in measured.items()}


async def median_us(ask: Ask, bodies: Iterable[bytes]) -> float:
    taken = []
    for body in bodies:
        started = time.perf_counter_ns()
        await ask(body)
        taken.append(time.perf_counter_ns() - started)
    return median(taken) / 1000


def ask_directly(app: ASGIApp) -> Ask:
    """Call the app as a server does."""

    async def ask(body: bytes) -> bytes:
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        await app(_scope(len(body)), receive, send)
        assert sent[0]["status"] == 200, sent
        return b"".join(message.get("body", b"") for message in sent[1:])

    return ask


def _scope(length: int) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/completions",
        "raw_path": b"/v1/completions",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(length).encode())],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 8000),
    }


def ask_by_httpx(app: ASGIApp) -> Ask:
    """Through the transport that tests use."""
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://bench")

    async def ask(body: bytes) -> bytes:
        reply = await client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
        return reply.raise_for_status().content

    return ask


if __name__ == "__main__":
    pin_server()
    measure = {"label_read": label_read, "rules": rules}[sys.argv[1]]
    print(json.dumps(asyncio.run(measure(int(sys.argv[2]), int(sys.argv[3])))))
