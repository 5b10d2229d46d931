"""JSON schemas as xgrammar 0.2.8 reads them.

Properties come in the order in which they are listed; those that aren't required may be left out. Nothing else may be
in an object or an array unless the schema says so (`additionalProperties`, `items`), or says nothing but its type. Keys
that aren't known aren't looked at.

Found by asking xgrammar for the grammars that it makes of schemas.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from stubserver.engine.grammar.xgrammar.formats import format_language
from stubserver.engine.grammar.xgrammar.language import (
    EMPTY,
    Language,
    LanguageError,
    Node,
    Ref,
    Token,
    alt,
    any_number,
    chars,
    one_of,
    optional,
    repeat,
    seq,
    text,
)
from stubserver.engine.grammar.xgrammar.numbers import NUMBER, integer_language, number_language
from stubserver.engine.grammar.xgrammar.regex import JSON_SAFE, pattern_language

Schema = Mapping[str, Any]

_QUOTE: Final = text('"')
_HEX: Final = one_of("0123456789ABCDEFabcdef")
_ESCAPE: Final = seq(text("\\"), alt(one_of('"\\/bfnrt'), seq(text("u"), repeat(_HEX, 4, 4))))
_STRING_END: Final = seq(any_number(alt(JSON_SAFE, _ESCAPE)), _QUOTE)
_OF_LENGTH: Final = chars([(ord(char), ord(char)) for char in '"\\\r\n'], negated=True)
"""A character of a string with a length; not an escape, but control characters that JSON forbids."""

_WHITESPACE: Final = any_number(one_of(" \n\t\r"))

_NOTES: Final = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$schema", "$comment")
)
"""Keys that say nothing of values: without others, a schema is what its type is."""

_OF_OBJECTS: Final = ("properties", "additionalProperties", "unevaluatedProperties")
_OF_ARRAYS: Final = ("items", "prefixItems", "unevaluatedItems")


def schema_language(schema: Any, *, compact: bool) -> Language:
    """The texts of a schema; compact: without whitespace. Raises LanguageError in xgrammar's words."""
    return _Converter(schema, compact=compact).convert()


