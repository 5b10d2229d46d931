"""The house holds: vLLM's words stand in its room only, and the public names are those that are meant to be."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stubserver
from stubserver.dialects.vllm.dialect import VLLM
from stubserver.dialects.vllm.wire.errors import KINDS
from stubserver.serving.openapi import describe

PACKAGE = Path(stubserver.__file__).parent
VLLMS_ROOM = "dialects/vllm"

ROUTES = {endpoint.path for endpoint in VLLM.endpoints}

ERROR_TYPES = {kind for _, kind in KINDS.values()}


def wire_fields() -> set[str]:
    """The fields of vLLM's bodies that are no words of everybody's: of several words (but a header's), or a reply's parts."""
    schemas = describe(VLLM.endpoints, "0", VLLM.load_error_model())["components"]["schemas"]
    fields = {name for schema in schemas.values() for name in schema.get("properties", {})}
    return {name for name in fields if "_" in name} - {"content_type"} | {"choices", "delta", "usage"}


FIELDS = wire_fields()

_PARAMETERS = "SamplingParams of the engine have vLLM's and OpenAI's names: they are the field's standard terms"
_FAULTS = "fault kinds that scripts name; what they mean on the wire is the Wire's"
_JOURNAL = "keys of the journal's and explain's own JSON, which are words of the field"
_PROFILES = "keys of the setting `profile`, which speaks of parameters as clients send them"
_KIND = "a kind of constraint"
_CONTRACT = "the contract suite sets profiles"

EXCEPTIONS: dict[str, tuple[set[str], str]] = {
    "config/profile.py": (
        {
            *("/v1/completions", "allowed_token_ids", "logprob_token_ids", "prompt_logprobs", "return_token_ids"),
            *("return_tokens_as_token_ids", "structured_outputs", "top_logprobs"),
        },
        _PROFILES,
    ),
    "config/settings.py": (
        {
            *("/docs", "/inference/v1/generate", "/redoc", "/tokenizer_info", "/v1/embeddings"),
            *("cache_salt", "request_id", "session_id"),
        },
        "a setting's description names the routes that it is about; fields that don't count for a cassette by default",
    ),
    "control/explain.py": ({"prompt_token_ids"}, _JOURNAL),
    "engine/explain.py": ({"structured_outputs"}, "the name of a stage in explain's own JSON"),
    "engine/grammar/constraint.py": ({"json_object", "structural_tag"}, _KIND),
    "engine/grammar/guidance.py": ({"json_object", "structural_tag"}, _KIND),
    "engine/grammar/xgrammar/__init__.py": ({"structural_tag"}, _KIND),
    "engine/grammar/xgrammar/imitation.py": ({"json_object", "structural_tag"}, _KIND),
    "engine/grammar/xgrammar/library.py": ({"json_object", "structural_tag"}, _KIND),
    "engine/grammar/xgrammar/structural_tag.py": ({"json_schema", "structural_tag"}, "keys of xgrammar's own format"),
    "engine/recorded.py": (
        {
            *("bad_words", "frequency_penalty", "logit_bias", "min_p", "min_tokens", "presence_penalty"),
            *("repetition_penalty", "top_k", "top_p"),
        },
        _PARAMETERS,
    ),
    "faults/document_edits.py": ({"choices", "usage"}, _FAULTS),
    "faults/keys.py": ({"choices", "usage", "[DONE]"}, _FAULTS),
    "journal/generation_record.py": ({"prompt_token_ids"}, _JOURNAL),
    "keys/conditions.py": ({"prompt_token_ids"}, "the name of a rule's subject, for messages"),
    "playback/to_script.py": ({"max_model_len", "top_logprobs"}, "a setting, and a key of the rule that is written"),
    "sampling/logits.py": ({"token_ids"}, "an attribute's name"),
    "script/file/build.py": ({"top_logprobs"}, "a key of a rule"),
    "script/file/load.py": ({"chat_template"}, "a setting's name"),
    "script/file/schema.py": ({"/v1/embeddings"}, "a script key's description names the route that it is about"),
    "script/tokens.py": ({"token_id"}, "a form of a token in scripts: token_id:N"),
    "serving/wire.py": ({"choices", "usage"}, "names of a reply's parts; which fields those are is the dialect's"),
    "testing/contract_scenes.py": (
        {
            *("allowed_token_ids", "logit_bias", "logprob_token_ids", "response_format", "structured_outputs"),
            "top_logprobs",
        },
        _CONTRACT,
    ),
    "testing/rules.py": ({"tool_calls"}, "a key of a script's message"),
    "tokenizer/files.py": ({"chat_template"}, "a key of tokenizer_config.json"),
}
"""Module → (what it names of vLLM's wire, why that is right)."""


def texts(tree: ast.AST) -> Iterator[str]:
    """Every text in a module but its docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, documented)
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            if isinstance(node.value, str):
                yield node.value
            elif isinstance(node.value, bytes):
                yield node.value.decode("latin-1")


def named(path: Path) -> set[str]:
    """What a module names of vLLM's: routes anywhere in a text, fields and error types as whole texts."""
    found: set[str] = set()
    for text in texts(ast.parse(path.read_text(encoding="utf-8"))):
        routes = {route for route in ROUTES if route in text}
        found |= {route for route in routes if not any(route != other and route in other for other in routes)}
        found |= {text} & (FIELDS | ERROR_TYPES)
        found |= {"[DONE]"} if "[DONE]" in text else set()
    return found


OTHER_ROOMS = sorted(
    path for path in PACKAGE.rglob("*.py") if not str(path.relative_to(PACKAGE)).startswith(VLLMS_ROOM)
)


@pytest.mark.parametrize("path", OTHER_ROOMS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_vllms_wire_is_known_in_its_room_only(path: Path) -> None:
    allowed, _ = EXCEPTIONS.get(str(path.relative_to(PACKAGE)), (set(), ""))
    assert named(path) == allowed


def test_the_exceptions_are_of_modules_that_are_there() -> None:
    assert EXCEPTIONS.keys() <= {str(path.relative_to(PACKAGE)) for path in OTHER_ROOMS}


def test_what_is_looked_for_is_found_in_the_room() -> None:
    """So that a change of names doesn't make the search one for nothing."""
    found: set[Any] = set()
    for path in (PACKAGE / VLLMS_ROOM).rglob("*.py"):
        found |= named(path)
    assert found >= ROUTES | ERROR_TYPES | {"[DONE]", "top_logprobs", "finish_reason", "choices", "usage"}


PUBLIC = {
    "stubserver": {"__version__"},
    "stubserver.app": {"create_app"},
    "stubserver.testing": {"LabelReadbackContract", "LabelRequest", "Stub", "StubServer"},
    "stubserver.serving.dialect": {"Dialect", "Endpoint", "Route"},
    "stubserver.serving.wire": {"Wire", "Choice", "Position", "TopLogprob", "MISSING"},
    "stubserver.serving.asked": {"Asked", "Prompt"},
    "stubserver.engine.behaviour": {"Behaviour", "Circumstances"},
    "stubserver.engine.terms": {"EngineRequest"},
    "stubserver.sampling.stages": {"Stage", "StepState"},
}
"""Module → the names that others may build on; ARCHITECTURE.md says so too."""


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_there(module: str) -> None:
    assert [name for name in PUBLIC[module] if not hasattr(importlib.import_module(module), name)] == []


def test_the_testing_package_has_no_other_names() -> None:
    assert set(importlib.import_module("stubserver.testing").__all__) == PUBLIC["stubserver.testing"]


def test_the_architecture_names_them() -> None:
    text = (PACKAGE.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.split("## Public")[1]
    assert [module for module in PUBLIC if module.removeprefix("stubserver.") not in section] == []


def test_the_architecture_names_every_room() -> None:
    """And no other: each folder and module at the top of the package."""
    text = (PACKAGE.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.split("## Rooms")[1].split("## ")[0]
    rooms = {
        path.stem if path.suffix else f"{path.name}/"
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert [room for room in sorted(rooms - {"__init__", "__main__"}) if f"`{room}`" not in section] == []
