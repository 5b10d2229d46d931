"""POST /v1/systemone."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict

from stubserver.dialects.vllm.protocol import Priority, ReplyModel, RequestId, RequestModel, SaltedRequest


class QuestionSpec(RequestModel):
    """A question as it came. Unknown fields are kept, for they are refused by name."""

    model_config = ConfigDict(extra="allow")

    type: str
    instructions: Any = ""
    criteria: Any = None


class DecisionRequest(SaltedRequest):
    """The fields of vLLM's request; `cache_salt` and `priority` have no effect. `state`: text or JSON."""

    model: str | None = None
    state: Any
    questions: dict[str, QuestionSpec]
    instructions: str | None = None
    images: list[str] | None = None
    audio: list[str] | None = None
    videos: list[str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None
    priority: Priority = 0
    request_id: RequestId = None


class DecisionUsage(ReplyModel):
    """Token counts."""

    input_tokens: int
    output_tokens: int


class QuestionDiagnostics(ReplyModel):
    """How much the model wanted to answer with a label at all."""

    label_mass: float
    argmax_is_label: bool


class DecisionReply(ReplyModel):
    """Answers and diagnostics by question id; an answer's fields depend on its question's type."""

    id: str
    object: Literal["structured_decision"]
    created: int
    model: str
    answers: dict[str, dict[str, Any]]
    usage: DecisionUsage
    diagnostics: dict[str, QuestionDiagnostics]
