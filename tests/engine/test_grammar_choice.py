"""vLLM's choice of a backend, what it refuses, and what its engine fails at."""

from __future__ import annotations

import gc
import json
import weakref
from typing import Any

import pytest
from engine_helpers import EOS, STARS, A, B, generation, output, says, t6_model

from stubserver.config.settings import Settings, StructuredOutputsConfig
from stubserver.dialects.vllm import structured_outputs
from stubserver.engine.grammar import words as grammar_words
from stubserver.engine.grammar.constraint import Constraint
from stubserver.engine.grammar.features import guidance_lacks, xgrammar_lacks
from stubserver.engine.grammar.guidance import without_additional_properties
from stubserver.engine.grammar.matching import Grammar
from stubserver.engine.grammar.xgrammar import choices_as_ebnf
from stubserver.engine.grammar.xgrammar.notation import is_lark
from stubserver.errors import GenerationError, UnsupportedError, ValidationError
from stubserver.sampling.logits import Logits


def compile_constraint(kind: str, value: Any, config: StructuredOutputsConfig | None = None) -> Constraint:
    settings = Settings(structured_outputs_config=config or StructuredOutputsConfig())
    return structured_outputs.compile_constraint(kind, value, settings)


NAMED_GROUP = ("regex", "(?P<x>A)")
"""xgrammar refuses it, llguidance doesn't."""


@pytest.mark.parametrize(
    ("kind", "value", "backend"),
    [
        ("choice", ["A"], "xgrammar"),
        ("regex", "A", "xgrammar"),
        ("regex", "", "xgrammar"),
        ("json_object", True, "xgrammar"),
        ("json", {}, "xgrammar"),
        ("grammar", 'start: "A"', "xgrammar"),
        ("regex", "(?i)A", "guidance"),
        (*NAMED_GROUP, "guidance"),
        ("json", {"type": "integer", "multipleOf": 3}, "guidance"),
        ("json", {"type": "object", "minProperties": 1}, "guidance"),
        ("json", {"type": "object", "patternProperties": {"a": {}, "b": {}}}, "outlines"),
    ],
)
def test_auto_asks_xgrammar_first(kind: str, value: Any, backend: str) -> None:
    assert compile_constraint(kind, value).backend == backend


@pytest.mark.parametrize(("backend", "found"), [("xgrammar", "xgrammar"), ("guidance", "guidance")])
def test_a_backend_that_is_set_is_the_only_one(backend: Any, found: str) -> None:
    assert compile_constraint("choice", ["A"], StructuredOutputsConfig(backend=backend)).backend == found


def test_xgrammar_alone_refuses_what_others_could() -> None:
    config = StructuredOutputsConfig(backend="xgrammar")
    with pytest.raises(ValidationError, match=r"Failed to transform regex into a grammar: .* Group modifier flag"):
        compile_constraint(*NAMED_GROUP, config)
    with pytest.raises(ValidationError) as caught:
        compile_constraint("json", {"type": "integer", "multipleOf": 3}, config)
    assert caught.value.message == grammar_words.UNSUPPORTED_SCHEMA


def test_choices_become_a_grammar() -> None:
    assert choices_as_ebnf(["A", 'a"b', "\\\n\x7f", "é"]) == 'root ::= "A" | "a\\"b" | "\\\\\\n\\u007f" | "é"'
    assert not is_lark(choices_as_ebnf(["A"]))
    assert is_lark('# root ::= "A"\nstart: "A"')


def test_the_first_constraint_chooses_the_engines_backend() -> None:
    """With guidance "A" is the one token for its text; xgrammar can't do what guidance was chosen for."""
    model = t6_model()
    assert output(model, constraint=NAMED_GROUP).token_ids == [A, EOS]
    assert model.grammar_tokens.backend == "guidance"
    assert output(model, constraint=("choice", ["B"])).token_ids == [B, EOS]

    model.reset()
    assert output(model, constraint=("choice", ["B"])).token_ids == [B, EOS]
    assert model.grammar_tokens.backend == "xgrammar"
    with pytest.raises(GenerationError, match=r"^Internal server error$"):
        list(generation(model, constraint=NAMED_GROUP).steps())


