"""Taking a generated text apart into a chat message, as the server's parsers do it.

Which of them are on is the server's flags and the request's to say; a reply without any is all content. hermes, qwen3
and deepseek_r1 read what was generated, whoever wrote it. Behind every other name stands the script itself: of a
scripted message it knows which part is what; of other text all is content.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stubserver.dialects.vllm.chat.hermes import HermesStream, read_calls
from stubserver.dialects.vllm.chat.message import Delta, Message, ToolCall, ToolCallDelta
from stubserver.dialects.vllm.chat.reasoning import ReasoningParser, ReasoningStream
from stubserver.dialects.vllm.chat.segments import CallIds, SegmentStream
from stubserver.script.context import Segment
from stubserver.tokenizer.hf import HFTokenizer


class Parsing(NamedTuple):
    """How the choices of a request are taken apart.

    on: whether any parser is. reasoning: the imitated one, if it is on. hermes: whether calls are looked for.
    scripted: whether the script stands behind a parser, and then which parts it takes out: reasons, calls.
    has_tools: whether there is a tool parser. forced: a call was asked for. include_reasoning: whether the request
    wants to see it. last_only: only a reply's last piece counts, as in a batch that asks for a stream and gets none.
    """

    on: bool = False
    reasoning: ReasoningParser | None = None
    has_tools: bool = False
    hermes: bool = False
    scripted: bool = False
    reasons: bool = False
    calls: bool = False
    forced: bool = False
    include_reasoning: bool = True
    last_only: bool = False


class ReplyParser:
    """One choice's text, piece by piece. is_open: whether the prompt leaves the model to reason."""

    def __init__(
        self,
        parsing: Parsing,
        segments: Sequence[Segment],
        tokenizer: HFTokenizer,
        *,
        is_open: bool,
        skip_special_tokens: bool,
    ) -> None:
        self._parsing = parsing
        self._special = tokenizer.special_token_ids
        self._text = ""
        self._ids = CallIds(segments)
        self._deltas: list[Delta] = []
        self._reasoning = ReasoningStream(parsing.reasoning) if parsing.reasoning and is_open else None
        self._is_open = self._reasoning is not None
        self._hermes = HermesStream(CallIds(segments)) if parsing.hermes else None
        self._scripted = (
            SegmentStream(
                segments,
                tokenizer,
                skip_special_tokens=skip_special_tokens,
                reasons=parsing.reasons,
                calls=parsing.calls,
                ids=self._ids,
            )
            if parsing.scripted and segments
            else None
        )

    @property
    def reasoning_tokens(self) -> int:
        """How many tokens were reasoning so far, as a stream counts them."""
        stream = self._scripted or self._reasoning
        return stream.tokens if stream else 0

    @property
    def all_reasoning_tokens(self) -> int:
        """The same as a full reply counts them."""
        return self.reasoning_tokens + (self._reasoning.silent if self._reasoning else 0)

    def feed(self, text: str, token_ids: Sequence[int], *, finished: bool) -> Delta | None:
        """What a piece adds to the message; None if it shows nothing."""
        self._text = text if self._parsing.last_only else self._text + text
        if not self._parsing.on:
            return Delta(content=text)
        count = sum(token_id not in self._special for token_id in token_ids)
        if self._scripted:
            delta: Delta | None = self._scripted.feed(text, count)
            self._deltas.append(delta or Delta())
        else:
            delta = self._read(text, count, finished=finished)
        if delta is None or self._parsing.include_reasoning:
            return delta
        return delta._replace(reasoning=None, hidden=True) if delta.content or delta.tool_calls else None

    def _read(self, text: str, count: int, *, finished: bool) -> Delta | None:
        if not self._is_open or self._reasoning is None:
            return self._read_content(text, finished=finished)
        reasoning, content = self._reasoning.feed(text, count, finished=finished)
        if content is None:
            return Delta(reasoning=reasoning) if reasoning else None
        self._is_open = False
        after = self._read_content(content, finished=finished) if content else None
        if after is None:
            return Delta(reasoning=reasoning) if reasoning else None
        return after._replace(reasoning=reasoning or None)

    def _read_content(self, text: str, *, finished: bool) -> Delta | None:
        if self._hermes:
            return self._hermes.feed(text, finished=finished)
        # With a tool parser, a piece without text is none.
        return None if self._parsing.has_tools and not text else Delta(content=text)

    def message(self) -> Message:
        """The whole text as a message."""
        if not self._parsing.on:
            return Message(self._text)
        message = _added_up(self._deltas) if self._scripted else self._whole()
        if self._parsing.forced:
            message = message._replace(content=message.content or "")
        return message if self._parsing.include_reasoning else message._replace(reasoning=None)

    def _whole(self) -> Message:
        parser, reasoning, content = self._parsing.reasoning, None, self._text or None
        if parser:
            reasoning, content = parser.split(self._text)
        elif not self._parsing.hermes:
            return Message(self._text)
        if not self._parsing.hermes:
            return Message(content, reasoning)
        rest, calls = read_calls(content or "", self._ids)
        if not calls:
            return Message(content if parser else self._text, reasoning)
        return Message(rest if rest and rest.strip() else None, reasoning, calls)


def _added_up(deltas: Sequence[Delta]) -> Message:
    """The message that the deltas make."""
    content = "".join(delta.content or "" for delta in deltas)
    reasoning = "".join(delta.reasoning or "" for delta in deltas)
    return Message(content or None, reasoning or None, _whole_calls([c for delta in deltas for c in delta.tool_calls]))


def _whole_calls(pieces: Sequence[ToolCallDelta]) -> list[ToolCall]:
    heads = [piece for piece in pieces if piece.name is not None]
    return [
        ToolCall(
            head.id or "",
            head.name or "",
            "".join(piece.arguments or "" for piece in pieces if piece.number == head.number),
        )
        for head in heads
    ]
