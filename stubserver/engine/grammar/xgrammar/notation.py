"""In which language a grammar is written: GBNF-like EBNF, or Lark."""

from __future__ import annotations


def is_lark(grammar: str) -> bool:
    """Whether vLLM takes a grammar for Lark: no line of it, comments apart, defines a rule by `::=`."""
    lines = (line.partition("#")[0].partition("//")[0] for line in grammar.split("\n"))
    return bool(grammar) and not any("::=" in line for line in lines)
