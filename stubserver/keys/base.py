"""What every mapping of a script file has in common, and how its mistakes are put into words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from stubserver.config.settings import Settings


def problem(message: str, key: Any = None) -> PydanticCustomError:
    """An error whose message is ready for people; `key` says at which key of the mapping it is."""
    return PydanticCustomError("script", "{message}", {"message": message, "key": key})


class Keys(BaseModel):
    """A mapping of the script. An unknown key is an error that names the nearest known one."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _no_unknown_keys(cls, data: Any) -> Any:
        for key in data if isinstance(data, dict) else ():
            if key not in cls.model_fields:
                own_first = sorted(cls.model_fields, key=lambda known: known in Settings.model_fields)
                raise problem(f"unknown key; {suggest(key, own_first, 'keys')}", key)
        return data


def suggest(given: Any, known: Iterable[str], what: str) -> str:
    """What may have been meant; `what` the known ones are, for people."""
    names = list(known)
    near = get_close_matches(str(given), names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"the {what} here are {', '.join(names)}"


def text_as(key: str) -> Callable[[Any], Any]:
    """A validator that reads a plain text as a mapping with this one key."""
    return lambda value: {key: value} if isinstance(value, str) else value


def list_of_names(value: Any) -> Any:
    """A validator that reads a plain text as a list with one entry."""
    return [value] if isinstance(value, str) else value
