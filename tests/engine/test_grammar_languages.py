"""A constraint as a language: what xgrammar reads, and the words with which it refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest

from stubserver.engine.grammar.xgrammar.ebnf import ebnf_language
from stubserver.engine.grammar.xgrammar.formats import FORMATS
from stubserver.engine.grammar.xgrammar.json_schema import schema_language
from stubserver.engine.grammar.xgrammar.language import (
    Alt,
    Chars,
    Language,
    LanguageError,
    Node,
    Ref,
    Repeat,
    Seq,
    Token,
)
from stubserver.engine.grammar.xgrammar.numbers import integer_language, number_language
from stubserver.engine.grammar.xgrammar.regex import pattern_language, regex_language


def as_pattern(node: Node, rules: dict[str, Node] | None = None, path: tuple[str, ...] = ()) -> str:
    """The language in Python's regular expressions; rules that lead back to themselves only three times."""
    match node:
        case Chars(ranges):
            inner = "".join(f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in ranges)
            return f"[{inner}]" if inner else "(?!)"
        case Seq(parts):
            return "".join(f"(?:{as_pattern(part, rules, path)})" for part in parts)
        case Alt(options):
            return "|".join(f"(?:{as_pattern(option, rules, path)})" for option in options) or "(?!)"
        case Repeat(inner_node, low, high):
            return f"(?:{as_pattern(inner_node, rules, path)}){{{low},{'' if high is None else high}}}"
        case Token(inner_node):
            return as_pattern(inner_node, rules, path)
        case Ref(name):
            return "(?!)" if path.count(name) > 2 else as_pattern((rules or {})[name], rules, (*path, name))


def matches(node: Node | Language, text: str) -> bool:
    if isinstance(node, Language):
        rules = dict(node.rules)
        return re.fullmatch(as_pattern(Ref(node.root), rules), text) is not None
    return re.fullmatch(as_pattern(node), text) is not None


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (r"\d", "7", "\u0667"),
        (r"\w+", "a_9", "é"),
        (r"\s", "\xa0", "\u2003"),
        (r".", "\n", ""),
        (r"^a$", "a", "^a$"),
        (r"a^b$c", "abc", "a^b$c"),
        (r"(?:a|b)*?", "abba", "c"),
        (r"(?<name>a)", "a", "b"),
        (r"\A\Z", "AZ", ""),
        (r"\x41a", "\u041a", "Aa"),
        (r"\u{1F600}", "\U0001f600", "u"),
        (r"\cJ", "\n", "J"),
        (r"[\w-z]", "`", "-"),
        (r"[a\-z]", "-", "b"),
        (r"[[:alpha:]]", ":]", "b"),
        (r"[^]", "]", ""),
        (r"a{2,}", "aaa", "a"),
        (r"", "", "a"),
        (r"}]", "}]", ""),
    ],
)
def test_regex(pattern: str, yes: str, no: str) -> None:
    assert matches(regex_language(pattern), yes)
    assert not matches(regex_language(pattern), no)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(?=a)", "position 3: Lookahead is not supported yet."),
        ("(?<=a)b", "position 3: Lookbehind is not supported yet."),
        ("(?i)a", "position 3: Group modifier flag is not supported yet."),
        ("(?P<x>a)", "position 3: Group modifier flag is not supported yet."),
        (r"\b", "Word boundary is not supported yet."),
        (r"\p{L}", "Unicode character class escape sequence is not supported yet."),
        (r"(a)\1", "Backreference is not supported yet."),
        ("a**", "position 3: Two consecutive repetition modifiers are not allowed."),
        ("(", "position 2: The parenthesis is not closed."),
        (")", "position 1: Unmatched ')'"),
        ("[", "position 2: Unclosed '['"),
        ("[]a]", "position 2: Empty character class is not allowed in regex."),
        ("a{,5}", "position 3: Invalid repetition count."),
        ("a{2,1}", "Lower bound is larger than upper bound: 2 > 1"),
        ("[z-a]", "lower bound is larger than upper bound"),
        ("*", "Expect element, but got *"),
        ("\\", "Escape sequence is not finished."),
    ],
)
def test_regex_refused(pattern: str, words: str) -> None:
    with pytest.raises(LanguageError, match=re.escape(words)):
        regex_language(pattern)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (".", "\x7f", "\n"),
        ("[^a]", "b", '"'),
        (r"\s", " ", "\t"),
        ("(?i)ab", "aB", "c"),
        ("(?P<x>a)", "a", "b"),
        ("(?=x)a", "a", "xa"),
        ("a**", "aa", "b"),
        (r"\n", "\n", "\\n"),  # nothing of it may stand in JSON: then all of it may
        ('a"', 'a"', "a"),
    ],
)
def test_pattern_of_a_schema(pattern: str, yes: str, no: str) -> None:
    assert matches(pattern_language(pattern), yes)
    assert not matches(pattern_language(pattern), no)


