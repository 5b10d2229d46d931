"""The real vLLM and ours, side by side: how often they answer the same, and the smallest example of each difference.

    make parity ORACLE=DIR [COUNT=2000] [SEED=1]

DIR is an installation of vLLM 0.32.0 (a virtual environment with bin/vllm; the CPU build from PyPI will do). Replies of
the real server are kept under .parity/, so that a run that was stopped goes on, and `--compare` needs no server: after a
change here it says what has become of the same exchanges.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "conformance")]

from bodies import KINDS, ROUTES, Request, make_request  # noqa: E402
from oracle import ask, make_model, served  # noqa: E402
from recordings import Exchange  # noqa: E402
from replay import FIRST_CONSTRAINT, replay  # noqa: E402

SETUPS: dict[str, dict[str, Any]] = {
    "raw_logprobs": {"logprobs_mode": "raw_logprobs", "enable_scale_out": True},
    "processed_logprobs": {"logprobs_mode": "processed_logprobs", "enable_scale_out": True},
    "tools": {
        "logprobs_mode": "raw_logprobs",
        "enable_scale_out": True,
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
        "trust_request_chat_template": True,
        "enable_prompt_tokens_details": True,
        "max_logprobs": -1,
        "enable_force_include_usage": True,
    },
    "defaults": {
        "logprobs_mode": "processed_logits",
        "enable_scale_out": True,
        "return_tokens_as_token_ids": True,
        "override_generation_config": {"top_p": 0.9, "repetition_penalty": 1.1, "max_new_tokens": 12},
    },
}
"""How both servers are set up, by names; the settings of ours, which have vLLM's names."""

SHOWN_CHARACTERS = 300


class Outcome(NamedTuple):
    """An exchange of the series, and what differs in it."""

    setup: str
    request: Request
    differences: Sequence[str]

    @property
    def route(self) -> str:
        """The route, where it is one that bodies are made for."""
        path = str(self.request.request["path"])
        return path if self.request.kind != "http" and path in ROUTES else "HTTP itself"

    @property
    def kind_of_difference(self) -> str:
        """Where the first difference is, without numbers, and what kind of value is there."""
        # Of a status, the bodies follow; other differences come in any order.
        first = self.differences[0] if self.differences[0].startswith("status") else min(self.differences)
        place = re.sub(r"[0-9]+", "#", first.split(": ", 1)[0])
        return f"{self.route}: {first if place == 'status' else place}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and write the table; the status is 0 whatever it says."""
    parser = argparse.ArgumentParser(description="Compare the real vLLM with stubserver.")
    parser.add_argument("--oracle", type=Path, help="an installation of vLLM 0.32.0; none with --compare")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=2000, help="exchanges in all, spread over the set-ups")
    parser.add_argument("--port", type=int, default=8139, help="where the real server listens, on this machine only")
    parser.add_argument("--work", type=Path, default=ROOT / ".parity", help="what is kept between runs")
    parser.add_argument("--table", type=Path, default=Path(__file__).with_name("table.md"), help="the file to write")
    parser.add_argument("--compare", action="store_true", help="with the replies that are there already")
    parser.add_argument("--setups", nargs="+", choices=SETUPS, default=list(SETUPS))
    given = parser.parse_args(arguments)
    if not given.compare:
        if given.oracle is None or not (given.oracle / "bin" / "vllm").is_file():
            parser.error("--oracle has to be an installation with bin/vllm in it")
        collect(given)
    outcomes = list(compare(given))
    text = make_table(outcomes, given.seed)
    given.table.write_text(text, encoding="utf-8")
    print(text)
    print(make_examples(outcomes))
    return 0


def collect(given: argparse.Namespace) -> None:
    """Ask the real server what hasn't been asked yet, set-up by set-up."""
    model = given.work / "bigram512"
    if not (model / "model.safetensors").is_file():
        make_model(model)
    for setup, numbers in _shares(given):
        path = _kept(given, setup)
        known = _read(path, given.seed)
        missing = [number for number in numbers if number not in known]
        while missing:
            log = given.work / f"{setup}.log"
            print(f"{setup}: {len(missing)} to ask", file=sys.stderr, flush=True)
            with served(given.oracle, model, given.port, flags(SETUPS[setup]), log), path.open("a") as kept:
                # With the first constraint an engine chooses its backend: let it be the same in both.
                ask(given.port, {"method": "POST", "path": "/v1/completions", "body": FIRST_CONSTRAINT})
                missing = _ask_all(given, missing, kept)


