"""The cases: each measures a claim, ours and the reference in turn in the same run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

import workload
from figures import Figure, Goal
from load import Load, run_load
from servers import Server, answer, bare_command, ms_since, replay_command, resident_mb, running, stub_command

from stubserver.playback.cassette import make_header, write_cassette
from stubserver.playback.exchange import Exchange, Reply, Request

T = TypeVar("T")

STARTS = 5
"""How many a round."""

IN_PROCESS = Path(__file__).with_name("in_process.py")


class Run(NamedTuple):
    """How to measure. peers: name → command of other projects' servers. folder: for what is served and asked."""

    folder: Path
    tool: str
    rounds: int
    seconds: int
    requests: int
    calls: int
    peers: Mapping[str, str]

    def load(self, server: Server, bodies: Path, connections: int, start: int = 0) -> Load:
        return run_load(self.tool, server.port, bodies, connections, self.seconds, start)


def label_read(run: Run) -> Iterator[Figure]:
    """Requests per second and latency of a label read."""
    bodies = label_bodies(run, workload.texts())
    as_ids = workload.write_bodies(run.folder / "ids", map(workload.label_read, workload.token_ids()))
    fresh = workload.write_bodies(
        run.folder / "fresh", map(workload.label_read, workload.texts(workload.FRESH_PROMPTS))
    )
    starts = count(0, workload.FRESH_PROMPTS // (run.rounds + 1))
    with ExitStack() as stack:
        ours, bare = start_pair(run, stack)
        peers = start_peers(run, stack)

        def rate(server: Server, asked: Path, start: int = 0) -> float:
            return per_second(run.load(server, asked, 16, start))

        def latency(server: Server) -> float:
            return run.load(server, bodies, 1).median_us

        rates = interleaved(
            run.rounds,
            {
                "texts": partial(rate, ours, bodies),
                "bare, texts": partial(rate, bare, bodies),
                "ids": partial(rate, ours, as_ids),
                "bare, ids": partial(rate, bare, as_ids),
                "fresh": lambda: rate(ours, fresh, next(starts)),
                **{name: partial(rate, peer, bodies) for name, peer in peers.items()},
            },
        )
        shown = {
            "texts": ("16 connections", "bare, texts", Goal("≥", 0.5)),
            "ids": ("16 connections, prompts as token ids", "bare, ids", Goal("≥", 0.5)),
            "fresh": ("16 connections, no text twice", "bare, texts", None),
            **{name: (name, "bare, texts", None) for name in peers},
        }
        for name, (label, reference, goal) in shown.items():
            yield Figure("label_read", label, "requests/s", rates[name], "bare", rates[reference], goal)
        times = interleaved(run.rounds, {"ours": partial(latency, ours), "bare": partial(latency, bare)})
        yield Figure(
            "label_read", "median latency, 1 connection", "µs", times["ours"], "bare", times["bare"], Goal("≤", 2.5)
        )


def vocabulary(run: Run) -> Iterator[Figure]:
    """The same read with rows of 151,936 logits against rows of 512."""
    bodies = workload.write_bodies(run.folder / "ids", map(workload.label_read, workload.token_ids()))
    small = workload.vocabulary_scripts(run.folder, workload.SMALL_VOCABULARY)
    large = workload.vocabulary_scripts(run.folder, workload.LARGE_VOCABULARY)
    scripts = [*small.values(), *large.values()]
    with ExitStack() as stack:
        servers = {str(script): stack.enter_context(running(stub_command(script))) for script in scripts}

        def rate(server: Server) -> float:
            return per_second(run.load(server, bodies, 16))

        rates = interleaved(run.rounds, {name: partial(rate, server) for name, server in servers.items()})
    for kind in large:
        values, others = rates[str(large[kind])], rates[str(small[kind])]
        name = f"{workload.LARGE_VOCABULARY:,} tokens, {kind}"
        yield Figure("vocabulary", name, "requests/s", values, "512 tokens", others, Goal("≥", 0.8))


def streaming(run: Run) -> Iterator[Figure]:
    """Events per second of 256-token streams to 32 clients."""
    asked = [workload.stream(prompt) for prompt in workload.texts(64)]
    bodies = workload.write_bodies(run.folder / "streams", asked)
    sliced = (workload.stream(prompt, in_slices=True) for prompt in workload.texts(64))
    sliced_bodies = workload.write_bodies(run.folder / "streams in slices", sliced)
    with ExitStack() as stack:
        ours, bare = start_pair(run, stack)
        shares = {server: events_per_byte(server, asked) for server in (ours, bare)}

        def rate(server: Server, bodies: Path) -> float:
            load = run.load(server, bodies, 32)
            return load.bytes * shares[server] / load.seconds

        rates = interleaved(
            run.rounds,
            {
                "ours": partial(rate, ours, bodies),
                "bare": partial(rate, bare, bodies),
                "sliced": partial(rate, bare, sliced_bodies),
            },
        )
    yield Figure("streaming", "32 clients", "events/s", rates["ours"], "bare", rates["bare"], Goal("≥", 0.5))
    yield Figure("streaming", "32 clients", "events/s", rates["ours"], "bare, in slices of 1 ms", rates["sliced"], None)


def events_per_byte(server: Server, asked: list[bytes]) -> float:
    """Of whole streams; so that bytes, which can be counted at any moment, tell how many events have come."""
    streams = [answer(server, body) for body in asked]
    return sum(len(events_of(each)) for each in streams) / sum(map(len, streams))


def events_of(received: bytes) -> list[str]:
    return [event.decode() for event in re.findall(rb"data: .*?\n\n", received, re.DOTALL)]


def playback(run: Run) -> Iterator[Figure]:
    """Label reads played back from a cassette against the same ones scripted."""
    asked = [workload.label_read(prompt) for prompt in workload.texts()]
    bodies = workload.write_bodies(run.folder / "played", asked)
    cassette = run.folder / "reads.jsonl"
    with ExitStack() as stack:
        scripted, _ = start_pair(run, stack)
        reply = Reply(200, (("content-type", "application/json"),), body_of(answer(scripted, asked[0])))
        write_cassette(
            cassette,
            make_header({}),
            (Exchange(Request("POST", "/v1/completions", body=body), reply) for body in asked),
        )
        played = stack.enter_context(running(replay_command(cassette)))

        def rate(server: Server) -> float:
            return per_second(run.load(server, bodies, 16))

        rates = interleaved(run.rounds, {"played": partial(rate, played), "scripted": partial(rate, scripted)})
    yield Figure(
        "playback", "16 connections", "requests/s", rates["played"], "scripted", rates["scripted"], Goal("≥", 1)
    )


def startup(run: Run) -> Iterator[Figure]:
    """From the start of the process to the first 200, and to the first label read."""
    commands = {"bigram512": stub_command(workload.BIGRAM), "bare": bare_command(bare_content(run, reply="{}"))}
    tokenizer = workload.large_tokenizer()
    if tokenizer:
        script = {"tokenizer": str(tokenizer), "default": "random"}
        commands["large"] = stub_command(workload.write_script(run.folder / "large.json", script))
    times = interleaved(run.rounds, {name: partial(start_ms, words) for name, words in commands.items()})
    bare, bare_reads = split(times["bare"])
    ours, our_reads = split(times["bigram512"])
    yield Figure("startup", "bigram512, to the first 200", "ms", ours, "bare", bare, Goal("≤", 2.5))
    yield Figure("startup", "bigram512, to the first label read", "ms", our_reads, "bare", bare_reads)
    if tokenizer:
        large, large_reads = split(times["large"])
        name = "tokenizer of 129,000 tokens, to the first"
        yield Figure("startup", f"{name} 200", "ms", large, "bare", bare, Goal("≤", 1000, of_value=True))
        yield Figure("startup", f"{name} label read", "ms", large_reads, "bare", bare_reads)


def start_ms(command: list[str]) -> tuple[float, float]:
    """Medians of some starts: single ones differ by half."""
    starts = [one_start_ms(command) for _ in range(STARTS)]
    return median(first for first, _ in starts), median(second for _, second in starts)


def one_start_ms(command: list[str]) -> tuple[float, float]:
    with running(command) as server:
        answer(server, workload.label_read(workload.texts(1)[0]))
        return server.ready_ms, ms_since(server.started)


def split(pairs: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [first for first, _ in pairs], [second for _, second in pairs]


def in_process(run: Run) -> Iterator[Figure]:
    """A label read without a socket, a new app, a new server in a thread: in a process that has all modules loaded."""
    measured = run_in_process(run, "label_read")
    for name, shown in ("direct", "label read, ASGI call"), ("httpx", "label read, httpx transport"):
        values, bare = measured[name], measured[f"{name}, bare"]
        yield Figure("in_process", shown, "µs", values, "bare", bare, Goal("≤", 1000, of_value=True))
    for name, shown in ("new app", "new app, bigram512"), ("new server", "new server in a thread, bigram512"):
        yield Figure("in_process", shown, "ms", measured[name], goal=Goal("≤", 100, of_value=True))


def rules(run: Run) -> Iterator[Figure]:
    """A label read among 10,000 rules against one among 10."""
    measured = run_in_process(run, "rules")
    yield Figure("rules", "10,000 exact prompts", "µs", measured["many"], "10 rules", measured["few"], Goal("≤", 1.1))


def run_in_process(run: Run, what: str) -> dict[str, list[float]]:
    command = [sys.executable, str(IN_PROCESS), what, str(run.rounds), str(run.calls)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    measured: dict[str, list[float]] = json.loads(done.stdout)
    return measured


def memory(run: Run) -> Iterator[Figure]:
    """Resident memory while serving, and how it grows over many requests."""
    with ExitStack() as stack:
        ours, bare = start_pair(run, stack)
        bodies = label_bodies(run, workload.texts())
        held = [serve_some(run, server, bodies) for server in (ours, bare)]
        yield Figure("memory", "bigram512", "MB", held[:1], "bare", held[1:], Goal("≤", 120, of_value=True))
        yield growth(run, ours)
    tokenizer = workload.large_tokenizer()
    if tokenizer:
        prompts = workload.texts(1000)
        script = {"tokenizer": str(tokenizer), "rules": workload.exact_rules(prompts)}
        with running(stub_command(workload.write_script(run.folder / "thousand.json", script))) as server:
            held = [serve_some(run, server, label_bodies(run, prompts))]
        name = "tokenizer of 129,000 tokens, 1,000 rules"
        yield Figure("memory", name, "MB", held, goal=Goal("≤", 400, of_value=True))


def serve_some(run: Run, server: Server, bodies: Path) -> float:
    """MB held after a while of label reads."""
    run.load(server, bodies, 16)
    return resident_mb(server.pid)


def growth(run: Run, server: Server) -> Figure:
    """After a tenth of the requests, which may fill what is bounded. Most prompts differ: nothing may keep them all."""
    bodies = label_bodies(run, workload.texts(20_000))
    serve_many(run, server, bodies, run.requests // 10)
    before = resident_mb(server.pid)
    serve_many(run, server, bodies, run.requests)
    grown = resident_mb(server.pid) - before
    return Figure("memory", f"growth over {run.requests:,} requests", "MB", [grown], goal=Goal("≤", 2, of_value=True))


def serve_many(run: Run, server: Server, bodies: Path, requests: int) -> None:
    served = 0
    while served < requests:
        served += run.load(server, bodies, 16).requests


def start_pair(run: Run, stack: ExitStack) -> tuple[Server, Server]:
    """Ours, serving bigram512, and the bare app, sending what ours sent."""
    ours = stack.enter_context(running(stub_command(workload.BIGRAM)))
    prompt = workload.texts(1)[0]
    reply = body_of(answer(ours, workload.label_read(prompt))).decode()
    asked_tokens = json.loads(reply)["usage"]["prompt_tokens"]
    assert asked_tokens == workload.PROMPT_TOKENS, asked_tokens
    content = bare_content(run, reply, events_of(answer(ours, workload.stream(prompt))))
    return ours, stack.enter_context(running(bare_command(content)))


def body_of(received: bytes) -> bytes:
    return received.partition(b"\r\n\r\n")[2]


def bare_content(run: Run, reply: str, events: list[str] | None = None) -> Path:
    path = run.folder / "content.json"
    path.write_text(json.dumps({"reply": reply, "events": events or []}))
    return path


def start_peers(run: Run, stack: ExitStack) -> dict[str, Server]:
    """Those that start and answer a label read at all."""
    body = workload.label_read(workload.texts(1)[0])
    started = {}
    for name, words in run.peers.items():
        try:
            server = stack.enter_context(running(shlex.split(words), quiet=True))
            answer(server, body)
            started[name] = server
        except (OSError, RuntimeError) as error:
            print(f"{name} is left out: {str(error)[:500]}", file=sys.stderr)
    return started


def label_bodies(run: Run, prompts: list[str]) -> Path:
    return workload.write_bodies(run.folder / f"texts-{len(prompts)}", map(workload.label_read, prompts))


def interleaved(rounds: int, measures: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Each once a round, every second round backwards, so that drift favours none; a first round isn't counted."""
    measured: dict[str, list[T]] = {name: [] for name in measures}
    for number in range(rounds + 1):
        for name in list(measures)[:: -1 if number % 2 else 1]:
            measured[name].append(measures[name]())
    return {name: values[1:] for name, values in measured.items()}


def per_second(load: Load) -> float:
    return load.requests / load.seconds


CASES: dict[str, Callable[[Run], Iterator[Figure]]] = {
    case.__name__: case for case in (label_read, vocabulary, streaming, playback, startup, in_process, memory, rules)
}
