"""GET and POST /stub/explain: a dry run. Which rule would answer a request, and what its first token is drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stubserver.control.controls import Controls
from stubserver.engine.explain import Explanation, TopToken, explain
from stubserver.engine.generate import Generation
from stubserver.engine.terms import EngineRequest
from stubserver.errors import RequestError, UnscriptedError
from stubserver.journal.json_values import describe_label, no_infinity
from stubserver.profiles.treat import treat
from stubserver.script.context import ScriptRequest
from stubserver.script.passed_over import explain_passed_over
from stubserver.serving.asked import Prompt
from stubserver.serving.dialect import Endpoint
from stubserver.serving.start import script_request
from stubserver.serving.wire import Wire

DEFAULT_TOP = 10
"""How many of the best tokens are shown."""

Headers = list[tuple[bytes, bytes]]


def explain_body(
    controls: Controls, body: Any, headers: Headers, top: int = DEFAULT_TOP, path: str | None = None
) -> dict[str, Any]:
    """The dry run of a request body, as JSON values. path: where it would go; left out, its fields tell.

    Raises RequestError for what the request itself would be refused for, but not if the script has no answer.
    """
    state, endpoint = controls.served, _find_endpoint(controls, body, path)
    understand = endpoint.load().understand
    if understand is None:
        raise RequestError(f"{endpoint.path} asks for no tokens, so there is nothing to explain.", parameter="path")
    if isinstance(body, dict):
        body = treat(body, state.profile_of(body.get("model")), endpoint.path, controls.dialect.parameter_places)
    asked = understand(state, body)
    prompts = []
    for prompt, engine_request in zip(asked.prompts, asked.engine_requests, strict=True):
        seen = script_request(endpoint.path, headers, body, asked.model, prompt, engine_request.params)
        prompts.append(_explain(seen, prompt, engine_request, top, controls.dialect.wire))
    return {
        "endpoint": endpoint.path,
        "model": asked.model.name,
        "logprobs_mode": asked.model.settings.logprobs_mode,
        "prompts": prompts,
    }


def _find_endpoint(controls: Controls, body: Any, path: str | None) -> Endpoint:
    """The endpoint at this path; else the one whose field the body has; else the first one."""
    generating = [endpoint for endpoint in controls.dialect.endpoints if endpoint.generates]
    if path is not None:
        found = next((endpoint for endpoint in generating if endpoint.path == path), None)
        if found is None:
            known = ", ".join(endpoint.path for endpoint in generating)
            raise RequestError(f"{path} is no path that generates; those are {known}.", parameter="path")
        return found
    fields = body if isinstance(body, dict) else {}
    return next((endpoint for endpoint in generating if endpoint.told_by in fields), generating[0])


def _explain(
    seen: ScriptRequest, prompt: Prompt, engine_request: EngineRequest, top: int, wire: Wire
) -> dict[str, Any]:
    script, rule, rows = engine_request.model.script, None, {}
    try:
        answer = script.bind(seen)
        rule = answer.rule
        rows = _rows(explain(Generation(engine_request, seen, answer), top))
    except UnscriptedError as error:
        _, rows = wire.error_reply(error)
    return {
        "prompt": prompt.text,
        "prompt_token_ids": list(prompt.token_ids),
        "rule": rule,
        "passed_over": explain_passed_over(script, seen, rule),
        **rows,
    }


def _rows(explanation: Explanation) -> dict[str, Any]:
    masked_by = explanation.masked_by
    labels = [{**describe_label(each), "masked_by": masked_by.get(each.token_id)} for each in explanation.labels]
    return {"raw": _top(explanation.raw), "processed": _top(explanation.processed), "labels": labels}


def _top(tokens: Sequence[TopToken]) -> list[dict[str, Any]]:
    return [no_infinity(token._asdict()) for token in tokens]
