"""What requests are made of: for each field values that are right, values at the edge, and values of any other type."""

from __future__ import annotations

from typing import Any, NamedTuple

WRONG: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 1.5, "", "x", "1", "true", [], [1], ["x"], [None], [[]], {}, {"a": 1}),
    *(2**31, 2**63, 2**70, -(2**70), 1e300, [1, "x"], {"type": "x"}, [{}], "\u00e9\U0001f600", 10**12),
)
"""Of any type."""

TEXTS = (
    "A",
    "The sky",
    "word12 word40",
    " no",
    "Yes or no?",
    "\u042e\u00fc",
    "a\nb",
    "1 2 3",
    "word65" * 6,
    "<|im_end|> x",
)

IDS = ([29], [276, 300], [36, 327, 1], list(range(20, 60)), [511], [407, 408])

REGEXES = (
    "[a-c]{1,3}",
    "yes|no",
    r"\d+",
    r"[A-Z]\w*",
    "(word[0-9])+",
    r"\s?no",
    "a*b",
    "(?i)yes",
    "[^a]{2}",
    r"\bno\b",
    "(",
    "",
)

SCHEMAS: tuple[Any, ...] = (
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False},
    {"type": "string", "maxLength": 3},
    {"type": "boolean"},
    {"enum": ["yes", "no", 1, None]},
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 2},
    {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    {"type": "object", "properties": {"x": {"const": "B"}, "y": {"type": "number"}}},
    {"type": "string", "pattern": "^[ab]+$"},
    {"$ref": "#/$defs/t", "$defs": {"t": {"type": "integer"}}},
    {"type": "nothing"},
    True,
    {},
)

GRAMMARS = (
    'root ::= "yes" | "no"',
    "root ::= [a-c]+",
    'root ::= "a" root | "b"',
    "root ::=",
    'start: "yes" | "no"',
    "x",
)

CONSTRAINTS: tuple[dict[str, Any], ...] = (
    *(
        {"choice": choice}
        for choice in (["Yes", "No"], [" A", " B", "A"], ["word1", "word12"], [""], [], ["a\n"], ["\u00e9"])
    ),
    *({"regex": regex} for regex in REGEXES),
    *({"json": schema} for schema in SCHEMAS),
    *({"grammar": grammar} for grammar in GRAMMARS),
    {"json_object": True},
    {"choice": ["a"], "regex": "b"},
    {"json": '{"type": "integer"}'},
    {"json": "{"},
    {"regex": "a", "whitespace_pattern": " "},
    {},
)

FORMATS: tuple[dict[str, Any], ...] = (
    {"type": "text"},
    {"type": "json_object"},
    *({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}} for schema in SCHEMAS),
    {"type": "json_schema"},
    {"type": "other"},
)

