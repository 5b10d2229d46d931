"""Assertions about what a stub was asked and what it answered; a failing one shows what came instead."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

from stubserver.errors import TokenizerError
from stubserver.journal.entry import Entry
from stubserver.script.conditions import json_equal
from stubserver.serving.wire import Position, Wire

_LONGEST_LINE = 160
_MOST_LINES = 10
_LONGEST_WAIT = 1.0  # seconds


def assert_requested(
    entries: Sequence[Entry], *, times: int | None, path: str | None, body: Mapping[str, Any] | None, forgotten: int
) -> list[Entry]:
    """The entries of this path whose body has these fields; as many as `times`, or at least one."""
    __tracebackhide__ = True
    found = [entry for entry in entries if path in (None, entry.path) and (body is None or _has(entry.body, body))]
    if len(found) == times or (times is None and found):
        return found
    wanted = f"{'at least 1' if times is None else times} with {_criteria(path, body)}"
    lost = f" ({forgotten} earlier ones are no longer in the journal)" if forgotten else ""
    raise AssertionError(
        f"expected requests: {wanted}; got {len(found)}, of {len(entries)} in all{lost}{_list(entries)}"
    )


def assert_logprobs_mode(entry: Entry, mode: str) -> None:
    """That the request asked for logprobs, and from a model that reports them in this mode."""
    __tracebackhide__ = True
    if not entry.generations:
        raise AssertionError(f"expected a request that generates something; the last one was {_line(entry)}")
    generation = entry.generations[0]
    if not generation.wants_logprobs:
        raise AssertionError(f"expected {mode}, but the request asked for no logprobs: {_line(entry)}")
    if generation.logprobs_mode != mode:
        raise AssertionError(
            f"expected {mode}, but {generation.model!r} reports {generation.logprobs_mode} "
            f"(its setting logprobs_mode): {_line(entry)}"
        )


def assert_labels_returned(entry: Entry, labels: Sequence[str | int], position: int, wire: Wire) -> None:
    """That each choice of the reply gives a value for each of these tokens (texts or ids) at this position.

    wire: how the reply is written.
    """
    __tracebackhide__ = True
    _wait_for_end(entry)
    choices = logprobs_of(entry, wire)
    if not choices:
        raise AssertionError(f"the reply has no choices: {_line(entry)}")
    for index, positions in sorted(choices.items()):
        if position >= len(positions):
            raise AssertionError(
                f"choice {index} has no logprobs at position {position}, only {len(positions)} of them: {_line(entry)}"
            )
        returned = positions[position]
        missing = [label for label in labels if not _names(label, entry, wire) & returned.keys()]
        if missing:
            raise AssertionError(
                f"choice {index}, position {position}: no value for {_quoted(missing)}; the reply has "
                f"{_values(returned)}{_hint(entry)}"
            )


def _wait_for_end(entry: Entry) -> None:
    """A client that doesn't read the whole reply may be faster than the server."""
    deadline = monotonic() + _LONGEST_WAIT
    while entry.seconds is None and entry.failure is None and monotonic() < deadline:
        sleep(0.001)


def _has(value: Any, wanted: Any) -> bool:
    """Whether an object has at least the wanted fields; anything else has to be equal."""
    if isinstance(wanted, Mapping) and isinstance(value, Mapping):
        return all(key in value and _has(value[key], part) for key, part in wanted.items())
    return json_equal(value, wanted)


def logprobs_of(entry: Entry, wire: Wire) -> dict[int, list[dict[str, float | None]]]:
    """Index → {token: logprob} a position, of each choice, full or streamed."""
    found: dict[int, list[dict[str, float | None]]] = {}
    documents = [entry.reply, *(event.data for event in entry.events)]
    for choice in (
        each for document in documents if isinstance(document, dict) for each in wire.read_choices(document)
    ):
        found.setdefault(choice.index, []).extend(map(_by_token, choice.positions or ()))
    return found


def _by_token(position: Position) -> dict[str, float | None]:
    return {position.token: position.logprob, **{each.token: each.logprob for each in position.top or ()}}


def _names(label: str | int, entry: Entry, wire: Wire) -> set[str]:
    """How a reply may show a token."""
    tokenizer = entry.generations[0].tokenizer if entry.generations else None
    if isinstance(label, int):
        return wire.token_names(label, tokenizer.token_text(label) if tokenizer else None)
    with suppress(TokenizerError):
        return {label} | (wire.token_names(tokenizer.one_token(label), label) if tokenizer else set())
    return {label}


def _hint(entry: Entry) -> str:
    if not entry.generations:
        return ""
    record = entry.generations[0]
    return f". It was asked for {json.dumps(record.logprobs_asked)} logprobs, in mode {record.logprobs_mode}"


def _criteria(path: str | None, body: Mapping[str, Any] | None) -> str:
    parts = [] if path is None else [f"path {path}"]
    parts += [] if body is None else [f"body {json.dumps(body, ensure_ascii=False, default=str)}"]
    return " and ".join(parts) or "anything"


def _list(entries: Sequence[Entry]) -> str:
    shown = entries[-_MOST_LINES:]
    skipped = [f"  … {len(entries) - len(shown)} earlier ones"] if len(shown) < len(entries) else []
    return "".join(f"\n{line}" for line in [*skipped, *(f"  {_line(entry)}" for entry in shown)])


def _line(entry: Entry) -> str:
    line = f"{entry!r} {json.dumps(entry.body, ensure_ascii=False, default=str)}"
    return line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + "…"


def _quoted(labels: Sequence[str | int]) -> str:
    return ", ".join(json.dumps(label, ensure_ascii=False) for label in labels)


def _values(returned: Mapping[str, Any]) -> str:
    parts = [f"{json.dumps(token, ensure_ascii=False)} ({_number(value)})" for token, value in returned.items()]
    return ", ".join(parts[:_MOST_LINES]) + (" …" if len(parts) > _MOST_LINES else "") or "none at all"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value)
