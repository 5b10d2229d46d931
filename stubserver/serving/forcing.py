"""Teacher forcing: the header that says which tokens decoding has to take."""

from __future__ import annotations

import json
from typing import Any

from starlette.types import Scope

from stubserver.asgi import find_header
from stubserver.engine.model import Model
from stubserver.errors import TokenizerError, ValidationError

FORCE_HEADER = "X-Stub-Force-Token-Ids"
_HEADER = FORCE_HEADER.lower().encode()


def forced_token_ids(scope: Scope, model: Model) -> list[list[int]]:
    """The token ids that each choice has to follow, choice by choice; none without the header.

    The header holds a JSON list with one list per choice; an item is a token id or the text of one token.
    Raises ValidationError if it is anything else.
    """
    given = find_header(scope, _HEADER)
    if given is None:
        return []
    try:
        choices = json.loads(given)
    except (ValueError, RecursionError) as error:
        raise ValidationError(f"{FORCE_HEADER} is not JSON: {error}") from None
    if not isinstance(choices, list) or not all(isinstance(choice, list) for choice in choices):
        raise ValidationError(f"{FORCE_HEADER} must be a list with one list of tokens per choice, such as [[276, 29]]")
    return [[_token_id(item, model) for item in choice] for choice in choices]


def _token_id(item: Any, model: Model) -> int:
    if isinstance(item, str):
        try:
            return model.tokenizer.one_token(item)
        except TokenizerError as error:
            raise ValidationError(f"{FORCE_HEADER}: {error}") from None
    if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < model.vocab_size:
        message = f"{FORCE_HEADER}: {item!r} is neither a token id below {model.vocab_size} nor the text of one token"
        raise ValidationError(message)
    return item
