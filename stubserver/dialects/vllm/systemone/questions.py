"""The question types of POST /v1/systemone: criteria → labels, and label probabilities → an answer.

Labels, limits and refusals: vLLM 0.32.0, `entrypoints/generate/structured_decisions/question_types.py`. The words that
put a question to the model are ours.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from stubserver.engine.label_reads import Probs
from stubserver.errors import ValidationError

MAX_QUESTIONS = 64


class Option(NamedTuple):
    """One thing that a question can be answered with, and the label that stands for it."""

    label: str
    name: str
    description: str | None = None


class QuestionType(NamedTuple):
    """parse: (question id, criteria) → (name, description) of each option. reply: what the model is asked to say.

    answer: (options, probabilities among the labels [K]) → the answer's own fields. labels: in the options' order.
    """

    parse: Callable[[str, Any], list[tuple[str, str | None]]]
    labels: Sequence[str]
    reply: str
    answer: Callable[[Sequence[Option], list[float]], dict[str, Any]]


class Question(NamedTuple):
    """A question with its options labelled."""

    id: str
    type: str
    instructions: str
    options: Sequence[Option]

    @property
    def labels(self) -> list[str]:
        """The options' labels."""
        return [option.label for option in self.options]


def parse_question(question_id: str, type_name: str, instructions: Any, criteria: Any) -> Question:
    """A question, checked. Raises ValidationError."""
    if not question_id:
        raise ValidationError("question ids must be non-empty")
    if type_name not in QUESTION_TYPES:
        raise ValidationError(f"unknown question type {type_name!r}; supported: {sorted(QUESTION_TYPES)}")
    kind = QUESTION_TYPES[type_name]
    parsed = kind.parse(question_id, criteria)
    if len({name for name, _ in parsed}) != len(parsed):
        raise _refusal(question_id, "duplicate option names")
    if len(parsed) > len(kind.labels):
        raise _refusal(question_id, f"at most {len(kind.labels)} options for this model")
    options = [Option(label, *option) for label, option in zip(kind.labels, parsed, strict=False)]
    return Question(question_id, type_name, "" if instructions is None else str(instructions), options)


def question_text(question: Question) -> str:
    """The question as the model reads it, after the state."""
    lines = [question.instructions] if question.instructions else []
    lines += [_option_text(option) for option in question.options]
    return "\n".join([*lines, QUESTION_TYPES[question.type].reply])


def build_answer(question: Question, probs: Probs, label_mass: float) -> dict[str, Any]:
    """The answer. probs: float64 [K], among the labels; label_mass: what the labels have of the vocabulary's 1."""
    shares: list[float] = probs.tolist()
    fields = QUESTION_TYPES[question.type].answer(question.options, shares)
    # The best label's share of the vocabulary: low where the model rather wanted to say something else.
    return {"type": question.type, **fields, "confidence": max(shares) * label_mass}


def _option_text(option: Option) -> str:
    told = [option.name] if option.name != option.label else []
    told += [option.description] if option.description else []
    return ": ".join([option.label, *told])


def _refusal(question_id: str, reason: str) -> ValidationError:
    return ValidationError(f"question {question_id!r}: {reason}")


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _parse_choice(question_id: str, criteria: Any) -> list[tuple[str, str | None]]:
    if not isinstance(criteria, dict) or not criteria:
        raise _refusal(question_id, "choice criteria must map option names to a description or null")
    return [(name, _text(description)) for name, description in criteria.items()]


def _parse_noul(question_id: str, criteria: Any) -> list[tuple[str, str | None]]:
    if criteria is not None and not (isinstance(criteria, dict) and criteria.keys() <= {"true", "false"}):
        raise _refusal(question_id, "noul criteria must be an object with true and false")
    given = criteria or {}
    return [("yes", _text(given.get("true"))), ("no", _text(given.get("false")))]


def _parse_score(question_id: str, criteria: Any) -> list[tuple[str, str | None]]:
    if not isinstance(criteria, list) or len(criteria) < 2:
        raise _refusal(question_id, "score criteria must be an ordered list of levels")
    return [(str(level), None) for level in criteria]


def _choice(options: Sequence[Option], probs: list[float]) -> dict[str, Any]:
    best = options[probs.index(max(probs))]
    return {"choice": best.name, "probabilities": dict(zip((option.name for option in options), probs, strict=True))}


def _noul(options: Sequence[Option], probs: list[float]) -> dict[str, Any]:
    yes, no = probs
    return {"noul": yes, "probabilities": {"yes": yes, "no": no}}


def _score(options: Sequence[Option], probs: list[float]) -> dict[str, Any]:
    return {
        "score": sum(level * prob for level, prob in enumerate(probs)),
        "legend": {option.label: option.name for option in options},
        "probabilities": dict(zip((option.label for option in options), probs, strict=True)),
    }


QUESTION_TYPES = {
    "choice": QuestionType(
        _parse_choice, string.ascii_uppercase, "Reply with the letter of your choice alone.", _choice
    ),
    "noul": QuestionType(_parse_noul, ("yes", "no"), "Reply with yes or no alone.", _noul),
    "score": QuestionType(_parse_score, string.digits, "Reply with the number of one level alone.", _score),
}
