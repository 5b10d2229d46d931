"""A document as a script file."""

from __future__ import annotations

from stubserver.keys.check import check_data
from stubserver.keys.document import Document
from stubserver.script.file.schema import ScriptFile


def check_document(document: Document) -> ScriptFile:
    """The document as a ScriptFile. Raises ScriptError with the place of the first thing that is wrong."""
    if document.data is None:
        raise document.root.error("is empty; it needs rules, bigram or callable")
    return check_data(document, ScriptFile.model_validate)