def _ask_all(given: argparse.Namespace, numbers: Sequence[int], kept: Any) -> Sequence[int]:
    """Ask one after the other; those that are left if the server dies. What it died of isn't asked again."""
    for done, number in enumerate(numbers, 1):
        request = make_request(given.seed, number).request
        line: dict[str, Any] = {"number": number, "asked": digest(request)}
        try:
            line["response"] = ask(given.port, request)
        except OSError as error:
            kept.write(json.dumps({**line, "died": str(error)}) + "\n")
            return numbers[done:]
        kept.write(json.dumps(line) + "\n")
        kept.flush()
    return ()


def flags(settings: dict[str, Any]) -> list[str]:
    """The settings as flags of `vllm serve`."""
    words: list[str] = []
    for name, value in settings.items():
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(json.dumps(value) if isinstance(value, dict) else str(value))
    return words


def _shares(given: argparse.Namespace) -> Iterator[tuple[str, range]]:
    """(set-up, numbers of its exchanges): each number belongs to one."""
    for place, setup in enumerate(SETUPS):
        if setup in given.setups:
            yield setup, range(place, given.count, len(SETUPS))


def _kept(given: argparse.Namespace, setup: str) -> Path:
    given.work.mkdir(parents=True, exist_ok=True)
    return given.work / f"seed{given.seed}-{setup}.jsonl"  # type: ignore[no-any-return]


def _read(path: Path, seed: int) -> dict[int, dict[str, Any]]:
    """Number → what is kept of it, if it is still the same request."""
    if not path.is_file():
        return {}
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {
        line["number"]: line for line in lines if line["asked"] == digest(make_request(seed, line["number"]).request)
    }


def digest(request: dict[str, Any]) -> str:
    """Tells one request from another."""
    return blake2b(json.dumps(request).encode(), digest_size=8).hexdigest()


def compare(given: argparse.Namespace) -> Iterator[Outcome]:
    """Put the same requests to ours."""
    for setup, numbers in _shares(given):
        own = {
            **SETUPS[setup],
            "served_model_name": ["bigram"],
            "model_runner": "v1",
            "embeddings_endpoint": False,
            "control": "off",
        }
        kept = _read(_kept(given, setup), given.seed)
        for number in numbers:
            if "response" in kept.get(number, ()):
                request = make_request(given.seed, number)
                exchange = Exchange(setup, own, request.kind, str(number), request.request, kept[number]["response"])
                yield Outcome(setup, request, _differences(exchange))


def _differences(exchange: Exchange) -> list[str]:
    try:
        return replay(exchange)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def make_table(outcomes: Sequence[Outcome], seed: int) -> str:
    """Match rates a route, and a kind of request, as Markdown."""
    by_route: dict[str, list[Outcome]] = defaultdict(list)
    by_kind: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_route[outcome.route].append(outcome)
        by_kind[outcome.request.kind].append(outcome)
    rows = [(f"`{route}`", by_route[route]) for route in ROUTES if route in by_route]
    rows += [("HTTP itself", by_route["HTTP itself"])] if "HTTP itself" in by_route else []
    kinds = [(kind, by_kind[kind]) for kind in KINDS if kind in by_kind]
    said = f"{len(outcomes):,} exchanges of seed {seed}, in {len({each.setup for each in outcomes})} set-ups."
    parts = [said, _rates("route", rows), _rates("kind of request", kinds), _rates("", [("all", outcomes)])]
    return "\n\n".join(parts) + "\n"


def _rates(head: str, rows: Iterable[tuple[str, Sequence[Outcome]]]) -> str:
    lines = [f"| {head} | exchanges | the same | % |", "| --- | ---: | ---: | ---: |"]
    for name, outcomes in rows:
        same = sum(not each.differences for each in outcomes)
        lines.append(f"| {name} | {len(outcomes):,} | {same:,} | {_percent(same, len(outcomes))} |")
    return "\n".join(lines)


def _percent(part: int, whole: int) -> str:
    """Cut off, not rounded: 100 is said of all alone."""
    return f"{10000 * part // whole / 100:.2f}"


def make_examples(outcomes: Iterable[Outcome]) -> str:
    """The smallest example of each kind of difference, the most frequent kind first."""
    smallest: dict[str, Outcome] = {}
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        if outcome.differences:
            kind = outcome.kind_of_difference
            counts[kind] += 1
            if kind not in smallest or _size(outcome) < _size(smallest[kind]):
                smallest[kind] = outcome
    return "\n".join(line for kind, count in counts.most_common() for line in _example(kind, count, smallest[kind]))


def _size(outcome: Outcome) -> int:
    return len(json.dumps(outcome.request.request))


def _example(kind: str, count: int, outcome: Outcome) -> Iterator[str]:
    yield f"{count:5} × {kind[:120]}"
    yield f"        {outcome.setup} {outcome.request.number}: {json.dumps(outcome.request.request)[:SHOWN_CHARACTERS]}"
    yield from (f"        {line[:SHOWN_CHARACTERS]}" for line in outcome.differences[:3])


if __name__ == "__main__":
    sys.exit(main())
