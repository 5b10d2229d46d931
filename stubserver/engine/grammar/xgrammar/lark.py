"""A language → a grammar of llguidance that forces no token.

A language in which no rule leads back to itself becomes one regular expression. Another one becomes rules over
expressions: over its tokens if it has any, and otherwise over single characters. llguidance reads an expression as far
as it goes before it looks at what follows, so no expression may be the beginning of another one that may stand there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from stubserver.engine.grammar.xgrammar.language import EMPTY, Alt, Chars, Language, Node, Ref, Repeat, Seq, Token

HEAD = '%llguidance {"no_forcing": true}'


def as_lark(language: Language) -> str:
    """The grammar's text. Raises LanguageError for a language without any text."""
    return _Writer(language).write()


class _Writer:
    def __init__(self, language: Language) -> None:
        self._rules = language.rules
        self._root = language.root
        below = {name: _references(node) for name, node in language.rules.items()}
        self._reached = _reached(below, [language.root])
        loops = {name for name in self._reached if name in _reached(below, below[name])}
        self._ruled = _ruled(language, loops) if loops else set()
        self._by_tokens = any(map(_has_token, language.rules.values()))
        self._numbers = {name: number for number, name in enumerate(language.rules)}
        self._nullable = _nullable(language)
        self._terminals: dict[str, str] = {}
        self._of_rules: dict[str, str] = {}

    def write(self) -> str:
        """All lines."""
        for name in self._rules:  # those that others refer to come first: no depth of them is too deep
            if name in self._reached and not self._is_rule(name):
                self._expression(Ref(name))
        start = self._rule(Ref(self._root))
        names = sorted(name for name in self._reached if self._is_rule(name))
        rules = [f"r{self._numbers[name]}: {self._rule(self._rules[name])}" for name in names]
        terminals = [f"{name}: {body}" for body, name in self._terminals.items()]
        return "\n".join([HEAD, f"start: {start}", *rules, *terminals]) + "\n"

    def _rule(self, node: Node) -> str:
        """A node as the body of a rule, in parentheses where it needs them."""
        if not self._is_composed(node):
            return self._terminal(node)
        match node:
            case Token(inner):
                return self._terminal(inner)
            case Ref(name):
                return f"r{self._numbers[name]}"
            case Seq(parts):
                return "(" + " ".join(self._stretches(parts)) + ")"
            case Alt(options):
                return "(" + " | ".join(map(self._rule, options)) + ")"
            case Repeat(inner, low, high):
                return f"({self._rule(inner)}){_times(low, high)}"
            case _:
                raise TypeError(node)

    def _stretches(self, parts: tuple[Node, ...]) -> Iterator[str]:
        stretch: list[Node] = []
        for part in parts:
            if self._is_composed(part) or not self._by_tokens:
                if stretch:
                    yield self._terminal(Seq(tuple(stretch)))
                stretch = []
                yield self._rule(part)
            else:
                stretch.append(part)
        if stretch:
            yield self._terminal(Seq(tuple(stretch)))

    def _terminal(self, node: Node) -> str:
        """The name of an expression; one that may be empty is optional, and not empty."""
        if node == EMPTY:
            return '""'
        body = self._expression(node)
        if not self._is_nullable(node):
            return self._name(body)
        return f"({self._name(f'({body}) & /(?s:.+)/')})?"

    def _name(self, body: str) -> str:
        return self._terminals.setdefault(body, f"T{len(self._terminals)}")

    def _expression(self, node: Node) -> str:
        """A node as the body of an expression. A rule is an expression of its own: many may refer to it."""
        if not _references(node):
            return f"/{_regex(node)}/"
        match node:
            case Ref(name):
                if name not in self._of_rules:
                    self._of_rules[name] = self._name(self._expression(self._rules[name]))
                return self._of_rules[name]
            case Seq(parts):
                return "(" + " ".join(map(self._expression, parts)) + ")"
            case Alt(options):
                return "(" + " | ".join(map(self._expression, options)) + ")"
            case Repeat(inner, low, high):
                return f"({self._expression(inner)}){_times(low, high)}"
            case Token(inner):
                return self._expression(inner)
            case _:
                raise TypeError(node)

    def _is_composed(self, node: Node) -> bool:
        """Whether a node becomes a rule, not an expression."""
        if not self._ruled:
            return False
        if not self._by_tokens:
            return not isinstance(node, Chars)
        return _has_token(node) or not self._ruled.isdisjoint(_references(node))

    def _is_rule(self, name: str) -> bool:
        return bool(self._ruled) and (not self._by_tokens or name in self._ruled)

    def _is_nullable(self, node: Node) -> bool:
        return _is_nullable(node, self._nullable)


def _regex(node: Node) -> str:
    """A node that refers to no rule, as a regular expression."""
    match node:
        case Chars(()):
            return r"[^\x{0}-\x{10ffff}]"
        case Chars(((first, last),)) if first == last and chr(first).isalnum() and first < 0x80:
            return chr(first)
        case Chars(ranges):
            return "[" + "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ranges) + "]"
        case Seq(parts):
            return "(?:" + "".join(map(_regex, parts)) + ")"
        case Alt(()):
            return r"[^\x{0}-\x{10ffff}]"
        case Alt(options):
            return "(?:" + "|".join(map(_regex, options)) + ")"
        case Repeat(inner, low, high):
            return f"(?:{_regex(inner)}){_times(low, high)}"
        case Token(inner):
            return _regex(inner)
        case Ref():
            raise TypeError(node)


def _times(low: int, high: int | None) -> str:
    match low, high:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
        case _:
            return f"{{{low},{'' if high is None else high}}}"


def _references(node: Node) -> set[str]:
    return {name for part in _parts(node) if isinstance(part, Ref) for name in (part.name,)}


def _has_token(node: Node) -> bool:
    return any(isinstance(part, Token) for part in _parts(node))


def _parts(node: Node) -> Iterator[Node]:
    """The node and all in it."""
    yield node
    match node:
        case Seq(children) | Alt(children):
            for child in children:
                yield from _parts(child)
        case Repeat(inner, _, _) | Token(inner):
            yield from _parts(inner)
        case _:
            pass


def _reached(below: Mapping[str, set[str]], start: Iterable[str]) -> set[str]:
    found: set[str] = set()
    left = list(start)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += below[name]
    return found


def _ruled(language: Language, loops: set[str]) -> set[str]:
    """Rules that loop or have tokens, and rules that lead to such: what can't be an expression."""
    found = loops | {name for name, node in language.rules.items() if _has_token(node)}
    while True:
        more = {name for name, node in language.rules.items() if not found.isdisjoint(_references(node))} - found
        if not more:
            return found
        found |= more


def _nullable(language: Language) -> set[str]:
    """Rules that the empty text is in."""
    found: set[str] = set()
    while True:
        more = {name for name, node in language.rules.items() if _is_nullable(node, found)}
        if more == found:
            return found
        found = more


def _is_nullable(node: Node, rules: set[str]) -> bool:
    match node:
        case Ref(name):
            return name in rules
        case Seq(parts):
            return all(_is_nullable(part, rules) for part in parts)
        case Alt(options):
            return any(_is_nullable(option, rules) for option in options)
        case Repeat(inner, low, _):
            return low == 0 or _is_nullable(inner, rules)
        case Token(inner):
            return _is_nullable(inner, rules)
        case _:
            return False
