"""A script file as read: its data, and the line on which each part of it stands.

YAML is read as YAML 1.2 has it: only `true` and `false` are booleans, so the labels `Yes` and `No` need no quotes, and
`1e-3` is a number. JSON is read the same way. A key that stands twice in a mapping is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

try:
    from yaml import CSafeLoader as _YamlLoader
except ImportError:  # PyYAML without libyaml: slower, otherwise the same
    from yaml import SafeLoader as _YamlLoader  # type: ignore[assignment]

from stubserver.errors import ScriptError

KeyPath = tuple[Any, ...]
"""Keys and list indexes from the top of the data, for instance `("rules", 0, "steps")`."""


@dataclass(frozen=True)
class Document:
    """name: for messages. data: plain Python values. directory: what relative paths in it start from.

    lines: key path → line, counted from 1; empty for data that came from Python. moved: top-level keys that stand
    elsewhere in the file → the path before them there.
    """

    name: str
    data: Any
    directory: Path
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    moved: Mapping[str, KeyPath] = field(default_factory=dict)

    @property
    def root(self) -> Place:
        """The place of the whole document."""
        return Place(self)


@dataclass(frozen=True)
class Place:
    """A position in a document: `place / key` goes down, `str(place)` is `script.yaml:12: rules[0].steps[1]`."""

    document: Document
    path: KeyPath = ()

    def __truediv__(self, key: Any) -> Place:
        return Place(self.document, (*self.path, key))

    def __str__(self) -> str:
        path = (*self.document.moved.get(self.path[0], ()), *self.path) if self.path else ()
        line = self._line(path)
        file = f"{self.document.name}:{line}" if line else self.document.name
        return ": ".join(part for part in (file, show_path(path)) if part)

    def error(self, message: object) -> ScriptError:
        """A ScriptError about this place, to be raised."""
        return ScriptError(str(message), str(self))

    def _line(self, path: KeyPath) -> int | None:
        ways_up = (path[:length] for length in range(len(path), 0, -1))
        return next((self.document.lines[path] for path in ways_up if path in self.document.lines), None)


def show_path(path: KeyPath) -> str:
    """`("rules", 0, "logits", " blue")` → `rules[0].logits[" blue"]`."""
    return "".join(map(_show_key, path)).removeprefix(".")


def read_document(path: Path, name: str) -> Document:
    """Read a .json, .yaml or .yml file. Raises ScriptError if there is none, or it isn't of that format."""
    return parse_document(_read_text(path, name), name, path.parent.resolve(), is_json=path.suffix.lower() == ".json")


def parse_document(text: str, name: str, directory: Path, *, is_json: bool) -> Document:
    """The document that a text is; relative paths in it start from the directory. Raises ScriptError."""
    if is_json:
        _check_json(text, name)
        text = _json_as_yaml(text)
    lines: dict[KeyPath, int] = {}
    try:
        node = yaml.compose(text, Loader=_Loader)
        data = _value(node, (), name, lines) if node is not None else None
    except yaml.YAMLError as error:
        raise _yaml_error(error, name) from None
    except RecursionError:
        raise ScriptError("is nested too deeply, or has an alias inside of what it stands for", name) from None
    return Document(name, data, directory, lines)


def _read_text(path: Path, name: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ScriptError(f"there is no such file (looked for {path.resolve()})", name) from None
    except UnicodeDecodeError as error:
        raise ScriptError(f"isn't UTF-8 text: {error}", name) from None
    except OSError as error:
        raise ScriptError(f"can't be read: {error.strerror}", name) from None


def _check_json(text: str, name: str) -> None:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise ScriptError(f"isn't JSON: {error.msg} (column {error.colno})", f"{name}:{error.lineno}") from None
    except RecursionError:
        raise ScriptError("is nested too deeply", name) from None


def _json_as_yaml(text: str) -> str:
    """JSON is YAML but for two things: tabs between values, and characters escaped as surrogate pairs."""
    pairs = re.compile(r"\\\\|\\u[dD][89abAB]\w{2}\\u[dD][c-fC-F]\w{2}")  # or an escaped backslash, to step over it
    unescaped = pairs.sub(lambda match: match[0] if match[0] == r"\\" else json.loads(f'"{match[0]}"'), text)
    return unescaped.replace("\t", " ")


def _yaml_error(error: yaml.YAMLError, name: str) -> ScriptError:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return ScriptError(f"isn't YAML: {error.problem} (column {mark.column + 1})", f"{name}:{mark.line + 1}")
    return ScriptError(f"isn't YAML: {error}", name)


class _Loader(_YamlLoader):
    """Finds out which scalars are null, booleans and numbers, by the rules of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own name


def _resolve(tag: str, pattern: str, first: str) -> None:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{pattern})$"), list(first) or [""])


_resolve("null", r"~|null|Null|NULL", "~nN")
_resolve("null", "", "")
_resolve("bool", r"true|True|TRUE|false|False|FALSE", "tTfF")
_resolve("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789")
_resolve("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789")
_resolve("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+.")


def _int(text: str) -> int:
    base = {"0x": 16, "0o": 8}.get(text[:2], 10)
    return int(text, base)


def _float(text: str) -> float:
    return float(re.sub(r"^([-+]?)\.(?=[inIN])", r"\1", text))  # ".inf" → "inf"


_SCALARS: dict[str, Callable[[str], Any]] = {
    "null": lambda text: None,
    "bool": lambda text: text.lower() == "true",
    "int": _int,
    "float": _float,
    "str": str,
}


def _value(node: yaml.Node, path: KeyPath, name: str, lines: dict[KeyPath, int]) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, name, lines)
    if isinstance(node, yaml.SequenceNode):
        return [_part(item, item, (*path, index), name, lines) for index, item in enumerate(node.value)]
    return _scalar(node, path, name)


def _mapping(node: yaml.MappingNode, path: KeyPath, name: str, lines: dict[KeyPath, int]) -> dict[Any, Any]:
    mapping: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise ScriptError("a key has to be a text or a number", _node_place(key_node, path, name))
        key = _scalar(key_node, path, name)
        if key in mapping:
            raise ScriptError("this key stands twice", _node_place(key_node, (*path, key), name))
        mapping[key] = _part(key_node, value_node, (*path, key), name, lines)
    return mapping


def _part(start: yaml.Node, node: yaml.Node, path: KeyPath, name: str, lines: dict[KeyPath, int]) -> Any:
    lines[path] = start.start_mark.line + 1
    return _value(node, path, name, lines)


def _scalar(node: yaml.Node, path: KeyPath, name: str) -> Any:
    construct = _SCALARS.get(node.tag.removeprefix("tag:yaml.org,2002:"))
    if construct is None:
        raise ScriptError(f"the YAML tag {node.tag} has no meaning here", _node_place(node, path, name))
    try:
        return construct(node.value)
    except ValueError:
        raise ScriptError(
            f"{node.value!r} isn't of type {node.tag.rpartition(':')[2]}", _node_place(node, path, name)
        ) from None


def _node_place(node: yaml.Node, path: KeyPath, name: str) -> str:
    return ": ".join(part for part in (f"{name}:{node.start_mark.line + 1}", show_path(path)) if part)


def _show_key(key: Any) -> str:
    if isinstance(key, str):
        plain = re.fullmatch(r"[A-Za-z_][\w-]*", key)
        return f".{key}" if plain else f"[{json.dumps(key, ensure_ascii=False)}]"
    return f"[{key}]"
