"""A file of several models, taken apart into one document a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stubserver.keys.document import Document, Place

SOURCE_KEYS = ("rules", "default", "bigram", "callable")
"""What a model says: a model that has one of them of its own has none of the file's."""

SERVER_KEYS = (
    *("host", "port", "api_key", "enable_scale_out", "workers", "faults", "journal", "journal_size", "control"),
    "enable_request_id_headers",
    *("cassette", "cassette_on_miss", "cassette_repeat", "cassette_pace", "cassette_ignore", "cassette_redact"),
    *("cassette_convert", "record_mode", "upstream", "models"),
    *("root_path", "allowed_origins", "allowed_methods", "allowed_headers", "allow_credentials"),
    *("enable_request_id_headers", "disable_fastapi_docs", "embeddings_endpoint", "enable_tokenizer_info_endpoint"),
)
"""What there is only one of, however many models are served."""


def split_models(document: Document) -> list[Document]:
    """A document a model: the file's other keys with the model's own on top; the document itself without `models`.

    Raises ScriptError for entries that can't be a model.
    """
    if not isinstance(document.data, Mapping) or document.data.get("models") is None:
        return [document]
    entries, place = document.data["models"], document.root / "models"
    if not isinstance(entries, list) or not entries:
        raise place.error("has to be a list with at least one model")
    documents = [_model(document, entry, place / index) for index, entry in enumerate(entries)]
    _check_names(documents)
    return documents


def _model(document: Document, entry: Any, place: Place) -> Document:
    if not isinstance(entry, Mapping):
        raise place.error("has to be a mapping of keys to values")
    for key in SERVER_KEYS:
        if key in entry:
            raise (place / key).error("goes at the top of the file: all models are served by one server")
    if "served_model_name" not in entry:
        raise place.error("needs a served_model_name of its own")
    own_source = any(key in entry for key in SOURCE_KEYS)
    dropped = {"models", *(SOURCE_KEYS if own_source else ())}
    shared = {key: value for key, value in document.data.items() if key not in dropped}
    moved = dict.fromkeys(entry, place.path)
    return Document(document.name, {**shared, **entry}, document.directory, document.lines, moved)


def _check_names(documents: list[Document]) -> None:
    seen: dict[str, int] = {}
    for index, document in enumerate(documents):
        names = document.data["served_model_name"]
        for name in [names] if isinstance(names, str) else names or []:
            if seen.setdefault(name, index) != index:
                place = document.root / "served_model_name"
                raise place.error(f"{name!r} is the name of another model already (models[{seen[name]}])")
