"""The files of a tokenizer directory: tokenizer.json, and the settings that lie beside it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from stubserver.errors import TokenizerError

TOKENIZER_FILE: Final = "tokenizer.json"
CONFIG_FILE: Final = "tokenizer_config.json"
TEMPLATE_FILE: Final = "chat_template.jinja"

SPECIAL_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """What tokenizer_config.json and its neighbours say.

    special_tokens: "eos_token" and the like → text.
    eos_token_id: from generation_config.json or config.json, for a tokenizer_config.json that names no eos_token.
    written: tokenizer_config.json as it is.
    """

    special_tokens: dict[str, str] = field(default_factory=dict)
    chat_template: str | None = None
    eos_token_id: int | None = None
    written: dict[str, Any] = field(default_factory=dict)


def find_tokenizer_file(name: str) -> Path:
    """The tokenizer.json that a path means: the file itself, or the one in the directory."""
    path = Path(name).expanduser()
    if path.is_dir() and not (path / TOKENIZER_FILE).is_file():
        raise TokenizerError(f"tokenizer {name!r}: the directory has no {TOKENIZER_FILE}")
    if not path.exists():
        raise TokenizerError(
            f'tokenizer {name!r}: no such file; give "builtin", the path of a {TOKENIZER_FILE}, or a directory with one'
        )
    return path / TOKENIZER_FILE if path.is_dir() else path


def load_backend(path: Path) -> Tokenizer:
    """Read a tokenizer.json; its truncation and padding are left out, as transformers does unless asked for them."""
    try:
        backend = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exceptions
        raise TokenizerError(
            f"tokenizer {str(path)!r}: not a tokenizer of the `tokenizers` library: {error}"
        ) from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def load_config(directory: Path) -> TokenizerConfig:
    """Read tokenizer_config.json, chat_template.jinja, generation_config.json and config.json, as far as they exist."""
    settings = _read_object(directory / CONFIG_FILE)
    special_tokens = {name: text for name in SPECIAL_TOKENS if (text := _token_text(settings.get(name)))}
    return TokenizerConfig(
        special_tokens=special_tokens,
        chat_template=_read_template(directory, settings.get("chat_template")),
        eos_token_id=None if "eos_token" in special_tokens else _model_eos(directory),
        written=settings,
    )


def load_chat_template(given: str) -> str:
    """The template that a setting means: a file's text, or the setting itself if it is a template.

    Raises TokenizerError if it is neither. What tells them apart is vLLM's way: a brace or a line break.
    """
    path = Path(given).expanduser()
    if not any(character in given for character in "{}\n"):
        if not path.is_file():
            raise TokenizerError(f"chat_template {given!r}: there is no such file, and it is no template either")
        return path.read_text(encoding="utf-8")
    return given


def save_config(directory: Path, special_tokens: dict[str, str], chat_template: str | None) -> None:
    """Write a tokenizer_config.json with which transformers loads the tokenizer.json beside it as it is."""
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    settings |= special_tokens
    if chat_template is not None:
        settings["chat_template"] = chat_template
    (directory / CONFIG_FILE).write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON file's object; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{path}: a JSON object was expected, not {type(content).__name__}")
    return content


def _token_text(token: Any) -> str | None:
    """A special token is written as a string or as an object with its `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _read_template(directory: Path, template: Any) -> str | None:
    """chat_template.jinja if there is one; else the string, or the one named "default" of a list."""
    file = directory / TEMPLATE_FILE
    if file.is_file():
        return file.read_text(encoding="utf-8")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template if isinstance(template, str) else None


def _model_eos(directory: Path) -> int | None:
    """The first eos_token_id that the model's own files name."""
    for name in ("generation_config.json", "config.json"):
        eos = _read_object(directory / name).get("eos_token_id")
        first = eos[0] if isinstance(eos, list) and eos else eos
        if isinstance(first, int):
            return first
    return None
