"""Structured outputs: what a constraint means, and the mask that it puts on the logits before anything else.

    Constraint           what a server asks of a backend; which one it chooses is for its behaviour to say
    GrammarTokens        a model's vocabulary, and the one backend that its engine works with
    Grammar              one choice's way through a constraint: the mask, and the next token

The backends are loaded when a request first asks for a constraint. `xgrammar` is the library of that name where it is
installed, and otherwise imitated with llguidance; `guidance` is llguidance. See docs/structured-outputs.md.
"""