class _Converter:
    """Converts one schema: each object or array with elements of its own becomes what its keys say."""

    def __init__(self, schema: Any, *, compact: bool) -> None:
        self._schema = schema
        self._space: Node = EMPTY if compact else Token(_WHITESPACE)
        self._comma = seq(self._space, _sign(","), self._space)
        self._colon = seq(self._space, _sign(":"), self._space)
        # Version 0.2.8 puts a space there even where none is wanted.
        self._comma_of_any = seq(_sign(","), _sign(" ")) if compact else self._comma
        self._rules: dict[str, Node] = {}

    def convert(self) -> Language:
        """All rules."""
        self._rules["array"] = self._list_of("[", Ref("any"), "]", self._comma_of_any)
        self._rules["object"] = self._list_of("{", self._member(_STRING, Ref("any")), "}", self._comma_of_any)
        self._rules["any"] = alt(Token(NUMBER), _STRING, _BOOLEAN, _NULL, Ref("array"), Ref("object"))
        self._rules["root"] = self._of(self._schema)
        return Language(self._rules)

    def _list_of(self, opening: str, item: Node, closing: str, comma: Node) -> Node:
        items = optional(seq(self._space, item, any_number(seq(comma, item))))
        return seq(_sign(opening), items, self._space, _sign(closing))

    def _member(self, key: Node, value: Node) -> Node:
        return seq(key, self._colon, value)

    def _of(self, schema: Any) -> Node:
        """The texts of a part. Of several keys that say what it is, the first of these counts."""
        if schema is True:
            return Ref("any")
        if schema is False:
            raise LanguageError("Schema 'false' cannot accept any value")
        if not isinstance(schema, Mapping):
            raise LanguageError("Schema should be an object or a boolean")
        for key, convert in _BY_KEY.items():
            if key in schema:
                return convert(self, schema)
        if any(key in schema for key in _OF_OBJECTS):
            return self._object(schema)
        if any(key in schema for key in _OF_ARRAYS):
            return self._array(schema)
        return Ref("any")

    def _ref(self, schema: Schema) -> Node:
        target = schema["$ref"]
        if not isinstance(target, str):
            raise LanguageError("$ref must be a string")
        if target == "#":
            return Ref("root")
        if not target.startswith("#/"):
            return Ref("any")
        if target not in self._rules:
            found: Any = self._schema
            for name in target[2:].split("/"):
                if not isinstance(found, Mapping) or name not in found:
                    raise LanguageError(f"Cannot find field {name} in {target}")
                found = found[name]
            self._rules[target] = EMPTY  # for references to it from within
            node = self._of(found)
            del self._rules[target]
            self._rules[target] = node  # after those that it refers to
        return Ref(target)

    def _const(self, schema: Schema) -> Node:
        return _value(schema["const"])

    def _enum(self, schema: Schema) -> Node:
        values = _list(schema, "enum")
        if not values:
            raise LanguageError("enum array must not be empty")
        return alt(*map(_value, values))

    def _any_of(self, schema: Schema) -> Node:
        options = _list(schema, "anyOf" if "anyOf" in schema else "oneOf")
        return alt(*map(self._of, options)) if options else EMPTY

    def _all_of(self, schema: Schema) -> Node:
        parts = _list(schema, "allOf")
        if len(parts) != 1:
            return Ref("any")
        # With a key more: a schema that says nothing but its type doesn't mean everything of it here.
        only = parts[0]
        return self._of({**only, "not bare": True} if isinstance(only, Mapping) and _is_of_one_type(only) else only)

    def _typed(self, schema: Schema) -> Node:
        given = schema["type"]
        if isinstance(given, list):
            return alt(*(self._typed({**schema, "type": each}) for each in given)) if given else Ref("any")
        if not isinstance(given, str):
            raise LanguageError("Type should be a string")
        if given not in _BY_TYPE:
            raise LanguageError(f'Unsupported type "{given}"')
        return _BY_TYPE[given](self, schema)

    def _string(self, schema: Schema) -> Node:
        known = format_language(schema["format"]) if isinstance(schema.get("format"), str) else None
        low, high = _count(schema, "minLength") or 0, _count(schema, "maxLength")
        if high is not None and low > high:
            raise LanguageError(f"minLength {low} is greater than maxLength {high}")
        if known is not None:
            return Token(seq(_QUOTE, known, _QUOTE))
        if "pattern" in schema:
            return Token(seq(_QUOTE, pattern_language(schema["pattern"]), _QUOTE))
        if low or high is not None:
            return Token(seq(_QUOTE, repeat(_OF_LENGTH, low, high), _QUOTE))
        return _STRING

    def _array(self, schema: Schema) -> Node:
        if schema.keys() - _NOTES <= {"type"}:
            return Ref("array")
        prefix = [self._of(item) for item in _list(schema, "prefixItems")]
        item = self._others(schema, "items", "unevaluatedItems")
        low, high = max(_count(schema, "minItems") or 0, 0), _count(schema, "maxItems")
        if high is not None and low > high:
            raise LanguageError(f"minItems is greater than maxItems: {low} > {high}")
        if high is not None and high < len(prefix):
            raise LanguageError(f"maxItems is less than the number of prefixItems: {high} < {len(prefix)}")
        if item is None and low > len(prefix):
            raise LanguageError(
                "minItems is greater than the number of prefixItems, but additional items are not allowed: "
                f"{low} > {len(prefix)}"
            )
        return seq(_sign("["), self._items(prefix, item, low, high), self._space, _sign("]"))

    def _items(self, prefix: Sequence[Node], item: Node | None, low: int, high: int | None) -> Node:
        """Between the brackets: each item of the prefix may be the last one, from the lowest count on."""
        if not prefix:
            return self._several(item, low, high)
        rest: Node = EMPTY
        if item is not None:
            most = None if high is None else high - len(prefix)
            rest = repeat(seq(self._comma, item), max(low - len(prefix), 0), most)
        for number, own in reversed(list(enumerate(prefix))):
            one = seq(self._comma if number else self._space, own, rest)
            rest = one if number < low else optional(one)
        return rest

    def _several(self, item: Node | None, low: int, high: int | None) -> Node:
        """Items with commas between them, from the opening on."""
        if item is None or high == 0:
            return EMPTY
        more = repeat(seq(self._comma, item), max(low - 1, 0), None if high is None else high - 1)
        items = seq(self._space, item, more)
        return items if low else optional(items)

    def _others(self, schema: Schema, *keys: str) -> Node | None:
        """What else may be in an array or an object: by the first of these keys that is there; None: nothing."""
        for key in keys:
            if key in schema:
                if not isinstance(schema[key], bool | Mapping):
                    raise LanguageError(f"{key} must be a boolean or an object")
                return None if schema[key] is False else self.shared(self._of(schema[key]))
        return None

    def _object(self, schema: Schema) -> Node:
        if schema.keys() - _NOTES <= {"type"}:
            return Ref("object")
        properties = schema.get("properties", {})
        if not isinstance(properties, Mapping):
            raise LanguageError("properties must be an object")
        others = self._others(schema, "additionalProperties", "unevaluatedProperties")
        required = set(_list(schema, "required"))
        low, high = _count(schema, "minProperties") or 0, _count(schema, "maxProperties")
        if low < 0 or (high is not None and high < 0):
            raise LanguageError("maxProperties must be a non-negative integer")
        if high is not None and low > high:
            raise LanguageError(f"minProperties is greater than maxProperties: {low} > {high}")
        member = self._other_members(schema, properties, others)
        members = None if member is None else self.shared(member)
        if members is None and low > len(properties):
            raise LanguageError(
                "minProperties is greater than the number of properties, but additional properties aren't allowed: "
                f"{low} > {len(properties)}"
            )
        if high is not None and high < len(required):
            raise LanguageError(
                f"maxProperties is less than the number of required properties: {high} < {len(required)}"
            )
        if not properties:
            inner = self._several(members, low, high)
        else:
            inner = _Members(self, properties, required, members, low, high).nodes()
            inner = optional(inner) if not required and not low else inner
        return seq(_sign("{"), inner, self._space, _sign("}"))

    def _other_members(self, schema: Schema, properties: Schema, others: Node | None) -> Node | None:
        """A member that `properties` doesn't list; None if there may be none."""
        patterns, names = schema.get("patternProperties"), schema.get("propertyNames")
        if isinstance(patterns, Mapping) and patterns:
            keys = {key: Token(seq(_QUOTE, pattern_language(key), _QUOTE)) for key in patterns}
            return alt(*(self._member(keys[key], self._of(value)) for key, value in patterns.items()))
        if names is not None and not isinstance(names, Mapping):
            raise LanguageError("propertyNames must be an object")
        if names is not None and not properties:
            key = self._of({"type": "string", **names})
            return self._member(key, Ref("any") if others is None else others)
        if others is None:
            return None
        return self._member(_other_keys(list(properties)) if properties else _STRING, others)

    def member(self, name: str, schema: Any) -> Node:
        """A member by its name."""
        return self._member(_value(name), self._of(schema))

    def shared(self, node: Node) -> Node:
        """The node as a rule, for one that many refer to."""
        name = f"shared {len(self._rules)}"
        self._rules[name] = node
        return Ref(name)

    def opening(self, *, first: bool) -> Node:
        """What comes before a member."""
        return self._space if first else self._comma


