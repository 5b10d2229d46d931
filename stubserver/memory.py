"""What is remembered between requests, all in the two ways of this room: bounded by least recent use, and one switch.

Nothing that is remembered may show in an answer: a test plays every recording with the memory on and with it off.
`STUBSERVER_MEMORY=off` in the environment turns it off for a process, `switched_off` for what is made inside of it.

What is remembered, and who bounds it (bench/README.md has what each is worth):

    tokenizer/hf.py        texts → ids, ids → text, by their text or ids
    tokenizer/chat_template.py  compiled templates
    script/rows.py         the rows of a script that are in use
    sampling/logits.py     of a row that comes again: its processed logits, and the reports made of it
    sampling/logprobs.py   of such a report: what it looks like on the wire
    serving/plans.py       what requests ask for that differ in their prompt only, and the terms by prompt length
    dialects/vllm/systemone  the labels' tokens of a tokenizer
    playback/              the keys of requests that come again, short texts without secrets, replies ready to be sent
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
K = TypeVar("K")
V = TypeVar("V")

_on = os.environ.get("STUBSERVER_MEMORY", "on") != "off"


@contextmanager
def switched_off() -> Iterator[None]:
    """Whatever is made meanwhile (apps, scripts, tokenizers) remembers nothing meanwhile."""
    global _on
    before, _on = _on, False
    try:
        yield
    finally:
        _on = before


class Memo(dict[K, V]):
    """Results by their key: the `most` that were used last. None is no result.

    forgotten: is told of the key whose result had to make room.
    """

    __slots__ = ("_forgotten", "_half", "_most")

    def __init__(self, most: int, forgotten: Callable[[K], None] | None = None) -> None:
        self._most, self._half = most, most // 2
        self._forgotten = forgotten

    def find(self, key: K) -> V | None:
        """The result; None if there is none (any more)."""
        found = self.get(key)
        # Where there is much room, the order of use doesn't matter yet, and keeping it would cost more than finding.
        if len(self) > self._half and found is not None:
            del self[key]  # to stand behind all others
            self[key] = found
        return found

    def keep(self, key: K, result: V) -> None:
        """Remember a result, in place of the one that wasn't used for the longest time if there are too many."""
        if not _on:
            return
        if len(self) >= self._most and key not in self:
            oldest = next(iter(self))
            del self[oldest]
            if self._forgotten is not None:
                self._forgotten(oldest)
        self[key] = result


def remembering(function: Callable[P, V], most: int) -> Callable[P, V]:
    """The function, its last results remembered; for functions that are made as objects are."""
    # mypy doesn't know that lru_cache keeps the parameters.
    return lru_cache(maxsize=most)(function) if _on else function  # type: ignore[return-value]


def remembered(most: int) -> Callable[[Callable[P, V]], Callable[P, V]]:
    """The same as a decorator, for functions of a module, which are there before the switch is turned."""

    def decorate(function: Callable[P, V]) -> Callable[P, V]:
        kept: Callable[P, V] = lru_cache(maxsize=most)(function)  # type: ignore[assignment]

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> V:
            return kept(*args, **kwargs) if _on else function(*args, **kwargs)

        return call

    return decorate
