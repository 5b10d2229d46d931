"""The seam between the server and the model: one callable, context → logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from stubserver.sampling.logits import Logits


class ScriptRequest(NamedTuple):
    """What a script may know of the request that it answers: one prompt of it.

    endpoint: the route, for instance "/v1/completions".
    model: the name the client asked for, or the first served name.
    prompt: the text, rendered and special tokens included; of a token-id prompt, the ids decoded.
    prompt_token_ids: what the model sees.
    body: the JSON body as it came. headers: names in lower case.
    scores_prompt: whether the prompt's own logprobs are asked for (echo with logprobs, prompt_logprobs).
    """

    endpoint: str
    model: str
    prompt: str
    prompt_token_ids: Sequence[int]
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    scores_prompt: bool = False


class Context(NamedTuple):
    """Where the model stands: the logits asked for are those of the token after `token_ids`.

    prompt_token_ids: the request's whole prompt, or a beginning of it when the prompt itself is scored (echo,
    prompt_logprobs). output_token_ids: what has been generated so far. seed: the server's `--seed`.
    """

    request: ScriptRequest
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    seed: int = 0

    @property
    def token_ids(self) -> list[int]:
        """Prompt and output in one list."""
        return [*self.prompt_token_ids, *self.output_token_ids]

    @property
    def rng(self) -> np.random.Generator:
        """A new generator that depends on the server's seed and on the token ids alone.

        So the same context gets the same numbers in every process and in any order of requests.
        """
        return np.random.Generator(np.random.PCG64(context_seed(self.seed, self.token_ids)))


def context_seed(seed: int, token_ids: Sequence[int]) -> int:
    """64 bits that depend on the seed and on the token ids alone (not on the process, as Python's `hash` may)."""
    digest = blake2b(np.asarray([seed, *token_ids], dtype="<i8").tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


NextLogits = Callable[[Context], Logits]
"""Context → the logits of the next token, [V]."""


class Segment(NamedTuple):
    """A part of a scripted chat message, in the order in which its text is generated.

    kind: where the text goes: to the message's `reasoning` or `content`, to a tool call's arguments, or nowhere
    (`markup`: what a model writes around those). name, id: of the tool call.
    """

    kind: Literal["markup", "reasoning", "content", "tool_call"]
    text: str
    name: str = ""
    id: str | None = None


class Recorded(NamedTuple):
    """What is known of a rule whose steps were recorded.

    top_logprobs: at each step, how many of the likeliest tokens of all are among the step's, without a gap.
    """

    top_logprobs: Sequence[int]


class Answer(NamedTuple):
    """What answers a request: context → logits, called once a token.

    rule: the name of the rule that matched. segments: of a scripted chat message; none if the text is all content.
    faults: what goes wrong with the reply: `Fault`s of the faults, which are nothing to the script.
    recorded: what is known of recorded steps; None of others.
    """

    next_logits: NextLogits
    rule: str | None = None
    segments: Sequence[Segment] = ()
    faults: Sequence[Any] = ()
    recorded: Recorded | None = None

    def __call__(self, context: Context) -> Logits:
        """The logits of the next token, [V]."""
        return self.next_logits(context)


class Script(Protocol):
    """A script answers requests; `bind` is called once a prompt, the answer once a token."""

    @property
    def vocab_size(self) -> int:
        """V: the length of every row."""
        ...

    @property
    def has_faults(self) -> bool:
        """Whether its answers may have faults."""
        ...

    def bind(self, request: ScriptRequest) -> Answer:
        """What answers this request. Raises UnscriptedError if nothing does."""
        ...