class _Members:
    """The members of an object that lists properties: in their order, then others, so and so many in all."""

    def __init__(
        self,
        converter: _Converter,
        properties: Schema,
        required: set[str],
        others: Node | None,
        low: int,
        high: int | None,
    ) -> None:
        self._converter = converter
        self._names = list(properties)
        self._required = required
        self._others = others
        self._low = low
        self._high = high
        self._members = [converter.shared(converter.member(name, schema)) for name, schema in properties.items()]
        self._counts = bool(low) or high is not None
        self._made: dict[tuple[int, int], Node | None] = {}

    def nodes(self) -> Node:
        """At least one member."""
        for index in reversed(range(len(self._names) + 1)):
            for count in range(index + 1) if self._counts else (0, 1):
                options = [*self._taken(index, count), *self._left_out(index, count)]
                self._made[index, count] = self._converter.shared(alt(*options)) if options else None
        return self._from(0, 0) or EMPTY

    def _from(self, index: int, count: int) -> Node | None:
        """What may follow before the property `index` after `count` members; None if nothing can. 1 is any number."""
        return self._made[index, count if self._counts else min(count, 1)]

    def _taken(self, index: int, count: int) -> list[Node]:
        if index == len(self._names):
            return self._end(count)
        if self._high is not None and count >= self._high:
            return []
        rest = self._from(index + 1, count + 1)
        if rest is None:
            return []
        opening = self._converter.opening(first=count == 0)
        return [seq(opening, self._members[index], rest)]

    def _left_out(self, index: int, count: int) -> list[Node]:
        if index == len(self._names) or self._names[index] in self._required:
            return []
        rest = self._from(index + 1, count)
        return [] if rest is None else [rest]

    def _end(self, count: int) -> list[Node]:
        """After the listed properties."""
        low = max(self._low - count, 0)
        high = None if self._high is None else self._high - count
        if self._others is None:
            return [] if low or not count else [EMPTY]
        more = seq(self._converter.opening(first=False), self._others)
        if count:
            return [EMPTY if high == 0 else repeat(more, low, high)]
        if high == 0 or self._required:
            return []
        first = seq(self._converter.opening(first=True), self._others)
        return [seq(first, repeat(more, max(low - 1, 0), None if high is None else high - 1))]


