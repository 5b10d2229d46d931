"""The rule script: the first rule that matches a request answers it, and `default` where none does."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from heapq import merge

from stubserver.errors import UnscriptedError
from stubserver.sampling.logits import Logits
from stubserver.script.context import Answer, Context, ScriptRequest
from stubserver.script.nearest import explain_unscripted
from stubserver.script.rows import RowStore
from stubserver.script.rule import Rule
from stubserver.tokenizer.base import Tokenizer


class RuleScript:
    """The `Script` protocol over rules. `default` gives the logits where no rule does; None: that is an error."""

    def __init__(
        self, rules: Sequence[Rule], default: Callable[[Context], Logits] | None, rows: RowStore, tokenizer: Tokenizer
    ) -> None:
        self.rules = rules
        self.default = default
        self.rows = rows
        self.tokenizer = tokenizer
        self.has_faults = any(rule.faults for rule in rules)
        self._index = RuleIndex(rules)

    @property
    def vocab_size(self) -> int:
        """V: the length of every row."""
        return self.rows.vocab_size

    @cached_property
    def scripted_prompts(self) -> ScriptedPrompts:
        """The prompts that rules name, by their token ids; made when a prompt is scored for the first time."""
        return ScriptedPrompts(self.rules, self.tokenizer)

    def bind(self, request: ScriptRequest) -> Answer:
        """What answers this request. Raises UnscriptedError, which names the nearest rule, if nothing does."""
        rule = self._index.first_match(request)
        if rule is None and self.default is None and not request.scores_prompt:
            raise UnscriptedError(explain_unscripted(request, self.rules))
        next_logits = _RuleAnswer(self, request, rule).next_logits
        if rule is None:
            return Answer(next_logits)
        return Answer(next_logits, rule.name, rule.segments, rule.faults, rule.recorded)


class _RuleAnswer:
    """One request's way through a rule script."""

    def __init__(self, script: RuleScript, request: ScriptRequest, rule: Rule | None) -> None:
        self._script = script
        self._request = request
        self._rule = rule

    def next_logits(self, context: Context) -> Logits:
        """The logits after this context. Raises UnscriptedError if the script has none."""
        if len(context.prompt_token_ids) < len(self._request.prompt_token_ids):
            return self._along_prompt(context)
        if self._rule is not None:
            return self._after_prompt(self._rule, context)
        return self._along_prompt(context) if self._request.scores_prompt else self._default(context)

    def _after_prompt(self, rule: Rule, context: Context) -> Logits:
        row = rule.row(len(context.output_token_ids))
        if row is None:
            raise UnscriptedError(
                f"Rule {rule.name} has {len(rule.steps)} steps and says `then: error`, but the request wants another "
                "token. Add steps, say `then: eos` or `then: repeat`, or ask for fewer tokens."
            )
        return self._script.rows.get(row)

    def _along_prompt(self, context: Context) -> Logits:
        """What the rule would give that generates from the longest scripted beginning of the prompt."""
        position = len(context.prompt_token_ids) + len(context.output_token_ids)
        for length, rule in reversed(self._beginnings[: bisect_right(self._beginnings, position, key=lambda b: b[0])]):
            row = rule.row(position - length)
            if row is not None:
                return self._script.rows.get(row)
        return self._default(context)

    @cached_property
    def _beginnings(self) -> list[tuple[int, Rule]]:
        return list(self._script.scripted_prompts.beginnings(self._request))

    def _default(self, context: Context) -> Logits:
        if self._script.default is None:
            raise UnscriptedError(self._explain_position(context))
        return self._script.default(context)

    def _explain_position(self, context: Context) -> str:
        beginning = self._script.tokenizer.decode(context.token_ids)
        shown = beginning if len(beginning) <= 60 else "…" + beginning[-59:]
        return (
            f"The request scores its prompt, and the script has no row for position {len(context.token_ids)} of it: no "
            f'rule answers for the beginning "{shown}". Say `default: random` (or a step) for such positions, or add a '
            "rule whose prompt is that beginning."
        )


class RuleIndex:
    """Finds the first rule that matches: thousands of exact prompts cost no more than one."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._by_prompt: dict[str, list[int]] = {}
        self._by_token_ids: dict[tuple[int, ...], list[int]] = {}
        self._others: list[int] = []
        for position, rule in enumerate(rules):
            self._list_for(rule).append(position)

    def first_match(self, request: ScriptRequest) -> Rule | None:
        """The first rule in the script's order whose conditions all hold."""
        candidates = merge(
            self._by_prompt.get(request.prompt, ()),
            self._by_token_ids.get(tuple(request.prompt_token_ids), ()) if self._by_token_ids else (),
            self._others,
        )
        return next((self._rules[position] for position in candidates if self._rules[position].matches(request)), None)

    def _list_for(self, rule: Rule) -> list[int]:
        if rule.prompt is not None:
            return self._by_prompt.setdefault(rule.prompt, [])
        if rule.prompt_token_ids is not None:
            return self._by_token_ids.setdefault(rule.prompt_token_ids, [])
        return self._others


class ScriptedPrompts:
    """Every exact prompt of the rules as token ids, to find those that a longer prompt begins with."""

    def __init__(self, rules: Sequence[Rule], tokenizer: Tokenizer) -> None:
        self._rules: dict[tuple[int, ...], list[Rule]] = {}
        for rule in rules:
            for token_ids in _token_ids(rule, tokenizer):
                self._rules.setdefault(token_ids, []).append(rule)
        self._lengths = sorted({len(token_ids) for token_ids in self._rules})

    def beginnings(self, request: ScriptRequest) -> Iterator[tuple[int, Rule]]:
        """The length in tokens and the rule of each scripted prompt that the request's prompt begins with.

        The shorter ones come first; of equal ones, the script's last: read backwards, the first rule wins.
        """
        prompt = tuple(request.prompt_token_ids)
        for length in self._lengths[: bisect_right(self._lengths, len(prompt))]:
            for rule in reversed(self._rules.get(prompt[:length], [])):
                if rule.matches_beside_prompt(request):
                    yield length, rule


def _token_ids(rule: Rule, tokenizer: Tokenizer) -> set[tuple[int, ...]]:
    """What a rule's prompt may be to the model: with BOS and the like (completions), or without (rendered chats)."""
    if rule.prompt_token_ids is not None:
        return {rule.prompt_token_ids} - {()}
    if rule.prompt is None:
        return set()
    return {tuple(tokenizer.encode(rule.prompt, add_special_tokens=special)) for special in (True, False)} - {()}
