"""A real server on a socket, its clients, and a script whose numbers can be worked out by hand."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
import pytest
import uvicorn

from stubserver.app import create_app
from stubserver.server import bind, make_config
from stubserver.serving.state import ServerState

openai = pytest.importorskip("openai", reason="pip install 'llm-stubserver[clients]'")

# In the middle of a stream, older versions of the SDK raise what httpx does.
DROPPED = (openai.APIConnectionError, httpx.RemoteProtocolError)
SILENT = (openai.APITimeoutError, httpx.ReadTimeout)

ROWS = [
    {" A": 2.0, " B": 1.0, " é": 0.5},
    {" é": 1.0, " B": 0.0},
    {" B": 3.0, " A": 2.0},
]
"""The logits of three steps; every other token is impossible. Greedy: " A é B"."""

TOKENS = [" A", " é", " B"]

SCRIPT: dict[str, Any] = {
    "vocab": [" é"],
    "rules": [
        {"when": {"prompt": {"contains": "Answer:"}}, "steps": [{"logits": row, "rest": "-inf"} for row in ROWS]}
    ],
    "default": "random",
}

REQUEST: dict[str, Any] = {"model": "stub", "prompt": "Answer:", "max_tokens": 3, "temperature": 0, "logprobs": 4}


def logprobs_of(row: dict[str, float]) -> dict[str, float]:
    """log_softmax of a row."""
    total = math.log(sum(map(math.exp, row.values())))
    return {token: logit - total for token, logit in row.items()}


class Running(NamedTuple):
    """A server that runs, and clients for it."""

    url: str
    state: ServerState

    def complete(self, *faults: dict[str, Any], retries: int = 0, timeout: float = 10, **fields: Any) -> Any:
        """The openai SDK's reply to a completion request that brings these faults; a list of its events if streamed."""
        with self.client(*faults, retries=retries, timeout=timeout) as client:
            reply = client.completions.create(**{**REQUEST, **fields})
            return list(reply) if fields.get("stream") else reply

    def chat(self, *faults: dict[str, Any], **fields: Any) -> Any:
        """The same for chat."""
        request = {
            "model": "stub",
            "messages": [{"role": "user", "content": "Answer:"}],
            "max_tokens": 3,
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": 4,
        }
        with self.client(*faults) as client:
            reply = client.chat.completions.create(**{**request, **fields})
            return list(reply) if fields.get("stream") else reply

    def client(self, *faults: dict[str, Any], retries: int = 0, timeout: float = 10) -> Any:
        headers = {"X-Stub-Faults": json.dumps(faults)} if faults else {}
        return openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key="none",
            max_retries=retries,
            timeout=timeout,
            default_headers=headers,
        )

    def post(self, *faults: dict[str, Any], **fields: Any) -> httpx.Response:
        """httpx's reply to the same request."""
        headers = {"X-Stub-Faults": json.dumps(faults)} if faults else {}
        return httpx.post(f"{self.url}/v1/completions", json={**REQUEST, **fields}, headers=headers)


@contextmanager
def serving(script: Any = SCRIPT, **settings: Any) -> Iterator[Running]:
    app = create_app(script, **settings)
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(make_config(app, sets_up_logging=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.001)
    try:
        yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", app.state.server)
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
