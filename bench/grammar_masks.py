"""How often the imitation of xgrammar has its masks: `python bench/grammar_masks.py [constraints] [seed]`.

Needs xgrammar 0.2.8 (docs/structured-outputs.md). Constraints are made at random; each is followed twice, by random
tokens that xgrammar allows, for up to 16 tokens, and counts if both allow the same tokens at every step.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from stubserver.config.settings import StructuredOutputsConfig
from stubserver.engine.grammar.constraint import Constraint, Kind
from stubserver.engine.grammar.vocabulary import Vocabulary
from stubserver.engine.grammar.xgrammar import choices_as_ebnf, imitation, library
from stubserver.errors import RequestError
from stubserver.tokenizer.hf import load_tokenizer

FIXTURES = Path(__file__).parents[1] / "fixtures"
EOS, STEPS, WALKS = 0, 16, 2

WORDS = (
    *(
        "Yes",
        "No",
        "yes",
        "no",
        "A",
        "B",
        "C",
        "D",
        " positive",
        " negative",
        "neutral",
        "1",
        "2",
        "10",
        "true",
        "false",
    ),
    *(
        "maybe",
        "The sky is blue",
        "日本",
        "日",
        "😀",
        "é",
        'a"b',
        "a\\b",
        "\n",
        "answer: yes",
        "answer: no",
        " A",
        "word",
    ),
    *("word1", "not", "none", "good", "bad", ""),
)
KEYS = ("a", "b", "answer", "name", "n", "x y", "é", "id", "ab", "label")
PATTERNS = (
    *("^a+$", "[A-D]", "^(yes|no)$", r"\d{2,4}", r"[a-z]+\d?", r"^\w+$", "[^a]+", ".", "a|b|cd", "^[A-Z][a-z]*$"),
    *(r"\S+", "(ab)*c", r"[\w-]+", "x?y+z*", r"^\d{3}-\d{4}$", "(?:yes|no)!?", "[ -~]{1,5}", r"\.\/", "é+"),
)
ATOMS = (
    *("a", "b", "A", "B", "Yes", "No", "word", " ", r"\d", r"\w", r"\s", ".", "[a-z]", "[A-D]", "[0-9]", "[^a]", r"\W"),
    *(
        r"[^\d\s]",
        r"\D",
        r"\S",
        r"\.",
        r"\n",
        "é",
        "日",
        "[a-zA-Z_]",
        r"[\w.-]",
        r"\x41",
        r"\u00e9",
        r"\(",
        "[+-]",
        "-",
    ),
    *(",", ":", '"', r"[\]]", '[^"]', "/"),
)
FORMATS = (
    *("date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri", "uri-reference"),
    *("uri-template", "json-pointer", "relative-json-pointer", "email"),
)
TYPES = ("string", "integer", "null", "boolean", "number", "array", "object")


def choices(r: random.Random) -> list[str]:
    letters = 'abcABC 123"\\é😀\n.'
    made = ["".join(r.choices(letters, k=r.randint(1, 8))) for _ in range(2)]
    return [r.choice((*WORDS, *made)) for _ in range(r.randint(1, 6))]


def regex(r: random.Random, depth: int = 0) -> str:
    kind = r.random()
    if depth > 3 or kind < 0.3:
        return r.choice(ATOMS if depth else PATTERNS + ATOMS)
    if kind < 0.55:
        return "".join(regex(r, depth + 1) for _ in range(r.randint(2, 3)))
    if kind < 0.7:
        return "(" + r.choice(("", "?:")) + "|".join(regex(r, depth + 1) for _ in range(r.randint(2, 3))) + ")"
    inner = regex(r, depth + 1)
    return (inner if len(inner) == 1 else f"({inner})") + r.choice(
        ("*", "+", "?", "{2}", "{1,3}", "{2,}", "*?", "{0,2}")
    )


def schema(r: random.Random, depth: int = 0) -> dict[str, Any]:
    simple = [lambda: value_schema(r), lambda: string_schema(r), lambda: number_schema(r), lambda: bare_schema(r)]
    nested = [lambda: several_schemas(r, depth), lambda: array_schema(r, depth), lambda: object_schema(r, depth)]
    return r.choice(simple if depth > 2 else simple + nested + nested)()


def value_schema(r: random.Random) -> dict[str, Any]:
    values = (*WORDS, 1, 2.5, None, True, [1], {"a": 1}, -3, {"k": [1, "x"]})
    return {"const": r.choice(values)} if r.random() < 0.4 else {"enum": r.choices(values, k=r.randint(1, 4))}


def string_schema(r: random.Random) -> dict[str, Any]:
    low = r.randint(0, 4)
    more: tuple[dict[str, Any], ...] = (
        *({}, {"pattern": r.choice(PATTERNS)}, {"format": r.choice(FORMATS)}, {"minLength": low}),
        *({"minLength": low, "maxLength": low + r.randint(0, 4)}, {"description": "d"}),
    )
    return {"type": "string", **r.choice(more)}


def number_schema(r: random.Random) -> dict[str, Any]:
    kind = r.choice(("integer", "number"))
    low = r.choice((0, 1, -5, 10, 100, -100, 3, 18, 0.5, -0.25, 1.75))
    high = low + r.choice((0, 1, 5, 9, 90, 99.5, 1000, 0.25))
    if kind == "integer":
        low, high = int(low), int(high)
    bounds = ((r.choice(("minimum", "exclusiveMinimum")), low), (r.choice(("maximum", "exclusiveMaximum")), high))
    return {"type": kind, **{key: bound for key, bound in bounds if r.random() < 0.6}}


def bare_schema(r: random.Random) -> dict[str, Any]:
    return r.choice(({}, {"type": r.choice(TYPES)}, {"type": r.sample(TYPES, r.randint(1, 3))}))


def several_schemas(r: random.Random, depth: int) -> dict[str, Any]:
    if r.random() < 0.2:
        return {"allOf": [schema(r, depth + 1)]}
    return {r.choice(("anyOf", "oneOf")): [schema(r, depth + 1) for _ in range(r.randint(1, 3))]}


def array_schema(r: random.Random, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "array"}
    if r.random() < 0.25:
        made["prefixItems"] = [schema(r, depth + 1) for _ in range(r.randint(1, 2))]
    if r.random() < 0.85:
        made["items"] = schema(r, depth + 1) if r.random() < 0.9 else r.choice((True, False))
    if r.random() < 0.4:
        made["minItems"] = r.randint(0, 3)
    if r.random() < 0.4:
        made["maxItems"] = made.get("minItems", 0) + r.randint(0, 3)
    return made


def object_schema(r: random.Random, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "object"}
    if r.random() < 0.85:
        keys = r.sample(KEYS, r.randint(0, 4))
        made["properties"] = {key: schema(r, depth + 1) for key in keys}
        made["required"] = [key for key in keys if r.random() < 0.5]
    elif r.random() < 0.5:
        made["propertyNames"] = r.choice(({"pattern": r.choice(PATTERNS)}, {"maxLength": 4}, {"enum": ["a", "b"]}))
    elif r.random() < 0.5:
        made["patternProperties"] = {r.choice(PATTERNS): schema(r, depth + 1)}
    if r.random() < 0.4:
        made["additionalProperties"] = r.choice((True, False, {}, schema(r, depth + 1)))
    if r.random() < 0.1:
        made["minProperties"] = r.randint(0, 2)
    if r.random() < 0.1:
        made["maxProperties"] = made.get("minProperties", 0) + r.randint(0, 2)
    if depth == 0 and "properties" in made and r.random() < 0.1:
        made["$defs"] = {"n": schema(r, 1)}
        made["properties"]["ref"] = {"$ref": r.choice(("#/$defs/n", "#"))}
    return made


def ebnf(r: random.Random) -> str:
    names = ("root", "a", "b", "expr")[: r.randint(1, 4)]
    plain = [word for word in WORDS if word.isascii()]

    def element(depth: int) -> str:
        kind = r.random()
        if kind < 0.35 or depth > 2:
            return json.dumps(r.choice(plain))
        if kind < 0.55:
            return r.choice(("[a-z]", "[0-9]", '[^"]', "[A-D]", r"[ \n\t]", "[a-zA-Z_]", "[+*/-]"))
        return r.choice(names[1:] or ('"x"',)) if kind < 0.75 else f"({options(depth + 1)})"

    def options(depth: int) -> str:
        times = ("", "", "", "*", "+", "?", "{2}", "{1,3}")
        sequences = ([element(depth) + r.choice(times) for _ in range(r.randint(1, 3))] for _ in range(r.randint(1, 3)))
        return " | ".join(" ".join(sequence) for sequence in sequences)

    nested = {name: f'"(" {name} ")" | "x"' for name in names}
    return "\n".join(f"{name} ::= {nested[name] if r.random() < 0.3 else options(0)}" for name in names)


def constraint(r: random.Random) -> Constraint:
    kind = r.choices(("choice", "regex", "json", "compact", "ebnf"), (20, 30, 35, 5, 10))[0]
    made: dict[str, tuple[Kind, str]] = {
        "choice": ("grammar", choices_as_ebnf(choices(r))),
        "regex": ("regex", regex(r)),
        "ebnf": ("grammar", ebnf(r)),
    }
    config = StructuredOutputsConfig(backend="xgrammar", disable_any_whitespace=kind == "compact")
    found = made[kind] if kind in made else ("json", json.dumps(schema(r)))
    return Constraint(*found, "xgrammar", config)


class Comparison:
    def __init__(self) -> None:
        self.vocabulary = Vocabulary(load_tokenizer(str(FIXTURES / "bigram512")), 512)
        self.library = library.LibraryCompiler(self.vocabulary)
        self.imitation = imitation.ImitationCompiler(self.vocabulary)

    def difference(self, made: Constraint, r: random.Random) -> str:
        """ "" if both refuse it, or allow the same; else what differs first."""
        refusals = [self.refuses(parse, made) for parse in (library.parse, imitation.parse)]
        if any(refusals):
            return "" if all(refusals) else f"refused: {refusals}"
        for _ in range(WALKS):
            try:
                found = self.walk(made, r)
            except RequestError as error:
                return error.message
            if found:
                return found
        return ""

    def refuses(self, parse: Any, made: Constraint) -> bool:
        try:
            parse(made.kind, made.spec)
        except Exception:
            return True
        return False

    def walk(self, made: Constraint, r: random.Random) -> str:
        real, ours = (each.matcher(made, [EOS]) for each in (self.library, self.imitation))
        text = b""
        for _ in range(STEPS):
            allowed, own = (
                {*range(512)} if ids is None else {*ids.tolist()} for ids in (real.allowed(), ours.allowed())
            )
            if allowed != own:
                names = [[self.vocabulary.tokens[i] for i in sorted(ids)[:5]] for ids in (allowed - own, own - allowed)]
                return f"after {text!r}: only xgrammar {names[0]}, only the imitation {names[1]}"
            going_on = sorted(allowed - {EOS})
            if not going_on:
                break
            token_id = r.choice(going_on)
            if not (real.accept(token_id) and ours.accept(token_id)):
                return f"after {text!r}: token {token_id} isn't accepted"
            text += self.vocabulary.tokens[token_id]
        return ""


def main(count: int = 3000, seed: int = 0) -> None:
    r, comparison, found = random.Random(seed), Comparison(), Counter[str]()
    for _ in range(count):
        made = constraint(r)
        problem = comparison.difference(made, r)
        found["same" if not problem else "byte ED" if "\\xed" in problem.partition(": only")[0][-6:] else "other"] += 1
        if problem:
            print(f"{made.kind} {made.spec}\n    {problem}")
    print(f"{count} constraints: {dict(found)}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
