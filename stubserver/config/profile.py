"""How servers treat parameters of a request: the data of profiles, and the profiles that have a name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

HONOUR = "vllm-0.32"
"""The profile of the server that stubserver imitates: every parameter means what it says."""


class Treatment(BaseModel):
    """What a server does with a parameter. A plain word is short for `{treat: word}`."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    treat: Literal["honour", "ignore", "reject", "truncate"] = Field(
        description="Heed it, do as if it weren't there, answer 400, or lower its value to `above`."
    )
    above: int | None = Field(
        None, ge=0, description="Treat only numbers above this, -1 (all) included; smaller ones are heeded."
    )
    error: dict[Literal["message", "type", "param", "code"], Any] = Field(
        {},
        description="With reject: fields of the error body that differ from vLLM's; "
        "in texts, {parameter}, {value} and {above} are filled in.",
    )
    paths: tuple[str, ...] = Field((), description="Only on these paths; left out, on all generating routes.")

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.treat == "truncate" and self.above is None:
            raise _problem("truncate needs `above`, the largest value that the server allows")
        if self.treat != "reject" and self.error:
            raise _problem(f"`error` goes with reject, not with {self.treat}")
        return self

    def concerns(self, value: Any, path: str) -> bool:
        """Whether this value of the parameter is one that isn't heeded."""
        if self.treat == "honour" or (self.paths and path not in self.paths):
            return False
        if self.above is None:
            return True
        return isinstance(value, int) and not isinstance(value, bool) and (value > self.above or value == -1)


def _word_as_treatment(value: Any) -> Any:
    return {"treat": value} if isinstance(value, str) else value


Given = Annotated[
    Treatment | None,
    BeforeValidator(
        _word_as_treatment,
        json_schema_input_type=Literal["honour", "ignore", "reject"] | Treatment | None,
    ),
]


class Profile(BaseModel):
    """Parameter → what the server does with it, on top of the profile `base`."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    base: str = Field(HONOUR, description="The profile that says what isn't said here.")
    allowed_token_ids: Given = None
    logit_bias: Given = None
    logprobs: Given = None
    top_logprobs: Given = None
    structured_outputs: Given = None
    response_format: Given = None
    logprob_token_ids: Given = None
    return_token_ids: Given = None
    return_tokens_as_token_ids: Given = None
    echo: Given = None
    prompt_logprobs: Given = None

    @model_validator(mode="after")
    def _known_base(self) -> Self:
        if self.base not in PROFILES:
            near = get_close_matches(self.base, PROFILES, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the profiles are {', '.join(PROFILES)}"
            raise _problem(f"{self.base!r} is no profile; {hint}")
        return self

    @cached_property
    def treatments(self) -> Mapping[str, Treatment]:
        """The parameters that aren't simply heeded."""
        own = {name: getattr(self, name) for name in PARAMETERS}
        given = {**PROFILES[self.base], **{name: treatment for name, treatment in own.items() if treatment}}
        return {name: treatment for name, treatment in given.items() if treatment.treat != "honour"}


PARAMETERS = tuple(name for name in Profile.model_fields if name != "base")
"""The parameters that a profile can speak of."""

_IGNORE = Treatment.model_validate({"treat": "ignore"})


def _openai(message: str, above: int | None = None, param: str | None = None, *paths: str) -> Treatment:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": None}
    return Treatment.model_validate({"treat": "reject", "above": above, "error": error, "paths": paths})


_UNRECOGNIZED = _openai("Unrecognized request argument supplied: {parameter}")

PROFILES: dict[str, dict[str, Treatment]] = {
    HONOUR: {},
    # The words are those in public reports: openai-python#433 (unrecognized), lmg-anon/mikupad#55 (greater than the
    # maximum, by a server that has OpenAI's words), confident-ai/deepeval#843 (top_logprobs).
    "openai-like": {
        "logprobs": _openai(
            "{value} is greater than the maximum of {above} - 'logprobs'", 5, "logprobs", "/v1/completions"
        ),
        "top_logprobs": _openai(
            "Invalid value for 'top_logprobs': must be less than or equal to {above}.", 20, "top_logprobs"
        ),
        **dict.fromkeys(
            (
                "allowed_token_ids",
                "structured_outputs",
                "logprob_token_ids",
                "return_token_ids",
                "return_tokens_as_token_ids",
                "prompt_logprobs",
            ),
            _UNRECOGNIZED,
        ),
    },
    "strips-logprobs": dict.fromkeys(("logprobs", "top_logprobs", "logprob_token_ids", "prompt_logprobs"), _IGNORE),
}
"""Name → parameter → treatment; what isn't there is heeded."""


def _name_as_base(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return json.loads(value) if value.lstrip().startswith("{") else {"base": value}


ProfileSetting = Annotated[Profile, BeforeValidator(_name_as_base, json_schema_input_type=str | Profile)]
"""A profile's name, or a profile; as a flag or an environment variable, a name or JSON text."""


def _problem(message: str) -> PydanticCustomError:
    return PydanticCustomError("script", "{message}", {"message": message, "key": None})
