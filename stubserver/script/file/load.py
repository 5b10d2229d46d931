"""From a file, a mapping, a callable or nothing to scripts, their tokenizers and their settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stubserver.config.settings import Settings
from stubserver.errors import ScriptError, TokenizerError
from stubserver.faults.fault import Fault, read_faults
from stubserver.keys.document import Document, read_document
from stubserver.script.context import Script
from stubserver.script.embeddings import Embeddings
from stubserver.script.file.build import build_embeddings, build_script
from stubserver.script.file.check import check_document
from stubserver.script.file.models import split_models
from stubserver.script.file.schema import ScriptFile
from stubserver.script.function import LogitsFunction
from stubserver.tokenizer.hf import BUILTIN, HFTokenizer, load_tokenizer

DEMO_FILE = Path(__file__).with_name("demo.yaml")

Source = str | os.PathLike[str] | Mapping[str, Any] | Document | LogitsFunction | None


@dataclass(frozen=True)
class LoadedScript:
    """settings: the settings among the file's keys, as written, but with absolute paths. source: for people.

    faults: those of the whole server, the same for every model of a file.
    """

    script: Script
    tokenizer: HFTokenizer
    settings: dict[str, Any]
    source: str
    embeddings: Embeddings = field(default_factory=Embeddings)
    faults: tuple[Fault, ...] = ()


def load_models(source: Source, *, tokenizer: str | None = None) -> list[LoadedScript]:
    """Load what each model of a source says, at least one.

    source: a .yaml, .yml, .json or .npz file; `module:function` or `file.py:function`; a mapping with the keys of a
    script file (paths relative to the working directory); a document that was read already; a function, context →
    logits; None for the built-in demo.
    tokenizer: goes before the script's own, relative to the working directory.

    Models that say the same by the same tokenizer share one script, and its rows. Raises ScriptError with the place of
    what is wrong; TokenizerError if `tokenizer` can't be loaded.
    """
    function = source if callable(source) else None
    name = _source_name(source)
    loaded: list[tuple[dict[str, Any], LoadedScript]] = []
    for document in split_models(_read_source(source, name)):
        file = check_document(document)
        settings = _settings(file, document)
        says = _says(document, settings)
        twin = next((script for known, script in loaded if known == says), None)
        if twin is None:
            own_tokenizer = _load_tokenizer(file, document, settings, tokenizer)
            script = build_script(file, document, own_tokenizer, function)
        else:
            own_tokenizer, script = twin.tokenizer, twin.script
        faults = read_faults(file.faults, document.root / "faults")
        embeddings = build_embeddings(file.embeddings)
        loaded.append((says, LoadedScript(script, own_tokenizer, settings, name, embeddings, faults)))
    return [script for _, script in loaded]


def load_script(source: Source, *, tokenizer: str | None = None) -> LoadedScript:
    """The first model of a source; arguments and errors as for `load_models`."""
    return load_models(source, tokenizer=tokenizer)[0]


def _says(document: Document, settings: dict[str, Any]) -> dict[str, Any]:
    """What makes a script: every key that is no setting, and the tokenizer."""
    keys = {key: value for key, value in document.data.items() if key not in Settings.model_fields}
    return {**keys, "tokenizer": settings.get("tokenizer")}


def _source_name(source: Source) -> str:
    if source is None:
        return "demo"
    if isinstance(source, Document):
        return source.name
    if isinstance(source, Mapping):
        return "mapping"
    if callable(source):
        return f"{getattr(source, '__module__', '?')}:{getattr(source, '__qualname__', type(source).__qualname__)}"
    return os.fspath(source)


def _read_source(source: Source, name: str) -> Document:
    """Every kind of source as a document of the same schema."""
    if source is None:
        return read_document(DEMO_FILE, name)
    if isinstance(source, Document):
        return source
    if isinstance(source, Mapping):
        return _document("", dict(source))
    if callable(source):
        return _document("", {"callable": name})
    suffix = Path(name).suffix.lower()
    if suffix in (".yaml", ".yml", ".json"):
        return read_document(Path(name), name)
    if suffix == ".npz":
        return _document(name, {"bigram": name})
    if ":" in name:
        return _document(name, {"callable": name})
    raise ScriptError(f"{name!r} is no script: give a .yaml, .yml, .json or .npz file, or module:function")


def _document(name: str, data: dict[str, Any]) -> Document:
    return Document(name, data, Path.cwd())


def _settings(file: ScriptFile, document: Document) -> dict[str, Any]:
    settings = {key: document.data[key] for key in Settings.model_fields if key in document.data}
    if file.tokenizer != BUILTIN:
        settings["tokenizer"] = str((document.directory / Path(file.tokenizer).expanduser()).resolve())
    if file.chat_template and not any(character in file.chat_template for character in "{}\n"):
        settings["chat_template"] = str(document.directory / Path(file.chat_template).expanduser())
    if file.cassette:
        settings["cassette"] = str(document.directory / Path(file.cassette).expanduser())
    if file.logits_processors:
        settings["logits_processors"] = [
            str(document.directory / name) if ".py:" in name else name for name in file.logits_processors
        ]
    return settings


def _load_tokenizer(
    file: ScriptFile, document: Document, settings: dict[str, Any], override: str | None
) -> HFTokenizer:
    name = settings.get("tokenizer", BUILTIN) if override is None else override
    try:
        tokenizer = load_tokenizer(name)
    except TokenizerError as error:
        if override is not None:
            raise
        raise (document.root / "tokenizer").error(error) from None
    try:
        return tokenizer.with_vocab(file.vocab) if file.vocab else tokenizer
    except TokenizerError as error:
        raise (document.root / "vocab").error(error) from None