_STRING: Final = Token(seq(_QUOTE, _STRING_END))
_BOOLEAN: Final = alt(Token(text("true")), Token(text("false")))
_NULL: Final = Token(text("null"))

_BY_KEY: Final[dict[str, Callable[[_Converter, Schema], Node]]] = {
    "$ref": _Converter._ref,
    "const": _Converter._const,
    "enum": _Converter._enum,
    "anyOf": _Converter._any_of,
    "oneOf": _Converter._any_of,
    "allOf": _Converter._all_of,
    "type": _Converter._typed,
}
"""In this order."""

_BY_TYPE: Final[dict[str, Callable[[_Converter, Schema], Node]]] = {
    "string": _Converter._string,
    "integer": lambda _, schema: Token(integer_language(schema)),
    "number": lambda _, schema: Token(number_language(schema)),
    "boolean": lambda *_: _BOOLEAN,
    "null": lambda *_: _NULL,
    "array": _Converter._array,
    "object": _Converter._object,
}


def _other_keys(names: Sequence[str]) -> Node:
    """Strings that aren't spelled like one of these."""
    return Token(seq(_QUOTE, _none_of([json.dumps(name, ensure_ascii=False)[1:-1] for name in names])))


def _none_of(spellings: Sequence[str]) -> Node:
    """The rest of a string, closing quote included, that is none of these."""
    if not spellings:
        return _STRING_END
    starts = sorted({spelling[0] for spelling in spellings if spelling and spelling[0] != "\\"})
    other = chars(
        [*((ord(char), ord(char)) for char in '"\\' + "".join(starts)), (0, 0x1F)],
        negated=True,
    )
    options = [seq(other, _STRING_END), seq(_ESCAPE, _STRING_END)]
    for start in starts:
        inner = [spelling[1:] for spelling in spellings if spelling.startswith(start)]
        options.append(seq(text(start), _none_of(inner)))
    if "" not in spellings:
        options.append(_QUOTE)
    return alt(*options)


def _is_of_one_type(schema: Schema) -> bool:
    return isinstance(schema.get("type"), str)


def _sign(content: str) -> Node:
    return Token(text(content))


def _value(value: Any) -> Node:
    """A value as it is written, token by token."""
    match value:
        case list():
            items = [part for item in value for part in (_sign(","), _value(item))][1:]
            return seq(_sign("["), *items, _sign("]"))
        case dict():
            pairs = [
                part for key, item in value.items() for part in (_sign(","), _value(key), _sign(":"), _value(item))
            ]
            return seq(_sign("{"), *pairs[1:], _sign("}"))
        case _:
            return _sign(_written(value))


def _list(schema: Schema, key: str) -> list[Any]:
    found = schema.get(key, [])
    if not isinstance(found, list):
        raise LanguageError(f"{key} must be an array")
    return found


def _count(schema: Schema, key: str) -> int | None:
    found = schema.get(key)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int):
        raise LanguageError(f"{key} must be an integer")
    return found


def _written(value: Any) -> str:
    """A text, a number, … as xgrammar writes JSON: floats with 17 digits, 0x7f as an escape."""
    match value:
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case bool() | None:
            return json.dumps(value)
        case int() if -(2**63) <= value < 2**63:
            return str(value)
        case _:
            return format(float(value), ".17g")
