"""Reasoning parsers: which part of a generated text is reasoning.

Source: vLLM 0.32.0, `parser/qwen3.py`, `parser/engine/`, `reasoning/basic_parsers.py` and
`reasoning/deepseek_r1_reasoning_parser.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stubserver.engine.model import Model
from stubserver.engine.waiting import Waiting
from stubserver.tokenizer.hf import HFTokenizer

START, END, CALL = "<think>", "</think>", "<tool_call>"


@dataclass(frozen=True)
class ReasoningParser:
    """A parser by what it looks for.

    ends: what ends the reasoning: taken away if it is END, else the beginning of the content. held: texts that are
    waited for, though they mean nothing here: what may be the beginning of one isn't sent yet. optional: the template's
    `enable_thinking: false` switches it off. bounds: what begins and ends the messages of a prompt. counts_from_start:
    tokens count as reasoning only after a START that was generated. shows_special: special tokens stay in the text, as
    the marks may be some, whatever the request says.
    """

    ends: tuple[str, ...] = (END,)
    held: tuple[str, ...] = ()
    optional: bool = False
    bounds: tuple[str, ...] = ()
    counts_from_start: bool = False
    shows_special: bool = False

    def is_on(self, template_arguments: Mapping[str, Any]) -> bool:
        """Whether the model reasons at all, by what its template was told."""
        return not self.optional or bool(template_arguments.get("enable_thinking", True))

    def waiting(self, tokenizer: HFTokenizer) -> Waiting:
        """What a constraint waits for; where the vocabulary has no such token, for ever."""
        return Waiting(
            _token_ids(tokenizer, self.ends), _token_ids(tokenizer, (START,)), _token_ids(tokenizer, self.bounds)
        )

    def split(self, text: str) -> tuple[str | None, str | None]:
        """(reasoning, content) of a whole text, which begins with reasoning; None for what isn't there."""
        stream = ReasoningStream(self)
        if self.counts_from_start:
            text = text.partition(START)[2] if START in text else text
        reasoning, content = stream.feed(text, 0, finished=True)
        if content is not None and END in self.ends and self.optional:
            content = content.replace(END, "")
        return reasoning or None, content or None


PARSERS: dict[str, ReasoningParser] = {
    "qwen3": ReasoningParser(
        ends=(END, CALL),
        held=("</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>"),
        optional=True,
        bounds=("<|im_start|>", "<|im_end|>"),
        shows_special=True,
    ),
    "deepseek_r1": ReasoningParser(counts_from_start=True),
}
"""Those that are imitated; of any other name the script's own message says what is reasoning."""


def _token_ids(tokenizer: HFTokenizer, texts: Sequence[str]) -> frozenset[int]:
    """The ids of those texts that are one token of their own."""
    encoded = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    return frozenset(token_ids[0] for token_ids in encoded if len(token_ids) == 1)


@dataclass
class ReasoningStream:
    """A text that begins with reasoning, piece by piece.

    tokens: how many of it were reasoning; silent: how many more that had no text of their own, which a stream doesn't
    count and a full reply does.
    """

    parser: ReasoningParser
    tokens: int = 0
    silent: int = 0
    _held: str = ""
    _started: bool = False
    _counts: list[int] = field(default_factory=list)

    def feed(self, text: str, tokens: int, *, finished: bool = False) -> tuple[str, str | None]:
        """(reasoning, the content that follows it) of the next piece; the content is None while reasoning goes on.

        tokens: how many the piece is made of.
        """
        if text:
            self._held += text
            self._counts += [tokens, *[0] * (len(text) - 1)]
        elif self._is_counted():
            self.silent += tokens
        reasoning = ""
        while (found := self._next_marker()) is not None:
            place, marker = found
            reasoning += self._take(place, counted=True)
            if marker in self.parser.ends:
                self._take(len(marker) if marker == END else 0, counted=False)
                return reasoning, self._take(len(self._held), counted=False)
            self._started = True
            self._take(len(marker), counted=False)
        kept = 0 if finished else partial_overlap(self._held, (START, *self.parser.ends, *self.parser.held))
        return reasoning + self._take(len(self._held) - kept, counted=True), None

    def _next_marker(self) -> tuple[int, str] | None:
        places = [(self._held.find(marker), marker) for marker in (START, *self.parser.ends)]
        return min(((place, marker) for place, marker in places if place >= 0), default=None)

    def _is_counted(self) -> bool:
        return self._started or not self.parser.counts_from_start

    def _take(self, length: int, *, counted: bool) -> str:
        taken, self._held = self._held[:length], self._held[length:]
        if counted and self._is_counted():
            self.tokens += sum(self._counts[:length])
        del self._counts[:length]
        return taken


def partial_overlap(text: str, tags: Sequence[str]) -> int:
    """The length of the longest end of a text that is the beginning, not the whole, of one of the tags."""
    longest = min(len(text), max(map(len, tags)) - 1)
    ends = (text[len(text) - length :] for length in range(longest, 0, -1))
    return next((len(end) for end in ends if any(tag.startswith(end) and tag != end for tag in tags)), 0)


def reasoning_ended(
    parser: ReasoningParser, tokenizer: HFTokenizer, template_arguments: Mapping[str, Any], prompt: Sequence[int]
) -> bool:
    """Whether what follows a prompt is content, by the parser."""
    return not parser.is_on(template_arguments) or not parser.waiting(tokenizer).is_open(prompt)


def constraint_waiting(model: Model) -> Waiting | None:
    """What constraints wait for where a request says nothing of reasoning: the server's parser, by the prompt."""
    parser = PARSERS.get(model.settings.reasoning_parser)
    return parser.waiting(model.tokenizer) if parser else None
