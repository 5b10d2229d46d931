"""Messages → prompt text, by the tokenizer's chat template: Jinja, sandboxed as transformers does it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from stubserver.errors import ValidationError
from stubserver.memory import remembered
from stubserver.tokenizer.base import Tokenizer

if TYPE_CHECKING:
    from jinja2 import Template

_END_OF_FINAL_MESSAGE = "\ue000final message ends here\ue000"


def render_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool,
    template: str | None = None,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> str:
    """The prompt that the messages make.

    template: goes before the tokenizer's own. With `continue_final_message` the prompt ends where the last message's
    content ends. Raises ValidationError if there is no template, or the template refuses the messages.
    """
    source = template or tokenizer.chat_template
    if source is None:
        raise ValidationError(
            f"The tokenizer {tokenizer.name!r} has no chat template, and the request brings none.",
            code="no_chat_template",
        )
    if not messages:
        raise ValidationError("There are no messages to make a prompt of.", code="no_messages")
    shown = [dict(message) for message in messages]
    if continue_final_message and shown:
        shown[-1] = {**shown[-1], "content": str(shown[-1].get("content") or "") + _END_OF_FINAL_MESSAGE}
    try:
        text = _compile(source).render(
            messages=shown,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            **{**tokenizer.special_tokens, **(template_kwargs or {})},
        )
    except Exception as error:
        # A template is a program, the tokenizer's or the request's: whatever it does wrong, the request is refused.
        raise ValidationError(str(error)) from None
    return text.partition(_END_OF_FINAL_MESSAGE)[0] if continue_final_message else text


@remembered(most=8)
def _compile(source: str) -> Template:
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)