TOOLS: tuple[list[dict[str, Any]], ...] = (
    [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
    [
        {"type": "function", "function": {"name": "f", "parameters": SCHEMAS[0]}},
        {"type": "function", "function": {"name": "g"}},
    ],
    [],
)

MESSAGES: tuple[list[dict[str, Any]], ...] = (
    *([{"role": "user", "content": text}] for text in TEXTS),
    [{"role": "system", "content": "S"}, {"role": "user", "content": "A"}],
    [{"role": "developer", "content": "D"}, {"role": "user", "content": "A"}],
    [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}, {"role": "user", "content": "C"}],
    [{"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]}],
    [{"role": "user", "content": "A"}, {"role": "assistant", "content": None}],
    [{"role": "assistant", "content": "The sky"}],
    [{"role": "tool", "content": "1", "tool_call_id": "c"}],
)

ODD_MESSAGES: tuple[Any, ...] = (
    *(
        [],
        [{}],
        [{"role": "user"}],
        [{"content": "A"}],
        [{"role": "x", "content": "A"}],
        [{"role": "user", "content": ""}],
    ),
    *(
        [{"role": "user", "content": []}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
    ),
    *(
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": ["A"]}],
        [{"role": 5, "content": "A"}],
    ),
    *(
        [{"role": "user", "content": 5}],
        ["A"],
        [None],
        "A",
        {"role": "user", "content": "A"},
        [{"role": None, "content": "A"}],
    ),
)


class Field(NamedTuple):
    """right: values that a client may send. edge: those at the limits, and beyond them."""

    right: tuple[Any, ...]
    edge: tuple[Any, ...] = ()


SAMPLING: dict[str, Field] = {
    "temperature": Field((0, 0, 0.5, 1, 1.5), (-1, 2, 2.5, 0.001, 0.01, 1e-9)),
    "top_p": Field((0.1, 0.5, 0.9, 1), (0, -0.1, 1.1, 1e-9)),
    "top_k": Field((1, 5, 40, 0, -1), (-2, 512, 513, 10**6)),
    "min_p": Field((0, 0.05, 0.3), (1, -0.1, 1.1)),
    "n": Field((1, 1, 2, 3), (0, -1, 17)),
    "seed": Field((0, 1, 42), (-1, 2**31, 2**63 - 1, 2**63)),
    "stop": Field(("no", [" no", "word6"], ["a"]), ("", [], [""], ["x"] * 5)),
    "stop_token_ids": Field(([276], [29, 36, 260], []), ([-1], [512], [0])),
    "presence_penalty": Field((0.5, -1), (2, -2, 2.1)),
    "frequency_penalty": Field((0.5, -1), (2, -2, -2.1)),
    "repetition_penalty": Field((1.2, 0.8), (0, -1, 2.1, 1e-5)),
    "min_tokens": Field((0, 1, 2), (-1, 9, 600)),
    "ignore_eos": Field((True, False)),
    "include_stop_str_in_output": Field((True, False)),
    "skip_special_tokens": Field((True, False)),
    "spaces_between_special_tokens": Field((True, False)),
    "bad_words": Field(([" no"], ["word65", "A"], []), ([""], [" "])),
    "allowed_token_ids": Field(([29, 260, 276], list(range(100, 400))), ([], [512], [-1], [5, 5])),
    "logit_bias": Field(({"276": 5}, {"29": -100, "260": 3.5}), ({"512": 1}, {"x": 1}, {"-1": 2}, {"29": 101}, {})),
    "prompt_logprobs": Field((0, 1, 3), (-1, 20, 21, -2)),
    "truncate_prompt_tokens": Field((1, 3, 30), (0, -1, -2, 512, 513)),
    "return_token_ids": Field((True, False)),
    "return_tokens_as_token_ids": Field((True, False)),
    "logprob_token_ids": Field(([29, 260],), ([], [512], [1, 1], list(range(30)))),
    "priority": Field((0,), (1, -1)),
    "user": Field(("u",)),
    "request_id": Field(("own",), ("", "a b", "\u00e9")),
    "cache_salt": Field(("s",), ("",)),
    "add_special_tokens": Field((True, False)),
    "stream": Field((True, False, False)),
    "stream_options": Field(
        ({"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}), ({}, {"x": 1})
    ),
    "max_tokens": Field((1, 2, 3, 5), (0, -1, 511, 512, 513, 10**6)),
    "model": Field(("bigram",), ("", "no", "a/b")),
    "thinking_token_budget": Field((), (0, 5)),
    "vllm_xargs": Field(({"a": 1},), ({"a": []},)),
    "unknown_field": Field((1,)),
}

COMPLETION = SAMPLING | {
    "prompt": Field(
        (*TEXTS, *IDS, [TEXTS[0], TEXTS[1]], [IDS[0], IDS[1]]), ("", [], [""], [[]], [512], [-1], ["A", 1], " " * 9)
    ),
    "logprobs": Field((0, 1, 3, 5), (-1, 20, 21, -2)),
    "echo": Field((True, False)),
    "suffix": Field((), ("", "x")),
    "best_of": Field((1,), (0, 2)),
    "use_beam_search": Field((True,), ()),
    "length_penalty": Field((1.0, 0.5)),
}

CHAT = SAMPLING | {
    "messages": Field(MESSAGES, ODD_MESSAGES),
    "logprobs": Field((True, False)),
    "top_logprobs": Field((0, 1, 3, 5), (-1, 20, 21)),
    "max_completion_tokens": Field((1, 3), (0, 512)),
    "add_generation_prompt": Field((True, False)),
    "continue_final_message": Field((False,), (True,)),
    "chat_template_kwargs": Field(({"a": 1},), ({"add_generation_prompt": False}, {"tokenize": True})),
    "tools": Field(TOOLS[:2], TOOLS[2:]),
    "tool_choice": Field(("none", "auto", "required"), ({"type": "function", "function": {"name": "f"}}, "x")),
    "parallel_tool_calls": Field((True, False)),
    "include_reasoning": Field((True, False)),
    "reasoning_effort": Field(("low",), ("x",)),
    "documents": Field(([{"title": "t", "text": "d"}],)),
    "echo": Field((True, False)),
}

GENERATE_PARAMS = {
    name: SAMPLING[name] for name in SAMPLING if name not in ("stream", "stream_options", "model", "user")
} | {
    "logprobs": Field((0, 1, 3), (-1, 20, 21, -2)),
    "detokenize": Field((True, False)),
    "output_kind": Field((0, 1, 2), (3,)),
}

OTHER: dict[str, dict[str, Field]] = {
    "/tokenize": {
        "prompt": Field(TEXTS, ("",)),
        "messages": Field(MESSAGES, ODD_MESSAGES),
        "add_special_tokens": Field((True, False)),
        "return_token_strs": Field((True, False)),
        "add_generation_prompt": Field((True, False)),
        "continue_final_message": Field((False,), (True,)),
        "chat_template_kwargs": Field(({"a": 1},)),
        "tools": Field(TOOLS),
        "model": Field(("bigram",), ("no",)),
    },
    "/detokenize": {
        "tokens": Field(IDS, ([], [512], [-1], [2**40], [0])),
        "model": Field(("bigram",), ("no",)),
        "skip_special_tokens": Field((True, False)),
    },
    "/generative_scoring": {
        "query": Field((*TEXTS, *IDS), ("", [], [512])),
        "items": Field(([" B"], [" no", "A"], [[29], [36, 1]]), ([], [""], [[]], " B")),
        "label_token_ids": Field(([334, 332], [29]), ([], [512], [-1], [1, 1])),
        "apply_softmax": Field((True, False)),
        "item_first": Field((True, False)),
        "add_special_tokens": Field((True, False)),
        "model": Field(("bigram",), ("no",)),
    },
    "/v1/systemone": {
        "state": Field(TEXTS, ("", {"a": 1})),
        "questions": Field(
            (
                {"a": {"type": "noul", "instructions": "q"}},
                {"a": {"type": "score", "instructions": "q"}, "b": {"type": "noul", "instructions": "r"}},
                {"c": {"type": "choice", "instructions": "q", "criteria": {"x": "1", "y": "2"}}},
            ),
            ({}, {"a": {}}, {"a": {"type": "x"}}, {"a": {"type": "choice", "instructions": "q"}}),
        ),
        "model": Field(("bigram",), ("no",)),
    },
    "/inference/v1/abort_requests": {"request_ids": Field(("x", ["x", "y"]), ([], [1], "", 5))},
}
"""Route → the fields of its requests."""
