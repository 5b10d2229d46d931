"""Puts recorded exchanges to our server, and says where the replies differ.

    python tests/conformance/replay.py fixtures/vllm-0.32.0-edges [GROUP]

prints the match rate of each group whose name begins so, and what differs in its first exchange that doesn't match.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from compare import Comparison
from exceptions import EXCEPTIONS
from recordings import SCRIPT, Exchange, load_exchanges
from starlette.testclient import TestClient

from stubserver.app import create_app

FIRST_CONSTRAINT = {"prompt": "a", "max_tokens": 1, "structured_outputs": {"choice": ["A"]}}
"""Chooses the backend xgrammar, for good."""


@cache
def client(settings: str, *, remembers: bool) -> TestClient:
    """A server as the recorded ones: one whose engine has had a constraint, and so has chosen its backend for them.

    remembers: only so that a server which remembers nothing is none that has learnt something before.
    """
    given = json.loads(settings)
    made = TestClient(create_app(SCRIPT, **given), raise_server_exceptions=False, follow_redirects=False)
    key = {"authorization": f"Bearer {given.get('api_key')}"}
    assert made.post("/v1/completions", json=FIRST_CONSTRAINT, headers=key).status_code == 200
    return made


def replay(exchange: Exchange, *, remembers: bool = True) -> list[str]:
    """What differs between the recorded reply and ours."""
    server = client(json.dumps(exchange.settings), remembers=remembers)
    reply = server.request(
        exchange.request["method"], exchange.path, content=exchange.content, headers=exchange.headers
    )
    recorded = exchange.response
    if reply.status_code != recorded["status"]:
        return [f"status: recorded {recorded['status']}, ours {reply.status_code}", _said(recorded), reply.text]
    media_type = reply.headers.get("content-type", "")
    if media_type != recorded["content_type"]:
        return [f"content type: recorded {recorded['content_type']!r}, ours {media_type!r}"]
    different = list(headers(recorded, reply.headers))
    if different or recorded.get("empty") is not None:
        return different or [
            f"empty: recorded {recorded['empty']}" for _ in [0] if recorded["empty"] == bool(reply.text)
        ]
    compare = Comparison(**EXCEPTIONS.get(exchange.id, {}))
    if "events" in recorded:
        events = [event.removeprefix("data: ") for event in reply.text.split("\n\n") if event]
        ours = [event if event == "[DONE]" else json.loads(event) for event in events]
        return list(compare.streams(recorded["events"], ours))
    if "body" in recorded:
        return list(compare.values(recorded["body"], reply.json()))
    return list(compare.values(recorded["text"], reply.text))


def headers(recorded: dict[str, Any], ours: Mapping[str, str]) -> Iterator[str]:
    """Which of the recorded headers differ, and which of ours were not recorded. "<random>" stands for any value."""
    if recorded["status"] == 500:
        return  # what vLLM's own code fails with is answered outside of its middlewares, ours inside
    known = {name: value for name, value in recorded.get("headers", {}).items() if name != "content-type"}
    for name, value in known.items():
        found = ours.get(name)
        if found and (value == "<random>" or name == "x-request-id"):
            continue
        if found is None or sorted(found.split(", ")) != sorted(value.split(", ")):
            yield f"header {name}: recorded {value!r}, ours {found!r}"
    if "headers" in recorded:
        extra = [name for name in ours if name.startswith("access-control-") or name in ("allow", "location")]
        yield from (f"header {name}: only ours has it ({ours[name]!r})" for name in extra if name not in known)


def _said(recorded: dict[str, Any]) -> str:
    return json.dumps(recorded.get("body", recorded.get("events", recorded.get("text"))))


def main(folder: str, group: str = "") -> int:
    """Replay a folder of recordings; how many exchanges differ."""
    groups: dict[str, list[tuple[Exchange, list[str]]]] = defaultdict(list)
    for exchange in load_exchanges([Path(folder)]):
        if exchange.group.startswith(group):
            try:
                found = replay(exchange)
            except Exception as error:
                found = [f"{type(error).__name__}: {error}"]
            groups[exchange.group].append((exchange, found))
    for name, outcomes in sorted(groups.items()):
        different = [(exchange, found) for exchange, found in outcomes if found]
        print(f"{len(outcomes) - len(different):4} of {len(outcomes):4}  {name}")
        for exchange, found in different[: None if group else 1]:
            print(f"       {exchange.id}: {exchange.request['method']} {exchange.path}")
            print(f"       {json.dumps(exchange.request.get('body', exchange.request.get('raw')))[:600]}")
            print("\n".join(f"         {line[:600]}" for line in found[:4]))
    total = [found for outcomes in groups.values() for _, found in outcomes]
    wrong = sum(map(bool, total))
    print(f"{len(total) - wrong} of {len(total)} match")
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(*sys.argv[1:]), 1))
