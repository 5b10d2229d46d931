"""The text of one choice as it grows: stop strings, and what of the text may be shown already."""

from __future__ import annotations

from collections.abc import Sequence


class OutputText:
    """Collects text, finds stop strings in it, and gives it out piece by piece.

    While stop strings are looked for and are to be left out, the longest of them less one character is held back: it
    may be the beginning of one. Facts: vLLM 0.32.0, `v1/engine/detokenizer.py`.
    """

    def __init__(self, stop: Sequence[str], include_stop: bool) -> None:
        self._stop = stop
        self._include_stop = include_stop
        self._held_back = max(map(len, stop)) - 1 if stop and not include_stop else 0
        self._text = ""
        self._shown = 0

    def append(self, text: str, *, look_for_stop: bool) -> str | None:
        """Add text; if a stop string is complete by now, cut there and return it (the one that is complete first)."""
        self._text += text
        if not text or not self._stop or not look_for_stop:
            return None
        found = self._find_stop(len(text))
        if found is None:
            return None
        start, stop = found
        self._text = self._text[: start + len(stop) if self._include_stop else start]
        return stop

    def take(self, *, finished: bool) -> str:
        """What can be shown and has not been shown."""
        end = len(self._text) - (0 if finished else self._held_back)
        if end <= self._shown:
            return ""
        shown, self._shown = self._text[self._shown : end], end
        return shown

    def _find_stop(self, new: int) -> tuple[int, str] | None:
        """(start, stop string) of the match that ends first; only matches that reach into the `new` last characters."""
        matches = []
        for stop in self._stop:
            start = self._text.find(stop, max(0, len(self._text) - new - len(stop) + 1))
            if start != -1:
                matches.append((start + len(stop), start, stop))
        if not matches:
            return None
        _, start, stop = min(matches, key=lambda match: match[0])
        return start, stop
