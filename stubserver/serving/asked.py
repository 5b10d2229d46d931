"""What a request asks for, understood: nothing has run yet. Creating, rendering and explaining all begin with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stubserver.engine.model import Model
from stubserver.engine.terms import EngineRequest


class Prompt(NamedTuple):
    """`text` is what a reply shows of it: the text as it came (not truncated), or the ids decoded.

    tokenized: whether the ids are the tokenizer's own, and not the client's.
    """

    token_ids: list[int]
    text: str
    tokenized: bool = False


@dataclass(slots=True)
class Asked:
    """The model, and for each prompt what is asked of the engine. A route adds how it will show the results."""

    model: Model
    prompts: Sequence[Prompt]
    engine_requests: Sequence[EngineRequest]
