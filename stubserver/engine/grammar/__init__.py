"""Structured outputs: what a constraint means, and the mask that it puts on the logits before anything else.

    compile_constraint   what vLLM checks of a request's constraint, and the backend that it chooses for it
    GrammarTokens        a model's vocabulary, and the one backend that its engine works with
    Grammar              one choice's way through a constraint: the mask, and the next token

The backends are loaded when a request first asks for a constraint. `xgrammar` is the library of that name where it is
installed, and otherwise imitated with llguidance; `guidance` is llguidance. See docs/structured-outputs.md.
"""

from stubserver.engine.grammar.compiling import compile_constraint
from stubserver.engine.grammar.constraint import Constraint
from stubserver.engine.grammar.matching import Grammar
from stubserver.engine.grammar.tokens import GrammarTokens

__all__ = ["Constraint", "Grammar", "GrammarTokens", "compile_constraint"]
