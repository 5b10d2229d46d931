"""The script file's keys: one pydantic model a mapping, from which the published JSON Schema is made.

`python -m stubserver.script.file.schema` writes schema.json anew. What needs more than the file itself (is this text
one token? does that array have the vocabulary's length?) is checked where the rows are built.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from stubserver.config.settings import Settings
from stubserver.faults.keys import AnyFault, check_rule_fault
from stubserver.keys.base import Keys, problem, text_as
from stubserver.keys.when import When

SCHEMA_FILE = Path(__file__).with_name("schema.json")

# Values ---------------------------------------------------------------------------------------------------------------


def _token(value: Any) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise problem(f"a token is a text or an id, got {json.dumps(value, default=str)}: if it is text, quote it")
    return value


_LARGEST = 3e38  # what float32 holds


def _number(value: Any) -> float:
    if value == "-inf":
        return -math.inf
    if value == -math.inf:
        return -math.inf
    # `not <=` rather than `>`, for NaN is refused too.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        raise problem(f"has to be a number or -inf, got {value!r}")
    return float(value)


def _prob(value: Any) -> float:
    number = _number(value)
    if not 0 <= number <= 1:
        raise problem(f"a probability has to be between 0 and 1, got {value!r}")
    return number


def _logprob(value: Any) -> float:
    number = _number(value)
    if number > 0:
        raise problem(f"a logprob has to be 0 or less, got {value!r}")
    return number


def _component(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        raise problem(f"has to be a number, got {value!r}")
    return float(value)


_NUMBER_SCHEMA = {"anyOf": [{"type": "number"}, {"const": "-inf"}]}

Token = Annotated[int | str, PlainValidator(_token), WithJsonSchema({"type": ["string", "integer"]})]
"""How a token is written: its text, its id, `token_id:N`, `bytes:HEX` or `text:TEXT`; see tokens.py."""

Logit = Annotated[float, PlainValidator(_number), WithJsonSchema(_NUMBER_SCHEMA)]
Component = Annotated[float, PlainValidator(_component), WithJsonSchema({"type": "number"})]
Prob = Annotated[float, PlainValidator(_prob), WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1})]
Logprob = Annotated[
    float, PlainValidator(_logprob), WithJsonSchema({"anyOf": [{"type": "number", "maximum": 0}, {"const": "-inf"}]})
]


# Arrays ---------------------------------------------------------------------------------------------------------------


class TableKeys(Keys):
    """A bigram table [V, V]."""

    file: str = Field(description="An .npz file, relative to the script.")
    key: str = Field("table", description="Which array of the .npz.")


class ArrayKeys(Keys):
    """An array [V], or [n, V] for n steps."""

    file: str = Field(description="An .npz or .npy file, relative to the script.")
    key: str | None = Field(None, description="Which array of the .npz; not needed if it has only one.")
    index: int | None = Field(None, description="Take only this row of an array [n, V].")


# Steps ----------------------------------------------------------------------------------------------------------------


def _one_of(*kinds: str) -> dict[str, Any]:
    return {"oneOf": [{"required": [kind]} for kind in kinds]}


class StepKeys(Keys):
    """The logits of one position, or of several in a row: exactly one of the kinds, `rest` beside `logits` only."""

    kinds: ClassVar[tuple[str, ...]] = ("logits", "probs", "logprobs", "text", "tokens", "array")
    model_config = ConfigDict(json_schema_extra=_one_of(*kinds))

    logits: dict[Token, Logit] | None = Field(None, description="Token → logit.")
    rest: Logit | None = Field(None, description="With `logits`: the logit of every token that isn't listed.")
    probs: dict[Token, Prob] | None = Field(
        None, description="Token → probability; what is left of 1 is spread evenly over the other tokens."
    )
    logprobs: dict[Token, Logprob] | None = Field(None, description="Like `probs`, but natural logarithms.")
    text: str | None = Field(None, description="The tokens of this text, one step each, by a wide margin.")
    tokens: list[Token] | None = Field(None, description="These tokens, one step each, by a wide margin.")
    array: Annotated[ArrayKeys, BeforeValidator(text_as("file"), json_schema_input_type=str | ArrayKeys)] | None = (
        Field(None, description="Logits from a file: [V], or [n, V] for n steps.")
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [kind for kind in self.kinds if getattr(self, kind) is not None]
        if len(given) != 1:
            found = f"got {' and '.join(given)}" if given else "got none"
            raise problem(f"needs exactly one of {', '.join(self.kinds)}; {found}")
        if self.rest is not None and self.logits is None:
            raise problem(f"`rest` goes with `logits`; with `{given[0]}` the other tokens' values are known", "rest")
        return self

    @property
    def kind(self) -> str:
        """Which of `kinds` is given."""
        return next(kind for kind in self.kinds if getattr(self, kind) is not None)


class RandomKeys(Keys):
    """Pseudo-random logits that depend on `seed` and on the context alone."""

    scale: float = Field(4.0, gt=0, allow_inf_nan=False, description="Standard deviation of the logits; the mean is 0.")


class DefaultKeys(StepKeys):
    """What answers where no rule does: one step, or `random`."""

    kinds: ClassVar[tuple[str, ...]] = (*StepKeys.kinds, "random")
    model_config = ConfigDict(json_schema_extra=_one_of(*kinds))

    random: RandomKeys | None = Field(None, description="Pseudo-random logits, the same for the same context.")


def _default(value: Any) -> Any:
    if value == "error":
        return None
    if value == "random":
        return {"random": {}}
    if not isinstance(value, dict):
        raise problem(f"has to be error, random, or a step such as {{logits: …, rest: …}}; got {value!r}")
    return value


Default = Annotated[
    DefaultKeys | None,
    BeforeValidator(_default, json_schema_input_type=Literal["error", "random"] | DefaultKeys),
]

# Messages -------------------------------------------------------------------------------------------------------------


class ToolCallKeys(Keys):
    """One call of a tool."""

    name: str = Field(min_length=1, description="The function's name.")
    arguments: dict[str, Any] | str = Field({}, description="A mapping, which is sent as JSON; or text, sent as it is.")
    id: str | None = Field(None, description="The call's id; left out, a random one.")


class MessageKeys(Keys):
    """A chat message: at least one of the keys."""

    reasoning: str | None = Field(None, description="What the model thinks before it answers.")
    content: str | None = Field(None, description="The message's text.")
    tool_calls: list[ToolCallKeys] = Field([], description="The tools that the model calls.")

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.reasoning is None and self.content is None and not self.tool_calls:
            raise problem("needs at least one of reasoning, content, tool_calls")
        return self


# Recordings -----------------------------------------------------------------------------------------------------------


class RecordedKeys(Keys):
    """What is known of a rule whose steps were recorded."""

    top_logprobs: list[Annotated[int, Field(ge=0)]] = Field(
        description="For each step, how many of the likeliest tokens of all are among its own, without a gap."
    )


# Embeddings -----------------------------------------------------------------------------------------------------------


class EmbeddingKeys(Keys):
    """The vectors of POST /v1/embeddings."""

    dimension: int | None = Field(
        None, ge=1, description="Length of every vector; left out, that of `vectors`, else 8."
    )
    vectors: dict[str, list[Component]] = Field(
        {}, description="Text → its vector; every other text gets a pseudo-random one, always the same."
    )

    @field_validator("vectors")
    @classmethod
    def _one_length(cls, vectors: dict[str, list[float]], info: ValidationInfo) -> dict[str, list[float]]:
        dimension = info.data.get("dimension") or next(map(len, vectors.values()), None)
        for text, vector in vectors.items():
            if len(vector) != dimension:
                raise problem(f"has {len(vector)} numbers instead of {dimension}", text)
            if not any(vector):
                raise problem("has no direction: a number has to differ from 0", text)
        return vectors


# The file -------------------------------------------------------------------------------------------------------------


class RuleKeys(Keys):
    """One rule."""

    name: str | None = Field(None, description="For messages.")
    when: When = Field(
        default_factory=lambda: When.model_validate({}), description="Which requests it answers; left out, all."
    )
    steps: list[StepKeys] | None = Field(None, description="What the model says, one position after the other.")
    message: MessageKeys | None = Field(
        None, description="Instead of steps: a chat message, with reasoning and tool calls if wanted."
    )
    then: Literal["eos", "repeat", "error"] = Field(
        "eos", description="After the last step: end of sequence, the last step again and again, or an error."
    )
    recorded: RecordedKeys | None = Field(
        None, description="What is known of steps that were recorded; see the setting `unrecorded`."
    )
    faults: list[Annotated[AnyFault, AfterValidator(check_rule_fault)]] = Field(
        [], description="What goes wrong with the replies that this rule gives."
    )

    @model_validator(mode="after")
    def _steps_or_message(self) -> Self:
        if self.steps is None and self.message is None:
            raise problem("needs `steps`, or a chat `message`")
        if self.steps is not None and self.message is not None:
            raise problem("goes instead of `steps`, not beside it", "message")
        return self

    @model_validator(mode="after")
    def _something_to_repeat(self) -> Self:
        if self.then == "repeat" and not self.steps and not self.message:
            raise problem("there is no step to repeat", "then")
        return self


class ModelKeys(Keys, Settings):
    """What a model says, and beside it any of the settings."""

    model_config = ConfigDict(strict=False)

    vocab: list[Annotated[str, Field(min_length=1)]] = Field(
        [], description="Texts that become single tokens on top of the tokenizer's."
    )
    vocab_size: int | None = Field(
        None,
        ge=1,
        strict=True,
        description="Length of every row, for models whose rows are longer than the tokenizer's vocabulary.",
    )
    rules: list[RuleKeys] | None = Field(None, description="The first one that matches the request answers it.")
    default: Default = Field(None, description="What answers where no rule does: error, random, or one step.")
    bigram: Annotated[TableKeys, BeforeValidator(text_as("file"), json_schema_input_type=str | TableKeys)] | None = (
        Field(None, description="A table [V, V]: the row of the context's last token.")
    )
    callable: str | None = Field(
        None, description="`file.py:function` or `module:function`, context → logits; relative to the script."
    )
    embeddings: EmbeddingKeys = Field(
        default_factory=lambda: EmbeddingKeys.model_validate({}),
        description="Vectors for POST /v1/embeddings, beside whatever else the script says.",
    )


class ScriptFile(ModelKeys):
    """A script file of one model; one of several is taken apart before it is checked (models.py)."""

    models: None = None
    faults: list[AnyFault] = Field([], description="What goes wrong with the server's replies.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [key for key in ("bigram", "callable") if getattr(self, key) is not None]
        if self.rules is not None or self.default is not None:
            given.append("rules or default")
        if len(given) != 1:
            found = f"got {' and '.join(given)}" if given else "got none of them"
            raise problem(f"needs exactly one of: rules (with or without default), bigram, callable; {found}")
        return self


class PublishedFile(ScriptFile):
    """A script file: one model, or several that share what stands beside `models`."""

    model_config = ConfigDict(title="stubserver script")

    models: list[ModelKeys] | None = Field(  # type: ignore[assignment]
        None, description="Several models: each has the file's other keys, with its own on top."
    )


def json_schema() -> str:
    """The published JSON Schema, as the text of schema.json."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **PublishedFile.model_json_schema()}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(json_schema(), encoding="utf-8")
