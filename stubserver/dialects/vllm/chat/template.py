"""A conversation → the text of its prompt: which template, which of its arguments, in which form the messages.

Source of the rules: vLLM 0.32.0, `renderers/hf.py`, `renderers/params.py`, and transformers' `apply_chat_template`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stubserver.dialects.vllm.chat.conversation import TemplateMessage, read_conversation, without_developers
from stubserver.engine.model import Model
from stubserver.errors import RequestError
from stubserver.tokenizer.chat_template import read_template, render_chat

UNSET = (None, "auto")
"""Values that leave a template's argument as it is."""

POSITIONAL = ("model_config", "tokenizer", "conversation")
"""Arguments of the function that vLLM hands them to, which can't be given twice."""

TRANSFORMERS_ARGUMENTS = frozenset(
    {
        *("self", "conversation", "tools", "documents", "chat_template", "add_generation_prompt"),
        *("continue_final_message", "tokenize", "padding", "truncation", "max_length", "return_tensors"),
        *("return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs"),
    }
)
"""Those of `apply_chat_template`. What else a request brings reaches a template that reads a variable so called."""


class TemplateOptions(NamedTuple):
    """What a request says about its template.

    template: the field `chat_template`. given: `chat_template_kwargs`. fields: the request's own fields that are
    arguments too, and win. tools: of the request; `given` may have others.
    """

    template: str | None
    given: Mapping[str, Any]
    fields: Mapping[str, Any]
    tools: Sequence[Mapping[str, Any]] | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """What the template is told, the request's own fields before what it gives besides."""
        told = {"tools": self.tools}
        for each in (self.given, self.fields):
            told |= {name: value for name, value in each.items() if value not in UNSET}
        return told


def check_template_trusted(model: Model, options: TemplateOptions) -> None:
    """Refuse a template from a request unless the server was told to trust them. Raises RequestError."""
    brought = options.template is not None or options.given.get("chat_template") is not None
    if brought and not model.settings.trust_request_chat_template:
        raise RequestError(
            "Chat template is passed with request, but --trust-request-chat-template is not set. "
            "Refused request with untrusted chat template."
        )


def read_messages(model: Model, messages: Sequence[Any], options: TemplateOptions) -> list[TemplateMessage]:
    """Checked messages as the template gets them. Raises RequestError for what can't be read."""
    source = options.template or model.tokenizer.chat_template
    takes_parts = source is not None and read_template(source).takes_parts
    return read_conversation(messages, model.name, takes_parts=takes_parts)


def render_messages(model: Model, messages: Sequence[TemplateMessage], options: TemplateOptions) -> str:
    """The prompt that they make. Raises RequestError for what can't be rendered."""
    arguments = options.arguments
    given = arguments.pop("chat_template", None)
    if given is None or options.template:
        given = options.template or model.tokenizer.chat_template
    source = _checked_template(given)
    for name in POSITIONAL:
        if name in arguments:
            raise RequestError(f"safe_apply_chat_template() got multiple values for argument {name!r}")
    if source is None:
        return render_chat(model.tokenizer, messages, add_generation_prompt=True)
    if not any(quoted in source for quoted in ('"developer"', "'developer'")):
        messages = without_developers(messages)
    return render_chat(model.tokenizer, messages, template=source, **_sorted_out(source, arguments))


def _checked_template(template: Any) -> str | None:
    """Raises RequestError for what is no text, in Python's and Jinja's words."""
    if template is None or isinstance(template, str):
        return template
    if isinstance(template, list | dict):
        raise RequestError(f"unhashable type: '{type(template).__name__}'")
    raise RequestError("Can't compile non template nodes")


def _sorted_out(source: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that reach the template, as `render_chat` takes them. Raises RequestError for what can't be."""
    if "self" in arguments:
        # vLLM's tokenizer is one of a pool; its words.
        raise RequestError(
            "maybe_make_thread_pool.<locals>.TokenizerPool.apply_chat_template() got multiple values for argument "
            "'self'"
        )
    if arguments.get("return_assistant_tokens_mask"):
        raise RequestError("`return_assistant_tokens_mask=True` requires `return_dict=True` and `tokenize=True`")
    variables = read_template(source).variables - TRANSFORMERS_ARGUMENTS
    own = {name: value for name, value in arguments.items() if name in variables}
    begins, continues = bool(arguments.get("add_generation_prompt")), bool(arguments.get("continue_final_message"))
    tools, documents = arguments.get("tools"), arguments.get("documents")
    if not (begins and continues):
        # Those two together are refused first, when it comes to rendering.
        tools, documents = _checked_tools(tools), _checked_documents(documents)
    return {
        "add_generation_prompt": begins,
        "continue_final_message": continues,
        "tools": tools,
        "documents": documents,
        "template_kwargs": own,
    }


def _checked_tools(tools: Any) -> Any:
    """Raises RequestError for tools that are no objects."""
    if tools is not None and not all(isinstance(tool, dict) for tool in _iterated(tools)):
        raise RequestError(
            "Tools should either be a JSON schema, or a callable function with type hints and a docstring suitable "
            "for auto-conversion to a schema."
        )
    return tools if tools is None else list(tools)


def _checked_documents(documents: Any) -> Any:
    """Raises RequestError for documents that are no objects."""
    if documents is not None and not all(isinstance(document, dict) for document in _iterated(documents)):
        raise RequestError("Documents should be a list of dicts with 'title' and 'text' keys!")
    return documents


def _iterated(values: Any) -> list[Any]:
    try:
        return list(values)
    except TypeError as error:
        raise RequestError(str(error)) from None
