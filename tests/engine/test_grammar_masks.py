"""The masks of xgrammar 0.2.8, as recorded from the library: by its imitation, and by the library where it is here."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from engine_helpers import FIXTURES

from stubserver.config.settings import StructuredOutputsConfig
from stubserver.engine.grammar.constraint import Compiler, Constraint
from stubserver.engine.grammar.vocabulary import Vocabulary
from stubserver.engine.grammar.xgrammar.bindings import load_bindings
from stubserver.engine.grammar.xgrammar.imitation import ImitationCompiler
from stubserver.engine.grammar.xgrammar.library import LibraryCompiler
from stubserver.tokenizer.hf import load_tokenizer

VOCABULARY = Vocabulary(load_tokenizer(str(FIXTURES / "bigram512")), 512)
EOS = 0

RECORDED = [json.loads(line) for line in (FIXTURES / "xgrammar-0.2.8" / "masks.jsonl").read_text("utf-8").splitlines()]

needs_library = pytest.mark.skipif(
    not load_bindings() and "CI" not in os.environ, reason="xgrammar 0.2.8 isn't installed"
)


def masks(compiler: Compiler, recorded: dict[str, Any]) -> list[list[int]]:
    """What may come at the start and after each of the recorded tokens."""
    config = StructuredOutputsConfig(backend="xgrammar", disable_any_whitespace=recorded["compact"])
    matcher = compiler.matcher(Constraint(recorded["kind"], recorded["spec"], "xgrammar", config), [EOS])
    found = []
    for token_id in [*recorded["tokens"], None]:
        if len(found) < len(recorded["allowed"]):
            allowed = matcher.allowed()
            found.append(list(range(512)) if allowed is None else allowed.tolist())
        if token_id is not None:
            assert matcher.accept(token_id)
    return found


def expected(recorded: dict[str, Any]) -> list[list[int]]:
    return [[i for first, last in ranges for i in range(first, last + 1)] for ranges in recorded["allowed"]]


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: f"{recorded['kind']}-{recorded['spec'][:60]}")
def test_the_imitation_has_the_masks_of_the_library(recorded: dict[str, Any]) -> None:
    assert masks(ImitationCompiler(VOCABULARY), recorded) == expected(recorded)


@needs_library
def test_the_library_has_its_masks() -> None:
    compiler = LibraryCompiler(VOCABULARY)
    assert [masks(compiler, recorded) for recorded in RECORDED] == [expected(recorded) for recorded in RECORDED]


def test_there_are_enough() -> None:
    assert len(RECORDED) > 200


@pytest.mark.parametrize("make", [ImitationCompiler, pytest.param(LibraryCompiler, marks=needs_library)])
def test_stop_tokens_come_at_the_end_and_only_there(make: type[Any]) -> None:
    """Y is token 60 and begins "Yes"; as a stop token it may come after "Yes" only, beside EOS."""
    tokenizer = VOCABULARY.tokenizer
    (letter,), (word,) = tokenizer.encode("Y"), tokenizer.encode("Yes")
    constraint = Constraint("grammar", 'root ::= "Yes"', "xgrammar", StructuredOutputsConfig())
    free = make(VOCABULARY).matcher(constraint, [EOS])
    assert sorted(free.allowed().tolist()) == sorted([letter, word])
    stopping = make(VOCABULARY).matcher(constraint, [EOS, letter])
    assert stopping.allowed().tolist() == [word]
    assert not stopping.accept(letter)
    assert stopping.accept(word)
    assert stopping.allowed().tolist() == sorted([EOS, letter])
    assert stopping.accept(letter)
    assert stopping.is_over()