@pytest.mark.parametrize("low", [None, -120, -7, 0, 3, 99])
@pytest.mark.parametrize("high", [None, -5, 0, 8, 100, 1234])
def test_integers_between(low: int | None, high: int | None) -> None:
    schema = {key: value for key, value in (("minimum", low), ("maximum", high)) if value is not None}
    if low is not None and high is not None and low > high:
        with pytest.raises(LanguageError, match="Invalid range: minimum greater than maximum"):
            integer_language(schema)
        return
    pattern = re.compile(as_pattern(integer_language(schema)))
    inside = {n for n in range(-150, 1300) if (low is None or n >= low) and (high is None or n <= high)}
    assert {n for n in range(-150, 1300) if pattern.fullmatch(str(n))} == inside
    assert not pattern.fullmatch("00")
    assert not pattern.fullmatch("-0")


def test_exclusive_bounds() -> None:
    schema = {"exclusiveMinimum": 2, "exclusiveMaximum": 5}
    assert [n for n in range(9) if matches(integer_language(schema), str(n))] == [3, 4]
    assert not matches(number_language(schema), "2")
    assert not matches(number_language(schema), "2.0")
    assert matches(number_language(schema), "2.000001")
    assert not matches(number_language(schema), "5")


@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        ({}, ["0", "-0", "1.5e-7", "-12.25E+3"], ["01", ".5", "1.", "+1"]),
        ({"minimum": 0, "maximum": 1}, ["0", "0.0", "0.123456", "1", "1.000000"], ["1.1", "-0", "1e0", "0.1234567"]),
        ({"minimum": 0.5}, ["0.5", "0.50", "7", "12.25"], ["0.4", "0", "0.499999"]),
        ({"maximum": 1.5}, ["-3", "-0.0", "0", "1.5", "1.500000"], ["1.6", "2", "-0"]),
        ({"minimum": -0.5, "maximum": -0.25}, ["-0.5", "-0.3", "-0.25"], ["-0.6", "0.3", "-0.2", "-0.249999"]),
        ({"minimum": 10, "maximum": 20}, ["10", "19.999999", "20.0"], ["9.9", "20.1", "100"]),
    ],
)
def test_numbers_between(schema: dict[str, Any], yes: list[str], no: list[str]) -> None:
    pattern = re.compile(as_pattern(number_language(schema)))
    assert [text for text in yes if not pattern.fullmatch(text)] == []
    assert [text for text in no if pattern.fullmatch(text)] == []


def test_bounds_that_are_refused() -> None:
    with pytest.raises(LanguageError, match="must be a whole number"):
        integer_language({"minimum": 1.5})
    with pytest.raises(LanguageError, match="must be a number"):
        integer_language({"minimum": True})
    with pytest.raises(LanguageError, match="empty range"):
        number_language({"minimum": 5, "maximum": 3})


NULL, FLAG = {"type": "null"}, {"type": "boolean"}


