"""The backend guidance: llguidance, which takes the one tokenization of a text for granted and masks all others.

Source of the facts: vLLM 0.32.0, `v1/structured_output/backend_guidance.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any, Final

import numpy as np

from stubserver.config.settings import StructuredOutputsConfig
from stubserver.engine.grammar import words
from stubserver.engine.grammar.constraint import Constraint, Kind
from stubserver.engine.grammar.vocabulary import Vocabulary
from stubserver.errors import GenerationError, ValidationError
from stubserver.sampling.logits import Ids


def checked(kind: Kind, value: Any, config: StructuredOutputsConfig) -> Constraint:
    """What the engine gets if llguidance accepts it. Raises ValidationError with llguidance's words."""
    from llguidance import LLMatcher

    constraint = Constraint(kind, as_text(value), "guidance", config)
    try:
        grammar = _serialized(constraint, StructuredOutputsConfig())
    except (ValueError, KeyError, TypeError) as error:
        raise ValidationError(words.GUIDANCE_NOT_READ.format(error=error)) from error
    problem = LLMatcher.validate_grammar(grammar, None)
    if problem:
        raise ValidationError(words.GUIDANCE_REFUSED.format(error=problem.strip()))
    return constraint


def as_text(value: Any) -> str:
    """A constraint's value as the text that engines get; "" for json_object."""
    return value if isinstance(value, str) else json.dumps(value) if isinstance(value, dict | list) else ""


class GuidanceCompiler:
    """llguidance over a vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    @cached_property
    def _tokenizer(self) -> Any:
        return self._vocabulary.llguidance(sorted(self._vocabulary.tokenizer.special_token_ids))

    def matcher(self, constraint: Constraint, stop_token_ids: Sequence[int]) -> GuidanceMatcher:
        """Start an output; stop ids don't count here. Raises GenerationError for what isn't read."""
        try:
            grammar = _serialized(constraint, constraint.config)
        except Exception as error:
            raise GenerationError(words.ENGINE_FAILED) from error
        return GuidanceMatcher(self._tokenizer, grammar, self._vocabulary)


class GuidanceMatcher:
    """llguidance's state of one output. In vLLM only EOS ends it."""

    def __init__(self, tokenizer: Any, grammar: str, vocabulary: Vocabulary) -> None:
        from llguidance import LLMatcher

        self._matcher = LLMatcher(tokenizer, grammar, log_level=0)
        self._vocabulary = vocabulary
        self._ended = False

    def allowed(self) -> Ids:
        """The tokens that may come next: only EOS at the end, or if llguidance gave up."""
        return read_mask(self._matcher, self._vocabulary.size)

    def accept(self, token_id: int) -> bool:
        """Go on by a token. False if it can't come next."""
        self._ended = token_id == self._vocabulary.eos_token_id
        return bool(self._matcher.is_stopped() or self._matcher.consume_token(token_id))

    def is_over(self) -> bool:
        """Whether EOS came."""
        return self._ended


def read_mask(matcher: Any, vocab_size: int) -> Ids:
    """The tokens that an llguidance matcher allows, ascending."""
    from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

    bitmask = allocate_token_bitmask(1, vocab_size)
    fill_next_token_bitmask(matcher, bitmask)
    return np.flatnonzero(np.unpackbits(bitmask.view(np.uint8), bitorder="little", count=vocab_size))


def _serialized(constraint: Constraint, config: StructuredOutputsConfig) -> str:
    """The constraint in llguidance's form. Raises ValueError and others for what it can't read."""
    from llguidance import LLMatcher, grammar_from

    defaults: Any = {"whitespace_flexible": not config.disable_any_whitespace}
    match constraint.kind:
        case "json":
            spec: Any = constraint.spec
            if config.disable_additional_properties:
                spec = without_additional_properties(json.loads(spec))
            return LLMatcher.grammar_from_json_schema(spec, defaults=defaults)
        case "json_object":
            return LLMatcher.grammar_from_json_schema('{"type": "object"}', defaults=defaults)
        case "structural_tag":
            return _tags_as_grammar(json.loads(constraint.spec), defaults)
        case _:
            return grammar_from(constraint.kind, constraint.spec)


def _tags_as_grammar(tag: Any, defaults: Any) -> str:
    """A structural tag of the older form, with structures and triggers; guidance has no other."""
    from llguidance import LLMatcher, StructTag

    triggers, tags = tag["triggers"], []
    for each in tag["structures"]:
        trigger = next((trigger for trigger in triggers if each["begin"].startswith(trigger)), None)
        if trigger is None:
            raise ValueError(words.NO_TRIGGER.format(begin=each["begin"], triggers=triggers))
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(each["schema"]), defaults=defaults)
        tags.append(StructTag(trigger=trigger, begin=each["begin"], grammar=grammar, end=each["end"]))
    if not tags:
        raise ValueError(words.NO_TAGS)
    return StructTag.to_grammar(tags)


_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_SCHEMAS: Final = (
    *("additionalProperties", "unevaluatedProperties", "propertyNames", "contains", "additionalItems"),
    *("unevaluatedItems", "not", "if", "then", "else", "contentSchema", "items", "prefixItems", "allOf", "anyOf"),
    "oneOf",
)


def without_additional_properties(schema: Any) -> Any:
    """The schema with `additionalProperties: false` wherever properties are listed and it says nothing else."""
    schema = deepcopy(schema)
    _close(schema)
    return schema


def _close(schema: Any) -> None:
    if isinstance(schema, list):
        for item in schema:
            if isinstance(item, dict):
                _close(item)
    if not isinstance(schema, dict):
        return
    for key in _MAPS:
        _close(list(schema[key].values()) if isinstance(schema.get(key), dict) else None)
    for key in _SCHEMAS:
        _close(schema.get(key))
    if any(isinstance(schema.get(key), dict) for key in ("properties", "patternProperties")):
        schema.setdefault("additionalProperties", False)
