"""The words of vLLM 0.32.0 for constraints that a backend of its refuses or fails at.

Read in `sampling_params.py`, `v1/structured_output/` and recorded; an xgrammar or llguidance error's own words follow.
"""

from __future__ import annotations

from typing import Final

NOT_JSON: Final = "Invalid JSON grammar specification."
UNSUPPORTED_SCHEMA: Final = "The provided JSON schema contains features not supported by xgrammar."
BAD_REGEX: Final = "Failed to transform regex into a grammar: {error}"
BAD_CHOICES: Final = "Failed to transform choices into a grammar: {error}"
BAD_SCHEMA: Final = "Failed to transform json schema into a grammar: {error}"
BAD_GRAMMAR: Final = "Invalid grammar specification."
NO_TRIGGER: Final = "Trigger {begin} not found in triggers {triggers}"
NO_TAGS: Final = "No structural tags found in the grammar spec."
BAD_STRUCTURAL_TAG: Final = "Invalid structural tag specification."
GUIDANCE_NOT_READ: Final = "Invalid grammar specification: {error}"
GUIDANCE_REFUSED: Final = "Grammar error: {error}"

NEITHER_TEXT_NOR_OBJECT: Final = "The schema should be a string or a Pydantic model."
XGRAMMAR_SAYS: Final = "[{time}] <path>:{line}: {words}"
"""What vLLM lets through of an xgrammar error: when, the line of a source whose path it hides, and what."""

XGRAMMAR_LINES: Final = {
    "Regex parsing error": 83,
    "EBNF parser error": 820,
    "EBNF lexer error": 106,
    "Cannot find field": 4950,
    "Integer exceeds": 936,
    "": 4944,
}
"""How an xgrammar error begins → the line that it names, in version 0.2.8; the last one is most schema errors'."""

ENGINE_FAILED: Final = "Internal server error"
"""All that a client is told when the engine fails: at compiling, or because no token was left."""

NO_OUTLINES: Final = (
    "vLLM would give this schema to its backend outlines, because of patternProperties; stubserver doesn't have it"
)
GAVE_UP: Final = (
    "stubserver's imitation of xgrammar can't follow this constraint: {error}; with the package xgrammar 0.2.8 it can "
    "(docs/structured-outputs.md)"
)
FORCED: Final = "token {token_id} can't come next in the request's grammar"
