"""What has to be known of a server's replies, whatever their shape: how to read them, and how to write them again.

Faults, the journal, playback and assertions use it and know no shape; a dialect gives it, in one place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from stubserver.errors import GenerationError, RequestError
from stubserver.serving.framing import Framing

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


class Wire(Protocol):
    """How a server writes what it says.

    own_paths: the beginnings of the paths where it speaks of itself, about which there is nothing to record.
    identity_paths: what a cassette's header knows of a recorded server → the path that tells it. fresh_fields: the
    fields that are new in every reply. masked: the logprob that stands for a token which could not come out.
    """

    framing: Framing
    own_paths: Sequence[str]
    identity_paths: Mapping[str, str]
    fresh_fields: Collection[str]
    masked: float

    # Errors

    def error_reply(self, error: RequestError) -> tuple[int, Any]:
        """(status, JSON body) of what answers a request that is refused. In a stream, the body is an event."""
        ...

    def http_error(self, status: int, detail: str) -> Any:
        """The JSON body where there is nothing to answer: no such path, another method."""
        ...

    def status_body(self, status: int, message: str) -> Any:
        """The JSON body of a status that a test has chosen."""
        ...

    def dead_reply(self, path: str) -> tuple[int, Any]:
        """(status, JSON body) of a server whose engine has died; a body of None is none at all."""
        ...

    # Replies: full ones, and the events of streams

    def read_choices(self, document: Document) -> list[Choice]:
        """The outputs that a document tells of, with their logprobs; none if it is of another kind, or broken."""
        ...

    def write_choices(self, document: Document, choices: Sequence[Choice]) -> Document:
        """A new document with other positions in the choices that `read_choices` gave, in the same order.

        A choice that had positions and whose positions are None now has no logprobs (null).
        """
        ...

    def write_part(self, document: Document, part: Part, value: Any) -> Document | None:
        """A new document with another value of a part, or without it (MISSING).

        The same object if it has no such part, or has it so already; None if nothing is left that would be sent.
        """
        ...

    def read_model(self, document: Document) -> str | None:
        """The name of the model that a document gives itself."""
        ...

    def count_tokens(self, document: Document) -> int:
        """How many tokens were generated for a full reply, at least 1."""
        ...

    def token_names(self, token_id: int, text: str | None) -> set[str]:
        """How a reply may show a token; `text`: None if it isn't known."""
        ...

    # Recorded exchanges

    def describe_server(self, identity: Mapping[str, Any]) -> Mapping[str, str]:
        """What a cassette's header knows of the server, by `identity_paths`, for people: what it is → a text."""
        ...

    def last_prompt(self, body: Document) -> Any:
        """What a request body asks, by which people tell requests apart; None if it asks nothing."""
        ...

    def other_form(self, body: Document) -> Iterator[Document]:
        """The bodies that ask for the same in the other form: full for a stream, a stream for a full reply."""
        ...

    def fold(self, documents: Sequence[Document]) -> Document:
        """The full reply that a stream's events add up to. Raises ValueError, KeyError or TypeError if they don't."""
        ...

    def unfold(self, document: Document, body: Document) -> list[Document]:
        """The events of a stream that says the same as a full reply; `body` asks for the stream. Raises likewise."""
        ...

    def read_request(self, path: str, body: Document) -> RecordedRequest:
        """What a recorded request asked for. Raises LeftOutError, for a route whose replies have no logprobs too."""
        ...

    def read_endings(self, document: Document, body: Document) -> list[bool]:
        """For each choice of a full reply, in the order of `read_choices`, whether the model itself ended it.

        That is by its end of sequence, not by what the request (`body`) says.
        """
        ...

    def read_token_id(self, token: str) -> int | None:
        """The id that a reply shows in place of a token's text; None if it shows the text."""
        ...


class WireDefaults:
    """What the wire of a small server can leave as it is: JSON errors, one part (its choices), nothing to convert."""

    framing = Framing()
    own_paths: Sequence[str] = ()
    identity_paths: Mapping[str, str] = MappingProxyType({})
    fresh_fields: Collection[str] = ()
    masked = -inf

    def error_reply(self, error: RequestError) -> tuple[int, Any]:
        """Every error is a 400."""
        return 400, {"error": error.message}

    def http_error(self, status: int, detail: str) -> Any:
        """As other errors."""
        return self.error_reply(RequestError(detail))[1]

    def status_body(self, status: int, message: str) -> Any:
        """As other errors."""
        return self.error_reply(RequestError(message))[1]

    def dead_reply(self, path: str) -> tuple[int, Any]:
        """As other errors."""
        return self.error_reply(GenerationError("The engine has died."))

    def write_part(self, document: Document, part: Part, value: Any) -> Document | None:
        """It has no such part."""
        return document

    def read_model(self, document: Document) -> str | None:
        """It doesn't say."""
        return None

    def count_tokens(self, document: Document) -> int:
        """It doesn't say."""
        return 1

    def token_names(self, token_id: int, text: str | None) -> set[str]:
        """By its text."""
        return set() if text is None else {text}

    def describe_server(self, identity: Mapping[str, Any]) -> Mapping[str, str]:
        """Nothing is known."""
        return {}

    def last_prompt(self, body: Document) -> Any:
        """Nothing is known."""
        return None

    def other_form(self, body: Document) -> Iterator[Document]:
        """There is none."""
        return iter(())

    def fold(self, documents: Sequence[Document]) -> Document:
        """Raises ValueError."""
        raise ValueError("streams of this server can't be put together")

    def unfold(self, document: Document, body: Document) -> list[Document]:
        """Raises ValueError."""
        raise ValueError("replies of this server can't be taken apart")

    def read_request(self, path: str, body: Document) -> RecordedRequest:
        """No script is made of its recordings. Raises LeftOutError."""
        raise LeftOutError("its server's replies can't be made into a script")

    def read_endings(self, document: Document, body: Document) -> list[bool]:
        """Nothing is known."""
        return []

    def read_token_id(self, token: str) -> int | None:
        """A token is shown as its text."""
        return None
