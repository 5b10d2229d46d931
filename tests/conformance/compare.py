"""How a reply is held against a recording: the rules of fixtures/vllm-0.32.0/README.md, as code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MASKED = -9999.0

SHARED_TEXTS = ("", "\ufffd")
"""Texts of bigram512 that many tokens have: parts of characters."""

FREE_KEYS = {"id", "request_id", "created", "system_fingerprint", "root", "input_tokens", "name_or_path"}
"""Of these only the kind of value counts (and an id's prefix)."""


@dataclass(frozen=True)
class Comparison:
    """Finds every place in which two replies differ more than the rules allow. `tolerance`: of floats, absolute."""

    tolerance: float = 2e-5

    def values(self, recorded: Any, ours: Any, path: str = "") -> Iterator[str]:
        """Differences of two JSON values."""
        key = path.rsplit(".", 1)[-1]
        if key in FREE_KEYS and isinstance(recorded, str | int):
            if type(recorded) is not type(ours) or _prefix(recorded) != _prefix(ours):
                yield f"{path}: recorded {recorded!r}, ours {ours!r}"
        elif isinstance(recorded, dict) and isinstance(ours, dict):
            if key.startswith("top_logprobs["):
                yield from self._top(recorded, ours, path)
            elif key.startswith("prompt_logprobs["):
                yield from self._prompt(recorded, ours, path)
            else:
                yield from self._objects(recorded, ours, path)
        elif isinstance(recorded, list) and isinstance(ours, list) and key == "top_logprobs" and _are_entries(recorded):
            yield from self._top_entries(recorded, ours, path)
        elif isinstance(recorded, list) and isinstance(ours, list):
            if len(recorded) != len(ours):
                yield f"{path}: recorded {len(recorded)} items, ours {len(ours)}: {recorded!r} / {ours!r}"
            for number, (left, right) in enumerate(zip(recorded, ours, strict=False)):
                yield from self.values(left, right, f"{path}[{number}]")
        elif _is_number(recorded) and _is_number(ours):
            if abs(recorded - ours) > (self.tolerance if isinstance(recorded, float) else 0):
                yield f"{path}: recorded {recorded!r}, ours {ours!r}"
        elif recorded != ours:
            yield f"{path}: recorded {recorded!r}, ours {ours!r}"

    def streams(self, recorded: list[Any], ours: list[Any]) -> Iterator[str]:
        """Differences of two lists of events. Choice by choice: events of different choices interleave freely.

        vLLM may put two tokens into one event; then what the events add up to is compared.
        """
        if recorded[-1] != "[DONE]" or ours[-1] != "[DONE]":
            yield f"the last events are {recorded[-1]!r} / {ours[-1]!r}"
        theirs, mine = _by_choice(recorded[:-1]), _by_choice(ours[:-1])
        if theirs.keys() != mine.keys():
            yield f"recorded choices {sorted(theirs)}, ours {sorted(mine)}"
        for index in theirs.keys() & mine.keys():
            left, right = theirs[index], mine[index]
            if len(left) != len(right):
                left, right = [_merged(left)], [_merged(right)]
            yield from self.values(left, right, f"choice {index}: events")

    def _objects(self, recorded: dict[str, Any], ours: dict[str, Any], path: str) -> Iterator[str]:
        for missing in recorded.keys() - ours.keys():
            yield f"{path}: ours lacks {missing!r} (recorded {recorded[missing]!r})"
        for extra in ours.keys() - recorded.keys():
            yield f"{path}: only ours has {extra!r} ({ours[extra]!r})"
        for key in recorded.keys() & ours.keys():
            yield from self.values(recorded[key], ours[key], f"{path}.{key}")

    def _top(self, recorded: dict[str, float], ours: dict[str, float], path: str) -> Iterator[str]:
        """Keys in order of rank; tokens of equal value in any order; of masked ones only the number."""
        free = self._shared_with_a_last_place(recorded, ours)
        recorded = {name: value for name, value in recorded.items() if name not in free}
        ours = {name: value for name, value in ours.items() if name not in free}
        left, right = _unmasked(recorded), _unmasked(ours)
        same_first = not left or (bool(right) and left[0][0] == right[0][0])
        same_counts = (len(left), len(recorded)) == (len(right), len(ours))
        if not same_first or not same_counts or self._ranked(left[1:]) != self._ranked(right[1:]):
            yield f"{path}: recorded {recorded!r}, ours {ours!r}"
        for name, value in left:
            if name in ours and abs(ours[name] - value) > self.tolerance:
                yield f"{path}: {name!r} recorded {value!r}, ours {ours[name]!r}"

    def _shared_with_a_last_place(self, recorded: dict[str, float], ours: dict[str, float]) -> set[str]:
        """Keys that stand for several tokens, if only one side has one of the last value among them; and its others.

        A key has the value of its last token, and which tokens get the last places isn't specified.
        """
        # The first one is the sampled token, which may be none of the best.
        ranked = [value for side in (recorded, ours) for value in list(side.values())[1:]]
        lowest = min(ranked, default=0.0) + self.tolerance
        shared = {
            name
            for name in SHARED_TEXTS
            if name in recorded
            and name in ours
            and abs(recorded[name] - ours[name]) > self.tolerance
            and min(recorded[name], ours[name]) <= lowest
        }
        last = {name for side in (recorded, ours) for name in list(side)[1:] if side[name] <= lowest}
        return shared | last if shared else shared

    def _top_entries(self, recorded: list[Any], ours: list[Any], path: str) -> Iterator[str]:
        """The same for a list of entries, as chat and token-in token-out have it."""
        left, right = _named(recorded), _named(ours)
        if len(recorded) != len(ours) or len(left) != len(right) or (left[:1] and left[0][0] != right[0][0]):
            yield f"{path}: recorded {recorded!r}, ours {ours!r}"
            return
        if self._ranked(left[1:]) != self._ranked(right[1:]):
            yield f"{path}: recorded {recorded!r}, ours {ours!r}"
        by_name = {name: entry for (name, _), entry in zip(right, ours, strict=False)}
        for (name, value), entry, (_, own) in zip(left, recorded, right, strict=False):
            if abs(value - own) > self.tolerance:
                yield f"{path}: recorded {entry!r}, ours {own!r}"
            alike = {**by_name.get(name, entry), "logprob": value}
            if {**alike, "rank": 0} != {**entry, "logprob": value, "rank": 0} and "rank" in entry:
                yield f"{path}: recorded {entry!r}, ours {alike!r}"
            if "rank" not in entry and alike != entry:
                yield f"{path}: recorded {entry!r}, ours {alike!r}"

    def _ranked(self, entries: list[tuple[str, float]]) -> list[set[str]]:
        """The keys in order of rank, those of equal value as a set.

        Those of the last value are left out: which of several such tokens get the last places isn't specified. So are
        keys that two tokens share: they have the place of the first and the value of the second.
        """
        groups: list[set[str]] = []
        before = float("inf")
        for number, (name, value) in enumerate(entries):
            if any(later > value + self.tolerance for _, later in entries[number:]):
                continue
            if abs(before - value) > self.tolerance:
                groups.append(set())
            groups[-1].add(name)
            before = value
        return groups[:-1]

    def _prompt(self, recorded: dict[str, Any], ours: dict[str, Any], path: str) -> Iterator[str]:
        """Entries by token id; among tokens of equal value, ranks and the ids in the last places are free."""
        if list(recorded)[:1] != list(ours)[:1] or len(recorded) != len(ours):
            yield f"{path}: recorded {recorded!r}, ours {ours!r}"
            return
        lowest = min((entry["logprob"] for entry in list(recorded.values())[1:]), default=0.0)
        for token_id in recorded.keys() | ours.keys():
            left, right = recorded.get(token_id), ours.get(token_id)
            if left is None or right is None:
                if abs((left or right)["logprob"] - lowest) > self.tolerance:
                    yield f"{path}: token {token_id} recorded {left!r}, ours {right!r}"
                continue
            if self._has_equal(left, recorded):
                left, right = {**left, "rank": 0}, {**right, "rank": 0}
            yield from self.values(left, right, f"{path}.{token_id}")

    def _has_equal(self, entry: dict[str, Any], entries: dict[str, Any]) -> bool:
        near = [each for each in entries.values() if abs(each["logprob"] - entry["logprob"]) <= self.tolerance]
        return len(near) > 1


def _prefix(value: str | int) -> str:
    named = isinstance(value, str) and "-" in value and not value.startswith("/")
    return value.split("-", 1)[0] if named else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _unmasked(entries: dict[str, float]) -> list[tuple[str, float]]:
    return [(name, value) for name, value in entries.items() if value != MASKED]


def _are_entries(values: list[Any]) -> bool:
    return bool(values) and isinstance(values[0], dict) and "logprob" in values[0]


def _named(entries: list[Any]) -> list[tuple[str, float]]:
    pairs = [(str(entry.get("token", entry.get("token_id"))), entry["logprob"]) for entry in entries]
    return [(name, value) for name, value in pairs if value != MASKED]


def _by_choice(events: list[Any]) -> dict[int, list[Any]]:
    """Events of each choice, in order; -1 for events without a choice (usage, errors)."""
    found: dict[int, list[Any]] = {}
    for event in events:
        choices = event.get("choices") or []
        found.setdefault(choices[0]["index"] if choices else -1, []).append(event)
    return found


def _merged(events: list[Any]) -> dict[str, Any]:
    """What the events of one choice add up to."""
    choices = [event["choices"][0] for event in events]
    logprobs = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    if "delta" in choices[0]:
        return _merged_chat(choices, logprobs)
    return {
        "text": "".join(choice["text"] for choice in choices),
        "logprobs": {key: [entry for each in logprobs for entry in each[key]] for key in logprobs[0]}
        if logprobs
        else None,
        "token_ids": [token for choice in choices for token in choice["token_ids"] or []],
        "finish_reason": choices[-1]["finish_reason"],
        "stop_reason": choices[-1]["stop_reason"],
    }


def _merged_chat(choices: list[Any], logprobs: list[Any]) -> dict[str, Any]:
    """The same of a chat's choice."""
    deltas = [choice["delta"] for choice in choices]
    return {
        "role": deltas[0].get("role"),
        **{key: "".join(delta.get(key) or "" for delta in deltas) for key in ("content", "reasoning")},
        "tool_calls": [call for delta in deltas for call in delta.get("tool_calls", ())],
        "logprobs": [entry for each in logprobs for entry in each["content"]],
        "token_ids": [token for choice in choices for token in choice.get("token_ids") or []],
        "finish_reason": choices[-1]["finish_reason"],
        "stop_reason": choices[-1].get("stop_reason"),
    }
