"""A rule, said in a chain of calls: `stub.on(prompt="Answer:").logits({" A": 2.0, " B": 1.0}, rest=-10)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from stubserver.engine.model import Model
from stubserver.script.file.amended import AmendedScript, amend, read_rule
from stubserver.script.rule import Rule

Token = int | str
"""As scripts write tokens: a text, an id, "bytes:E282", …"""


class RuleChain:
    """A rule of a running stub. It counts from its first call on; each further call adds to it.

    Keys and values are those of a script file (docs/scripts.md). A call that can't be used raises ScriptError, and
    leaves the rule as it was.
    """

    def __init__(self, model: Model, name: str, when: Mapping[str, Any]) -> None:
        self._model = model
        self._name = name
        self._keys: dict[str, Any] = {"when": dict(when), "steps": []}
        self._rule: Rule | None = None

    def logits(self, logits: Mapping[Token, float], rest: float | None = None) -> Self:
        """A step: these logits; `rest` is every other token's."""
        return self._step({"logits": dict(logits)} | ({} if rest is None else {"rest": rest}))

    def probs(self, probs: Mapping[Token, float]) -> Self:
        """A step: these probabilities; the other tokens share what is left of 1."""
        return self._step({"probs": dict(probs)})

    def logprobs(self, logprobs: Mapping[Token, float]) -> Self:
        """A step: the same as natural logarithms."""
        return self._step({"logprobs": dict(logprobs)})

    def text(self, text: str) -> Self:
        """A step a token of this text, by a wide margin."""
        return self._step({"text": text})

    def tokens(self, tokens: Sequence[Token]) -> Self:
        """A step a token, by a wide margin."""
        return self._step({"tokens": list(tokens)})

    def message(
        self,
        content: str | None = None,
        *,
        reasoning: str | None = None,
        tool_calls: Sequence[Mapping[str, Any]] = (),
    ) -> Self:
        """Instead of steps, a chat message. A tool call has `name`, `arguments` and, if wanted, `id`."""
        parts = {"content": content, "reasoning": reasoning, "tool_calls": [dict(call) for call in tool_calls] or None}
        given = {name: part for name, part in parts.items() if part is not None}
        keys = {**self._keys, "message": given}
        if not keys["steps"]:
            del keys["steps"]
        return self._use(keys)

    def then(self, end: Literal["eos", "repeat", "error"]) -> Self:
        """What follows the last step."""
        return self._use({**self._keys, "then": end})

    def fault(self, kind: str, **values: Any) -> Self:
        """What goes wrong with the replies that this rule gives; several are listed in the order of the calls."""
        return self._use({**self._keys, "faults": [*self._keys.get("faults", ()), {"kind": kind, **values}]})

    def _step(self, step: dict[str, Any]) -> Self:
        return self._use({**self._keys, "steps": [*self._keys.get("steps", ()), step]})

    def _use(self, keys: dict[str, Any]) -> Self:
        model = self._model
        rule = read_rule(keys, self._name, model.tokenizer, model.vocab_size)
        script = amend(model.script, model.tokenizer)
        added = [rule if each is self._rule else each for each in script.added]
        if rule not in added:
            added.append(rule)
        model.script = AmendedScript(script.base, model.tokenizer, added, script.default)
        self._keys, self._rule = keys, rule
        return self
