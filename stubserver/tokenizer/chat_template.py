"""Messages → prompt text, by a chat template: Jinja, sandboxed as transformers (5.x) does it, with its words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from stubserver.errors import ValidationError
from stubserver.memory import remembered
from stubserver.tokenizer.base import Tokenizer

if TYPE_CHECKING:
    from jinja2 import Environment, nodes
    from jinja2 import Template as Compiled

CONTINUED = "content"
"""The key of the last message that a prompt may end in."""

_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
"""transformers' own: a template that trims its messages shows it by the missing space."""


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
    source = tokenizer.chat_template if template is None else template
    if source is None:
        raise ValidationError(
            f"The tokenizer {tokenizer.name!r} has no chat template, and the request brings none.",
            code="no_chat_template",
        )
    if not messages:
        raise ValidationError("There are no messages to make a prompt of.", code="no_messages")
    if continue_final_message and add_generation_prompt:
        raise ValidationError(
            "continue_final_message and add_generation_prompt are not compatible. Use continue_final_message when you "
            "want the model to continue the final message, and add_generation_prompt when you want to add a header "
            "that will prompt it to start a new assistant message instead."
        )
    shown = [dict(message) for message in messages]
    last = _mark_final_message(shown, source) if continue_final_message else None
    try:
        text = read_template(source).compiled.render(
            messages=shown,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            **{**tokenizer.special_tokens, **(template_kwargs or {})},
        )
    except Exception as error:
        # A template is a program, the tokenizer's or the request's: whatever it does wrong, the request is refused.
        raise ValidationError(str(error)) from None
    return text if last is None else _cut_at_mark(text, last)


def _mark_final_message(messages: list[dict[str, Any]], source: str) -> str:
    """Mark the end of the last message's text, in place; the text. Raises ValidationError if there is none."""
    content = messages[-1].get(CONTINUED)
    if content is None:
        raise ValidationError(f'continue_final_message is set but the final message has no "{CONTINUED}" to continue!')
    if CONTINUED not in source:
        raise ValidationError(
            f'continue_final_message is set to "{CONTINUED}" but this is not an accepted field in the chat_template'
        )
    if isinstance(content, str):
        messages[-1][CONTINUED] = content + _MARK
        return content
    texts = [place for place, part in enumerate(content) if "text" in part]
    if not texts:
        raise ValidationError(
            "continue_final_message is set but we could not find any text to continue in the final message!"
        )
    text = str(content[texts[-1]]["text"])
    parts = [dict(part) for part in content]
    parts[texts[-1]]["text"] = text + _MARK
    messages[-1][CONTINUED] = parts
    return text


def _cut_at_mark(text: str, last: str) -> str:
    """The prompt up to the end of its last message. Raises ValidationError if the template left that out."""
    if last.strip() not in text or _MARK.strip() not in text:
        raise ValidationError(
            "continue_final_message is set but the final message does not appear in the chat after applying the chat "
            "template! This can happen if the chat template deletes portions of the final message. Please verify the "
            "chat template and final message in your chat to ensure they are compatible."
            f"Final message to continue: {last.strip()}\nRendered chat:\n{text}"
        )
    place = text.rindex(_MARK.strip())
    kept = text[:place]
    return kept if text.startswith(_MARK, place) else kept.rstrip()


class TemplateSource:
    """A template's text, and what can be told from it."""

    def __init__(self, source: str) -> None:
        self.source = source

    @cached_property
    def compiled(self) -> Compiled:
        """Ready to render. Raises jinja2's TemplateError where it isn't a template."""
        return _environment().from_string(self.source)

    @cached_property
    def variables(self) -> frozenset[str]:
        """The names that it takes from outside. Raises ValidationError where it isn't a template."""
        from jinja2 import meta
        from jinja2.exceptions import TemplateError

        try:
            return frozenset(meta.find_undeclared_variables(_environment().parse(self.source)))
        except TemplateError as error:
            raise ValidationError(str(error)) from None

    @cached_property
    def takes_parts(self) -> bool:
        """Whether it goes through the parts of a message's content; else it gets their texts as one."""
        from jinja2.exceptions import TemplateError

        try:
            return _loops_over_content(_environment().parse(self.source))
        except TemplateError:
            return False


@remembered(most=16)
def read_template(source: str) -> TemplateSource:
    """A template, read once."""
    return TemplateSource(source)


@remembered(most=1)
def _environment() -> Environment:
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}`: marks what the model wrote; it shows as it is."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


# Whether a template goes through the parts of a content --------------------------------------------------------------


def _loops_over_content(root: nodes.Template) -> bool:
    """Whether one of its loops is over a message's content.

    By name, as vLLM tells it (`renderers/hf.py`): of what `messages` is called, of what a loop over it calls a message,
    of what a macro that gets a message's content calls it; and over anything called `content`.
    """
    from jinja2 import nodes

    messages = _aliases(root, "messages")
    loops = list(root.find_all(nodes.For))
    message_names = [
        loop.target.name
        for loop in loops
        if isinstance(loop.target, nodes.Name) and any(_reads(loop.iter, name) for name in messages)
    ]
    in_macros = _macro_loops(root, message_names)
    for loop in loops:
        if any(_reads(loop.iter, name, "content") for name in message_names):
            return True
        if isinstance(loop.iter, nodes.Name) and loop.iter.name in in_macros.get(id(loop), {"content"}):
            return True
    return False


def _aliases(root: nodes.Template, name: str) -> list[str]:
    """The names that are set to the variable, or to some of it."""
    from jinja2 import nodes

    found = [name]
    for known in found:
        for each in root.find_all(nodes.Assign):
            if isinstance(each.target, nodes.Name) and _reads(each.node, known) and each.target.name not in found:
                found.append(each.target.name)
    return found


def _macro_loops(root: nodes.Template, message_names: Sequence[str]) -> dict[int, set[str]]:
    """Each loop in a macro (its id) → the macro's parameters that get a message's content."""
    from jinja2 import nodes

    found: dict[int, set[str]] = {}
    for macro in root.find_all(nodes.Macro):
        parameters = set(_content_parameters(root, macro, message_names))
        found |= {id(loop): parameters for loop in macro.find_all(nodes.For)}
    return found


def _content_parameters(root: nodes.Template, macro: nodes.Macro, message_names: Sequence[str]) -> Iterator[str]:
    from jinja2 import nodes

    names = [argument.name for argument in macro.args]
    for call in root.find_all(nodes.Call):
        if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
            continue
        given = [*zip(names, call.args, strict=False), *((each.key, each.value) for each in call.kwargs)]
        for name, value in given:
            if name in names and any(_reads(value, message, "content") for message in message_names):
                yield name


def _reads(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Whether an expression is the variable (or its key), perhaps filtered, tested or cut."""
    from jinja2 import nodes

    if isinstance(node, nodes.Filter | nodes.Test):
        return node.node is not None and _reads(node.node, name, key)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _reads(node.node, name, key)
    if key is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getitem):
        return _reads(node.node, name) and isinstance(node.arg, nodes.Const) and node.arg.value == key
    return isinstance(node, nodes.Getattr) and _reads(node.node, name) and node.attr == key
