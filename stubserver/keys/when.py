"""Conditions as a script writes them: which requests a rule answers, and which ones a fault befalls."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator

from stubserver.keys.base import Keys, list_of_names, problem, text_as


def _plain_as_exact(value: Any) -> Any:
    return value if isinstance(value, dict) else {"exact": value}


class Match(Keys):
    """How a value is compared: all that is given must hold."""

    may_be_null: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.model_fields_set:
            raise problem(f"needs at least one of {', '.join(type(self).model_fields)}")
        for key in self.model_fields_set - self.may_be_null:
            if getattr(self, key) is None:
                raise problem("has no value", key)
        return self


class PromptMatch(Match):
    """How the prompt is compared."""

    exact: str | None = Field(None, description="The whole text.")
    contains: str | None = Field(None, description="A part of the text.")
    regex: str | None = Field(None, description="A Python regular expression, found anywhere in the text.")
    token_ids: list[Annotated[int, Field(ge=0)]] | None = Field(None, description="All of the prompt's token ids.")


class HeaderMatch(Match):
    """How a header is compared."""

    exact: str | None = Field(None, description="The whole value.")
    contains: str | None = Field(None, description="A part of the value.")
    regex: str | None = Field(None, description="A Python regular expression, found anywhere in the value.")
    exists: bool | None = Field(None, description="Whether the request has this header.")


class FieldMatch(Match):
    """How a field of the request's JSON body is compared."""

    may_be_null: ClassVar[frozenset[str]] = frozenset({"exact"})

    exact: Any = Field(None, description="The value, compared as JSON: 1 is 1.0, but neither true nor a text.")
    contains: str | None = Field(None, description="A part of the text.")
    regex: str | None = Field(None, description="A Python regular expression, found anywhere in the text.")
    exists: bool | None = Field(None, description="Whether the body has this field.")


class When(Keys):
    """Which requests are meant: all that is given must hold."""

    prompt: (
        Annotated[PromptMatch, BeforeValidator(text_as("exact"), json_schema_input_type=str | PromptMatch)] | None
    ) = Field(None, description="The prompt: its exact text, or a mapping.")
    model: Annotated[list[str], BeforeValidator(list_of_names, json_schema_input_type=str | list[str])] | None = Field(
        None, description="The model's name as the request has it, or a list of names."
    )
    field: dict[str, Annotated[FieldMatch, BeforeValidator(_plain_as_exact, json_schema_input_type=Any)]] = Field(
        {}, description="Path into the JSON body, such as `messages[-1].content`, → value or mapping."
    )
    header: dict[
        str, Annotated[HeaderMatch, BeforeValidator(text_as("exact"), json_schema_input_type=str | HeaderMatch)]
    ] = Field({}, description="Header → value or mapping.")
