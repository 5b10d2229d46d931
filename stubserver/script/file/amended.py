"""A script with further rules before its own: what a test adds to what is served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stubserver.keys.document import Document
from stubserver.sampling.logits import Logits
from stubserver.script.context import Context, Script
from stubserver.script.file.build import build_script
from stubserver.script.file.check import check_document
from stubserver.script.rows import RowStore
from stubserver.script.rule import Rule
from stubserver.script.rules import RuleScript
from stubserver.tokenizer.hf import HFTokenizer

Default = Callable[[Context], Logits] | None


class AmendedScript(RuleScript):
    """The added rules in their order, then those of `base`, then the default.

    A base that has no rules (a table, a function) is the default itself.
    """

    def __init__(self, base: Script, tokenizer: HFTokenizer, added: Sequence[Rule], default: Default) -> None:
        own_rules, rows = (base.rules, base.rows) if isinstance(base, RuleScript) else ((), RowStore(base.vocab_size))
        super().__init__([*added, *own_rules], default, rows, tokenizer)
        self.base = base
        self.added = added


def amend(script: Script, tokenizer: HFTokenizer) -> AmendedScript:
    """The script as one that can be amended; as it is if it is one already."""
    return script if isinstance(script, AmendedScript) else AmendedScript(script, tokenizer, (), _default_of(script))


def read_rule(keys: Mapping[str, Any], name: str, tokenizer: HFTokenizer, vocab_size: int) -> Rule:
    """A rule from the keys that it has in a script file. Raises ScriptError, whose place begins with the name."""
    rule = _read({"rules": [dict(keys)]}, name, tokenizer, vocab_size).rules[0]
    return replace(rule, name=name)


def read_default(value: Any, tokenizer: HFTokenizer, vocab_size: int) -> Default:
    """A default from what stands under `default` in a script file. Raises ScriptError."""
    return _read({"default": value, "rules": []}, "default", tokenizer, vocab_size).default


def _read(data: dict[str, Any], name: str, tokenizer: HFTokenizer, vocab_size: int) -> RuleScript:
    document = Document(name, {**data, "vocab_size": vocab_size}, Path.cwd())
    script = build_script(check_document(document), document, tokenizer)
    assert isinstance(script, RuleScript)  # the data has rules
    return script


def _default_of(base: Script) -> Default:
    if isinstance(base, RuleScript):
        return base.default
    return lambda context: base.bind(context.request)(context)
