"""A constraint that was checked, and what a backend has to offer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from stubserver.config.settings import StructuredOutputsConfig
from stubserver.sampling.logits import Ids

Backend = Literal["xgrammar", "guidance", "outlines"]

Kind = Literal["json", "json_object", "regex", "choice", "grammar", "structural_tag"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint as vLLM's front end hands it to the engine.

    spec: the text of a schema, a regex or a grammar; a list of choices as JSON text; "" for json_object.
    backend: which backend vLLM chooses for it; the engine takes the first one that is chosen, for good.
    """

    kind: Kind
    spec: str
    backend: Backend
    config: StructuredOutputsConfig


class Matcher(Protocol):
    """A backend's state of one output."""

    def allowed(self) -> Ids | None:
        """The tokens that may come next, ascending; None for every token."""

    def accept(self, token_id: int) -> bool:
        """Go on by a token. False if it can't come next."""

    def is_over(self) -> bool:
        """Whether a token has ended the output, so that nothing is masked any more."""


class Compiler(Protocol):
    """A backend, made for one vocabulary."""

    def matcher(self, constraint: Constraint, stop_token_ids: Sequence[int]) -> Matcher:
        """Start an output. Raises GenerationError where vLLM's engine fails, UnsupportedError for limits of ours."""