@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        ({"properties": {}}, ["{}", "{ \n}"], ['{"a":null}']),
        ({"type": "object"}, ["{}", '{"a": [1]}'], ["[]"]),
        ({"type": "object", "title": "t"}, ['{"a":1}'], []),
        ({"type": "object", "$id": "t"}, ["{}"], ['{"a":1}']),
        ({"allOf": [{"type": "object"}]}, ["{}"], ['{"a":1}']),
        (
            {"properties": {"a": NULL, "b": FLAG}, "required": ["b"]},
            ['{"b":true}', '{ "a" : null , "b":false }'],
            ["{}", '{"a":null}', '{"b":true,"a":null}', '{"b":true,"c":1}'],
        ),
        (
            {"properties": {"a": NULL}, "additionalProperties": FLAG},
            ["{}", '{"a":null}', '{"a":null,"b":true}', '{"ab":true,"":false}', '{"\\u0061":true}'],
            ['{"a":true}', '{"b":true,"a":null}', '{"b":null}'],
        ),
        (
            {"properties": {"a": NULL, "b": NULL, "c": NULL}, "minProperties": 2},
            ['{"a":null,"c":null}', '{"a":null,"b":null,"c":null}'],
            ["{}", '{"b":null}'],
        ),
        ({"properties": {"a": NULL}, "maxProperties": 0}, ["{}"], ['{"a":null}']),
        ({"propertyNames": {"enum": ["a"]}, "type": "object"}, ["{}", '{"a":1,"a":2}'], ['{"b":1}']),
        ({"patternProperties": {"^a+$": NULL}, "type": "object"}, ["{}", '{"aa":null}'], ['{"b":null}', '{"a":1}']),
        ({"type": "array"}, ["[]", "[1, [2]]"], ["{}"]),
        ({"type": "array", "foo": 1}, ["[]"], ["[1]"]),
        ({"items": NULL, "minItems": 2}, ["[null,null]", "[null , null,null]"], ["[]", "[null]"]),
        ({"items": NULL, "maxItems": 1}, ["[]", "[null]"], ["[null,null]"]),
        ({"prefixItems": [NULL, FLAG]}, ["[]", "[null]", "[null,true]"], ["[true]", "[null,true,1]"]),
        ({"prefixItems": [NULL], "items": FLAG, "minItems": 1}, ["[null]", "[null,true,false]"], ["[]"]),
        ({"type": "string"}, ['"a\\n\\u00e9\x7f"', '""'], ['"\n"', '"\\x"']),
        ({"type": "string", "minLength": 1, "maxLength": 2}, ['"a"', '"\t\x01"'], ['""', '"\\n"', '"abc"']),
        ({"type": "string", "format": "unknown"}, ['"x"'], []),
        ({"enum": ["a", 1.0, 0.1, {"k": [None]}]}, ['"a"', "1", "0.10000000000000001", '{"k":[null]}'], ["1.0", "0.1"]),
        ({"const": "é\x7f/"}, ['"é\\u007f/"'], []),
        ({"type": ["null", "boolean"]}, ["null", "true"], ["1"]),
        ({"anyOf": [NULL, FLAG], "type": "string"}, ["null", "false"], ['"a"']),
        ({"not": {}}, ["1", '"a"', "{}"], []),
        ({"allOf": [NULL, FLAG]}, ["1"], []),
        ({"$ref": "#/$defs/n", "$defs": {"n": NULL}}, ["null"], ["1"]),
        ({"properties": {"n": {"$ref": "#"}}}, ["{}", '{"n":{"n":{}}}'], ['{"n":1}']),
    ],
    ids=str,
)
def test_schema(schema: dict[str, Any], yes: list[str], no: list[str]) -> None:
    language = schema_language(schema, compact=False)
    assert [text for text in yes if not matches(language, text)] == []
    assert [text for text in no if matches(language, text)] == []


