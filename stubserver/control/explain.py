"""GET and POST /stub/explain: a dry run. Which rule would answer a request, and what its first token is drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import TypeAdapter
from starlette.requests import Request

from stubserver.dialects.vllm.chat.protocol import ChatCompletionRequest
from stubserver.dialects.vllm.chat.serving import chat_params, check_setup, render_prompt
from stubserver.dialects.vllm.completions.protocol import CompletionRequest
from stubserver.dialects.vllm.completions.serving import completion_params, prompts_of
from stubserver.dialects.vllm.prompts import Prompt
from stubserver.dialects.vllm.protocol import requested_constraint
from stubserver.engine.explain import Explanation, TopToken, explain
from stubserver.engine.generate import Generation
from stubserver.engine.model import Model
from stubserver.engine.terms import Terms
from stubserver.errors import UnscriptedError
from stubserver.journal.json_values import describe_label, no_infinity
from stubserver.sampling.params import SamplingParams
from stubserver.script.passed_over import explain_passed_over
from stubserver.serving.body import validate
from stubserver.serving.generations import script_request
from stubserver.serving.state import ServerState

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"

DEFAULT_TOP = 10
"""How many of the best tokens are shown."""

_COMPLETION_ADAPTER = TypeAdapter(CompletionRequest)
_CHAT_ADAPTER = TypeAdapter(ChatCompletionRequest)

Headers = Sequence[tuple[bytes, bytes]]


class _Asked(NamedTuple):
    """A request, understood: what every prompt of it has in common, and the prompts with their parameters."""

    model: Model
    constraint: tuple[str, Any] | None
    prompts: Sequence[tuple[Prompt, SamplingParams]]


def explain_body(state: ServerState, body: Any, headers: Headers, top: int = DEFAULT_TOP) -> dict[str, Any]:
    """The dry run of a request body, as JSON values; one with `messages` is a chat request.

    Raises RequestError for what the request itself would be refused for, but not if the script has no answer.
    """
    chat = isinstance(body, dict) and "messages" in body
    path = CHAT if chat else COMPLETIONS
    request = Request({"type": "http", "method": "POST", "path": path, "headers": headers})
    asked = _chat(state, body) if chat else _completion(state, body)
    return {
        "endpoint": path,
        "model": asked.model.name,
        "logprobs_mode": asked.model.settings.logprobs_mode,
        "prompts": [_prompt(request, body, asked, prompt, params, top) for prompt, params in asked.prompts],
    }


def _completion(state: ServerState, body: Any) -> _Asked:
    parsed = validate(body, _COMPLETION_ADAPTER)
    model = state.find_model(parsed.model)
    prompts = [
        (prompt, completion_params(model, parsed, len(prompt.token_ids))) for prompt in prompts_of(parsed, model)
    ]
    return _Asked(model, requested_constraint(parsed.structured_outputs, parsed.response_format), prompts)


def _chat(state: ServerState, body: Any) -> _Asked:
    parsed = validate(body, _CHAT_ADAPTER)
    model = state.find_model(parsed.model)
    check_setup(model, parsed)
    prompt = render_prompt(model, parsed, parsed.messages)
    params = chat_params(model, parsed, len(prompt.token_ids))
    return _Asked(model, requested_constraint(parsed.structured_outputs, parsed.response_format), [(prompt, params)])


def _prompt(
    request: Request, body: dict[str, Any], asked: _Asked, prompt: Prompt, params: SamplingParams, top: int
) -> dict[str, Any]:
    seen = script_request(request, body, asked.model, prompt, params)
    rule, rows = None, {}
    try:
        answer = asked.model.script.bind(seen)
        rule = answer.rule
        rows = _rows(explain(Generation(Terms(asked.model, params, asked.constraint), seen, answer), top))
    except UnscriptedError as error:
        rows = error.body()
    return {
        "prompt": prompt.text,
        "prompt_token_ids": list(prompt.token_ids),
        "rule": rule,
        "passed_over": explain_passed_over(asked.model.script, seen, rule),
        **rows,
    }


def _rows(explanation: Explanation) -> dict[str, Any]:
    masked_by = explanation.masked_by
    labels = [{**describe_label(each), "masked_by": masked_by.get(each.token_id)} for each in explanation.labels]
    return {"raw": _top(explanation.raw), "processed": _top(explanation.processed), "labels": labels}


def _top(tokens: Sequence[TopToken]) -> list[dict[str, Any]]:
    return [no_infinity(token._asdict()) for token in tokens]
