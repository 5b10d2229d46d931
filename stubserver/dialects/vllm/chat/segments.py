"""A scripted message's own parts, where no imitated parser says what is what: the script knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stubserver.dialects.vllm.chat.message import Delta, ToolCallDelta
from stubserver.script.context import Segment
from stubserver.serving.sending import random_id
from stubserver.tokenizer.base import Tokenizer


class CallIds:
    """The ids of a choice's calls: the script's, then random ones."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._scripted: Iterator[str | None] = (each.id for each in segments if each.kind == "tool_call")

    def next(self) -> str:
        """Of the next call."""
        return next(self._scripted, None) or f"chatcmpl-tool-{random_id()}"


class SegmentStream:
    """A scripted message's text, piece by piece. reasons, calls: which kinds of parts are taken out of it."""

    def __init__(
        self,
        segments: Sequence[Segment],
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool,
        reasons: bool,
        calls: bool,
        ids: CallIds,
    ) -> None:
        self._segments = [
            (segment, _shown(segment, tokenizer, skip_special_tokens=skip_special_tokens))
            for segment in _told_apart(segments, reasons=reasons, calls=calls)
        ]
        self._ids = ids
        self._calls = 0
        self.tokens = 0

    def feed(self, text: str, tokens: int) -> Delta:
        """The delta of the text that follows what came before."""
        content, reasoning = "", ""
        calls: list[ToolCallDelta] = []
        while text and self._segments:
            segment, left = self._segments[0]
            piece, text = text[:left], text[left:]
            if segment.kind == "content":
                content += piece
            elif segment.kind == "reasoning":
                reasoning += piece
            elif segment.kind == "tool_call":
                calls.append(ToolCallDelta(self._calls - 1, arguments=piece))
            self._segments[0] = (segment, left - len(piece))
            if len(piece) == left:
                calls += self._next_segment()
        if reasoning:
            self.tokens += tokens
        # Text that the script doesn't know of (it was forced or sampled otherwise) is content.
        return Delta((content + text) or None, reasoning or None, calls)

    def _next_segment(self) -> list[ToolCallDelta]:
        """Go on to the next segment; a tool call shows its name as soon as it is its turn."""
        self._segments.pop(0)
        if not self._segments or self._segments[0][0].kind != "tool_call":
            return []
        self._calls += 1
        return [ToolCallDelta(self._calls - 1, self._ids.next(), self._segments[0][0].name)]


def _told_apart(segments: Sequence[Segment], *, reasons: bool, calls: bool) -> Iterator[Segment]:
    """The segments; those of a kind that nothing takes out are content, with the markup around them."""
    for place, segment in enumerate(segments):
        # Markup belongs to what it is around: to the part after it, or, at the end of one, before it.
        near = [
            each.kind for each in segments[max(0, place - 1) : place + 2] if each.kind in ("reasoning", "tool_call")
        ]
        kind = near[0] if segment.kind == "markup" and near else segment.kind
        taken = {"reasoning": reasons, "tool_call": calls}.get(kind, True)
        yield segment if taken else segment._replace(kind="content")


def _shown(segment: Segment, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> int:
    """How many characters of a segment the output shows: markup may be special tokens."""
    token_ids = tokenizer.encode(segment.text, add_special_tokens=False)
    return len(tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens))
