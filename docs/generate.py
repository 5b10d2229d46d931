"""Writes settings.md and routes.md from the code: `python docs/generate.py`. A test holds both to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, get_args, get_origin

from stubserver.api.protocol.completions import CompletionRequest
from stubserver.api.routes import ENDPOINTS
from stubserver.config import ENV_PREFIX, Settings, flag_name, shown_default

HERE = Path(__file__).parent

REFUSED = {
    "suffix": "the model would need fill-in-the-middle",
    "prompt_embeds": "vLLM refuses them too, unless it is started with `--enable-prompt-embeds`",
}
"""Fields of a completion request that get a 400, and why."""

NO_EFFECT = {
    "user": "names the end user; vLLM ignores it too",
    "cache_salt": "separates prefix caches",
    "ec_transfer_params": "moves encoder caches between servers",
    "kv_transfer_params": "moves KV caches between servers",
    "mm_payload": "shapes replies of the render routes",
    "priority": "orders requests under load",
    "repetition_detection": "ends an output that repeats itself early",
    "return_mm_kwargs": "the older form of `mm_payload`",
    "return_token_offsets": "shapes replies of the render routes",
    "routed_experts_prompt_start": "cuts the report of a mixture's experts",
    "session_id": "ties the requests of a session together",
    "spaces_between_special_tokens": "matters to slow tokenizers",
    "stream_interval": "puts several tokens into an event; here each token has its own",
    "thinking_token_budget": "limits reasoning; vLLM answers 400 unless it serves a reasoning model",
    "vllm_xargs": "parameters for extensions",
    "watermarking": "marks the output",
}
"""Fields that are accepted and change nothing, and what vLLM does with them.

Source: vLLM 0.32.0, entrypoints/openai/completion/protocol.py.
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
    )


def routes_page() -> str:
    """Every route, and the fields of a completion request by what becomes of them."""
    routes = [(f"`{endpoint.method} {endpoint.path}`", endpoint.summary) for endpoint in ENDPOINTS]
    heeded = [name for name in CompletionRequest.model_fields if name not in REFUSED | NO_EFFECT]
    return _page(
        "Routes",
        "Every other path gets a 404, another method a 405. A running server describes itself in `/openapi.json`.",
        _table(("route", "what it does"), routes),
        "## The fields of `POST /v1/completions`",
        "Heeded, with vLLM's meaning, defaults and limits:",
        _prose(", ".join(f"`{name}`" for name in heeded) + "."),
        "Refused with a 400:",
        _table(("field", "why"), _entries(REFUSED)),
        "So are structural tags, in `structured_outputs` or `response_format`, and `use_beam_search` with `stream`.",
        "Accepted without effect:",
        _table(("field", "what it is for in vLLM"), _entries(NO_EFFECT)),
        "So is any field that vLLM doesn't know. A script's rules can match every field, also those without effect.",
    )


PAGES: dict[str, Callable[[], str]] = {"settings.md": settings_page, "routes.md": routes_page}


def _page(title: str, *blocks: str) -> str:
    return "\n\n".join([f"# {title}", "<!-- Written by docs/generate.py. -->", *blocks]) + "\n"


def _prose(text: str) -> str:
    return fill(text, 120, break_on_hyphens=False)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *rows))


def _entries(notes: dict[str, str]) -> list[tuple[str, str]]:
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
