"""Which rules were tried for a request before one answered it, and why they didn't match."""

from __future__ import annotations

from itertools import islice, takewhile

from stubserver.script.context import Script, ScriptRequest
from stubserver.script.nearest import explain_mismatch
from stubserver.script.rules import RuleScript

MAX_EXPLAINED = 100
"""A script may have thousands of rules; the first ones are enough to see the mistake."""


def explain_passed_over(script: Script, request: ScriptRequest, matched: str | None) -> dict[str, str]:
    """Name of the rule → what differed, for the rules before the one that matched; for all of them if none did.

    Of scripts without rules there is nothing to say.
    """
    if not isinstance(script, RuleScript):
        return {}
    tried = takewhile(lambda rule: rule.name != matched, script.rules)
    return {rule.name: explain_mismatch(rule, request) for rule in islice(tried, MAX_EXPLAINED)}
