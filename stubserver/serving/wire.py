"""What has to be known of a server's replies, whatever their shape: how to read them, and how to write them again.

Faults, the journal, playback and assertions use it and know no shape; a dialect gives it, in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal, NamedTuple

from stubserver.errors import RequestError
from stubserver.serving.framing import EVENTS, Framing

Document = dict[str, Any]
"""The JSON object of a full reply, or of an event."""

Part = Literal["choices", "usage", "logprobs"]
"""What of a reply may be missing."""

MISSING: Any = object()
"""In place of a part's value: the part is taken out."""


class TopLogprob(NamedTuple):
    """A token among the top ones of a position.

    token: as the reply shows it. rest: what else the wire has for it, which only the wire reads.
    """

    token: str
    logprob: float
    rest: Any = None


class Position(NamedTuple):
    """A token of the reply. logprob and top are None where the wire has null. rest: as for a top one."""

    token: str
    logprob: float | None
    top: Sequence[TopLogprob] | None
    rest: Any = None


@dataclass(frozen=True, slots=True)
class Choice:
    """One output of a reply. positions: those that the document has of it; None if it has no logprobs of it."""

    index: int
    positions: Sequence[Position] | None


class LeftOutError(Exception):
    """Why no script can be made of a recorded exchange, for people."""


@dataclass(frozen=True)
class RecordedRequest:
    """What a recorded request asked for, as far as a script can be made of its reply.

    when: per prompt, the condition (of a script file) under which the same is asked again. choices: per prompt. top:
    how many of the likeliest tokens are listed at most; None for all. moved: the fields that move the token that comes
    out away from the likeliest one, and processed values from raw ones. temperature: None if it isn't given.
    """

    when: Sequence[Mapping[str, Any]]
    choices: int
    top: int | None
    moved: Sequence[str]
    temperature: float | None

    @property
    def greedy(self) -> bool:
        """Whether the token that came out is the likeliest one."""
        return self.temperature == 0 and not self.moved


def _all_at_once(documents: Sequence[Document]) -> Document:
    raise ValueError("a stream of this server can't be put together")


def _in_pieces(document: Document, body: Document) -> list[Document]:
    raise ValueError("a reply of this server can't be taken apart")


def _no_script(path: str, body: Document) -> RecordedRequest:
    raise LeftOutError("no script can be made of this server's replies")


@dataclass(frozen=True, kw_only=True)
class Wire:
    """How a server writes what it says: functions that read its shapes, and others that write them.

    A small server can leave the most of it as it is: it has choices, and no other part; there is nothing to convert.
    """

    framing: Framing = EVENTS

    own_paths: Sequence[str] = ()
    """The beginnings of the paths where it speaks of itself, about which there is nothing to record."""

    identity_paths: Mapping[str, str] = field(default_factory=dict)
    """What a cassette's header knows of a recorded server → the path that tells it."""

    fresh_fields: Collection[str] = ()
    """The fields that are new in every reply."""

    masked: float = -inf
    """The logprob that stands for a token which could not come out."""

    # Errors

    error_reply: Callable[[RequestError], tuple[int, Any]]
    """(status, JSON body) of what answers a request that is refused. In a stream, the body is an event."""

    http_error: Callable[[int, str], Any] = lambda status, detail: {"error": detail}
    """(status, detail) → the JSON body where there is nothing to answer: no such path, another method."""

    status_body: Callable[[int, str], Any] = lambda status, message: {"error": message}
    """(status, message) → the JSON body of a status that a test has chosen."""

    dead_reply: Callable[[str], tuple[int, Any]] = lambda path: (500, {"error": "The engine has died."})
    """path → (status, JSON body) of a server whose engine has died; a body of None is none at all."""

    # Replies: full ones, and the events of streams

    read_choices: Callable[[Document], list[Choice]]
    """The outputs that a document tells of, with their logprobs; none if it is of another kind, or broken."""

    write_choices: Callable[[Document, Sequence[Choice]], Document]
    """A new document with other positions in the choices that `read_choices` gave, in the same order.

    A choice that had positions and whose positions are None now has no logprobs (null).
    """

    write_part: Callable[[Document, Part, Any], Document | None] = lambda document, part, value: document
    """A new document with another value of a part, or without it (MISSING).

    The same object if it has no such part, or has it so already; None if nothing is left that would be sent.
    """

    read_model: Callable[[Document], str | None] = lambda document: None
    """The name of the model that a document gives itself."""

    count_tokens: Callable[[Document], int] = lambda document: 1
    """How many tokens were generated for a full reply, at least 1."""

    token_names: Callable[[int, str | None], set[str]] = lambda token_id, text: set() if text is None else {text}
    """(token id, its text if that is known) → how a reply may show the token."""

    # Recorded exchanges

    describe_server: Callable[[Mapping[str, Any]], Mapping[str, str]] = lambda identity: {}
    """What a cassette's header knows of the server, by `identity_paths`, for people: what it is → a text."""

    last_prompt: Callable[[Document], Any] = lambda body: None
    """What a request body asks, by which people tell requests apart; None if it asks nothing."""

    other_form: Callable[[Document], Iterator[Document]] = lambda body: iter(())
    """The bodies that ask for the same in the other form: full for a stream, a stream for a full reply."""

    fold: Callable[[Sequence[Document]], Document] = _all_at_once
    """The full reply that a stream's events add up to. Raises ValueError, KeyError or TypeError if they don't."""

    unfold: Callable[[Document, Document], list[Document]] = _in_pieces
    """(full reply, body that asks for a stream) → the events of a stream that says the same. Raises likewise."""

    read_request: Callable[[str, Document], RecordedRequest] = _no_script
    """(path, body) → what a recorded request asked for. Raises LeftOutError, also where replies have no logprobs."""

    read_endings: Callable[[Document, Document], list[bool]] = lambda document, body: []
    """(full reply, request body) → for each of its choices whether the model itself ended it: by its end of sequence,
    not by what the request says."""

    read_token_id: Callable[[str], int | None] = lambda token: None
    """The id that a reply shows in place of a token's text; None if it shows the text."""