def test_without_whitespace() -> None:
    """Of what the schema says nothing of, xgrammar 0.2.8 puts a space after each comma."""
    language = schema_language({"properties": {"a": NULL, "b": {}}}, compact=True)
    assert matches(language, '{"a":null,"b":[1, 2]}')
    assert not matches(language, '{"a":null, "b":[1,2]}')


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "nope"}, 'Unsupported type "nope"'),
        ({"$ref": "#/nowhere"}, "Cannot find field nowhere in #/nowhere"),
        ({"enum": []}, "enum array must not be empty"),
        (False, "Schema 'false' cannot accept any value"),
        ({"type": "array", "minItems": 1}, "but additional items are not allowed: 1 > 0"),
        ({"type": "object", "minProperties": 1}, "but additional properties aren't allowed: 1 > 0"),
        ({"type": "string", "minLength": 3, "maxLength": 1}, "minLength 3 is greater than maxLength 1"),
        ({"type": "array", "items": [NULL]}, "items must be a boolean or an object"),
    ],
)
def test_schema_refused(schema: Any, words: str) -> None:
    with pytest.raises(LanguageError, match=re.escape(words)):
        schema_language(schema, compact=False)


def test_formats() -> None:
    examples = {
        "date": "2024-02-31",
        "time": "23:59:60.5+02:00",
        "date-time": "2024-02-29T00:00:00Z",
        "duration": "P1Y2M3DT4H5M6S",
        "email": "a.b@example.com",
        "hostname": "a-b.example",
        "ipv4": "255.10.0.1",
        "ipv6": "::ffff:1.2.3.4",
        "json-pointer": "/a/~01",
        "relative-json-pointer": "1/a",
        "uri": "http://u@h:80/p?q#f",
        "uri-reference": "../a?b",
        "uri-template": "/{+a*,b:3}",
        "uuid": "123e4567-e89b-12d3-a456-426614174000",
    }
    assert examples.keys() == FORMATS.keys()
    for name, text in examples.items():
        assert matches(regex_language(FORMATS[name]), text), name
        assert not matches(regex_language(FORMATS[name]), text + "~\n"), name


@pytest.mark.parametrize(
    ("grammar", "yes", "no"),
    [
        ('root ::= "a" | b\nb ::= "c"', ["a", "c"], ["b"]),
        ('# x\nroot ::= [a-c]+ "\\x41"? # y\n', ["abc", "bA"], ["A"]),
        ('root ::= ("a" | "b"){2,3}\n  | ""', ["ab", "bab", ""], ["a"]),
        ('root ::= "(" root ")" | "x"', ["x", "((x))"], ["(x"]),
        ('root ::= [^"\\\\\\n] (="b")', ["a"], ['"', "\n"]),
        ('r-1 ::= "a"\nroot ::= r-1 r-1', ["aa"], ["a"]),
        ("root ::= ()", [""], ["a"]),
    ],
)
def test_ebnf(grammar: str, yes: list[str], no: list[str]) -> None:
    language = ebnf_language(grammar)
    assert [text for text in yes if not matches(language, text)] == []
    assert [text for text in no if matches(language, text)] == []


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ('start ::= "a"', 'root rule with name "root" is not found'),
        ("root ::= a", 'Rule "a" is not defined'),
        ("root ::= ", "Expect element"),
        ('root ::= "a" |', "Expect element"),
        ('root ::= "a"\nroot ::= "b"', 'Rule "root" is defined multiple times'),
        ("root ::= 'a'", "Unexpected character: '"),
        ('root ::= "\\q"', "Invalid escape sequence"),
        ('root ::= "a"{2,1}', "Lower bound is larger than upper bound: 2 > 1"),
        ("root ::= [z-a]", "lower bound is larger than upper bound"),
    ],
)
def test_ebnf_refused(grammar: str, words: str) -> None:
    with pytest.raises(LanguageError, match=re.escape(words)):
        ebnf_language(grammar)