def test_what_would_be_outlines_is_for_an_engine_that_has_another_backend() -> None:
    schema = ("json", {"type": "object", "patternProperties": {"a": {}, "b": {}}})
    model = t6_model()
    with pytest.raises(UnsupportedError, match="outlines"):
        list(generation(model, constraint=schema).steps())
    output(model, constraint=("choice", ["B"]))
    grammar = Grammar(compile_constraint(*schema), model.grammar_tokens, [EOS])
    assert grammar.apply(Logits.of([0.0] * 6)).values.tolist() == []  # no token of T6 is a brace


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("choice", [], "Choice '[]' cannot be an empty list"),
        ("json", " ", "structured_outputs.json cannot be an empty string"),
        ("grammar", "", "structured_outputs.grammar cannot be an empty string"),
        ("json_object", False, structured_outputs.NOT_TRUE),
        ("regex", "a\x00", structured_outputs.NUL_IN_REGEX),
        ("json", json.loads('{"items":' * 65 + "{}" + "}" * 65), structured_outputs.TOO_DEEP.format(most=64)),
        ("json", "{", "Invalid JSON grammar specification."),
        ("json", "true", "Invalid grammar specification: Expecting object schema to apply options"),
    ],
)
def test_what_is_refused(kind: str, value: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        compile_constraint(kind, value)
    assert caught.value.message == message


def test_nesting_up_to_the_limit_is_accepted() -> None:
    schema = json.loads('{"items":' * 63 + "{}" + "}" * 63)
    assert compile_constraint("json", schema).kind == "json"


def test_masks_that_leave_nothing_are_an_error() -> None:
    """Allowed is " **", the grammar wants A: vLLM takes token 0 then, here A; there it is EOS, and fails."""
    with pytest.raises(GenerationError, match=r"^Internal server error$"):
        list(generation(t6_model(), constraint=("choice", ["B"]), allowed_token_ids=[STARS]).steps())


def test_sampled_masks_that_leave_nothing_are_an_error() -> None:
    made = generation(t6_model(), constraint=("choice", ["B"]), allowed_token_ids=[STARS], temperature=1.0, seed=0)
    with pytest.raises(GenerationError):
        list(made.steps())


def test_an_ignored_eos_does_not_make_room_for_more() -> None:
    model = t6_model(says(A, A, A), then="repeat")
    assert output(model, constraint=("choice", ["A"]), stop_token_ids=[B]).token_ids in ([A, EOS], [A, B])


@pytest.mark.parametrize(
    ("schema", "lacks"),
    [
        ({"type": "integer", "multipleOf": 2}, True),
        ({"multipleOf": 2}, False),
        ({"properties": {"a": {"type": ["number", "null"], "multipleOf": 2}}}, True),
        ({"type": "array", "uniqueItems": True}, True),
        ({"type": "string", "format": "date"}, False),
        ({"type": "string", "format": "idn-email"}, True),
        ({"type": "string", "pattern": "a", "maxLength": 3}, True),
        ({"type": "object", "propertyNames": {"maxLength": 3}}, False),
        ({"type": "object", "propertyNames": {}, "properties": {}}, True),
        ({"type": "object", "propertyNames": {}, "unevaluatedProperties": False}, True),
        ({"type": "object", "patternProperties": {"a": {}}}, False),
        ({"type": "object", "patternProperties": {"a": {}}, "properties": {}}, True),
        ({"anyOf": [{"allOf": [{}, {}]}]}, True),
        (True, False),
    ],
)
def test_what_vllm_knows_that_xgrammar_cannot_do(schema: Any, lacks: bool) -> None:
    assert xgrammar_lacks(schema) == lacks


def test_guidance_lacks_pattern_properties() -> None:
    assert guidance_lacks({"items": {"patternProperties": {}}})
    assert not guidance_lacks({"properties": {}})


def test_additional_properties_are_closed_where_properties_are_listed() -> None:
    schema = {"properties": {"a": {"properties": {}}, "b": {"properties": {}, "additionalProperties": True}}}
    assert without_additional_properties(schema) == {
        "properties": {
            "a": {"properties": {}, "additionalProperties": False},
            "b": {"properties": {}, "additionalProperties": True},
        },
        "additionalProperties": False,
    }
    assert "additionalProperties" not in schema


@pytest.mark.parametrize(
    "config", [{"disable_any_whitespace": True}, {"backend": "xgrammar", "disable_additional_properties": True}]
)
def test_settings_that_vllm_refuses(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is only supported for"):
        Settings(structured_outputs_config=config)


@pytest.mark.parametrize("constraint", [("choice", ["B"]), NAMED_GROUP], ids=["xgrammar", "guidance"])
def test_a_model_that_followed_a_grammar_is_freed(constraint: tuple[str, Any]) -> None:
    """Libraries hold the vocabulary, and Python can't look into them: nothing in it may lead back to them."""
    alive: list[weakref.ref[Any]] = []
    for _ in range(3):
        model = t6_model()
        output(model, constraint=constraint)
        alive += [weakref.ref(model), weakref.ref(model.grammar_tokens), weakref.ref(model.grammar_tokens.vocabulary)]
        del model
    gc.collect()
    assert [each() for each in alive if each() is not None] == []


def test_a_diffusion_model_has_no_structured_outputs() -> None:
    with pytest.raises(ValidationError, match="not yet supported for diffusion language models"):
        generation(t6_model(diffusion=True), constraint=("choice", ["A"]))
