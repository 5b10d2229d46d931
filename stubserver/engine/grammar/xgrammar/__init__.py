"""The backend xgrammar: the library where version 0.2.8 of it is installed, and otherwise an imitation by llguidance.

bindings     the library's compiled part, loaded without the torch that its Python part imports
library      checks and masks by the library: exact
imitation    checks and masks without it
  language     regular expressions and rules, as objects
  regex, ebnf, json_schema, numbers, formats     a constraint → a language, as xgrammar reads it
  structural_tag     free text with tagged parts: by the library alone
  lark         a language → a grammar of llguidance that forces no token
"""

from __future__ import annotations

import json
import re
from time import strftime
from typing import Any

from stubserver.config.settings import StructuredOutputsConfig
from stubserver.engine.grammar import words
from stubserver.engine.grammar.constraint import Compiler, Constraint, Kind
from stubserver.engine.grammar.features import xgrammar_lacks
from stubserver.engine.grammar.guidance import as_text
from stubserver.engine.grammar.vocabulary import Vocabulary
from stubserver.engine.grammar.xgrammar import imitation, library
from stubserver.engine.grammar.xgrammar.bindings import load_bindings
from stubserver.engine.grammar.xgrammar.language import LanguageError
from stubserver.errors import UnsupportedError, ValidationError


def checked(kind: Kind, value: Any, config: StructuredOutputsConfig) -> Constraint:
    """What the engine gets if xgrammar accepts it: choices as a grammar. Raises ValidationError with its words.

    Source: vLLM 0.32.0, `validate_xgrammar_grammar`. What is empty isn't looked at.
    """
    text = as_text(value)
    match kind:
        case "regex" if text:
            _parse("regex", text, words.BAD_REGEX)
        case "choice":
            text = choices_as_ebnf(value)
            _parse("grammar", text, words.BAD_CHOICES)
            kind = "grammar"
        case "json" if value:
            _parse("json", _checked_schema(value), words.BAD_SCHEMA)
        case "grammar":
            _parse("grammar", text, words.BAD_GRAMMAR)
        case "structural_tag" if text:
            check_structural_tag(text)
        case _:
            pass
    return Constraint(kind, text, "xgrammar", config)


def compiler(vocabulary: Vocabulary) -> Compiler:
    """Whichever there is: the library, or its imitation."""
    return library.LibraryCompiler(vocabulary) if load_bindings() else imitation.ImitationCompiler(vocabulary)


def choices_as_ebnf(choices: list[str]) -> str:
    """`["A", "B"]` → `root ::= "A" | "B"`."""
    return "root ::= " + " | ".join(f'"{"".join(map(_escape, choice))}"' for choice in choices)


def check_structural_tag(text: str) -> None:
    """Refuse what is no structural tag. Raises ValidationError."""
    _parse("structural_tag", text, words.BAD_STRUCTURAL_TAG)


def _parse(kind: Kind, text: str, refusal: str) -> None:
    parse = library.parse if load_bindings() else imitation.parse
    try:
        parse(kind, text)
    except UnsupportedError:
        raise
    except LanguageError as error:
        raise ValidationError(refusal.format(error=_as_xgrammar_says(str(error)))) from error
    except Exception as error:
        raise ValidationError(refusal.format(error=_SOURCE.sub("<path>", str(error)).strip())) from error


_SOURCE = re.compile(r"/\S+\.cc")


def _as_xgrammar_says(problem: str) -> str:
    line = next(line for start, line in words.XGRAMMAR_LINES.items() if problem.startswith(start))
    return words.XGRAMMAR_SAYS.format(time=strftime("%H:%M:%S"), line=line, words=problem)


def _checked_schema(value: Any) -> str:
    """The schema as the text that xgrammar is asked about. Raises ValidationError for what it wouldn't be asked."""
    try:
        schema = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValidationError(words.NOT_JSON) from error
    if xgrammar_lacks(schema):
        raise ValidationError(words.UNSUPPORTED_SCHEMA)
    if not isinstance(schema, dict | str):
        raise ValidationError(words.BAD_SCHEMA.format(error=words.NEITHER_TEXT_NOR_OBJECT))
    return schema if isinstance(schema, str) else json.dumps(schema)


_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escape(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    return f"\\u{ord(char):04x}" if ord(char) < 0x20 or ord(char) == 0x7F else char
