"""What a server with other habits understands of a request: the body that it would have acted on, or its refusal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from stubserver.config.profile import Profile, Treatment
from stubserver.errors import RequestError, SchemaError

Body = dict[str, Any]


def treat(body: Body, profile: Profile, path: str, places: Sequence[str]) -> Body:
    """The body without what is ignored, and with what is too large lowered; the same object if nothing is.

    places: the objects of a body that hold parameters, beside the body itself. Raises SchemaError for the first
    parameter that isn't taken; its fact `override` has what the profile says of the error's body.
    """
    concerned = list(_concerned(body, profile, path, places))
    for place, name, treatment in concerned:
        if treatment.treat == "reject":
            raise _refusal(name, _mapping(body, place)[name], treatment)
    if not concerned:
        return body
    treated = {key: dict(value) if key in places and isinstance(value, dict) else value for key, value in body.items()}
    for place, name, treatment in concerned:
        mapping = _mapping(treated, place)
        if treatment.treat == "ignore":
            del mapping[name]
        else:
            mapping[name] = treatment.above
    return treated


def _mapping(body: Body, place: str) -> Body:
    found = body.get(place) if place else body
    return found if isinstance(found, dict) else {}


def _concerned(body: Body, profile: Profile, path: str, places: Sequence[str]) -> Iterator[tuple[str, str, Treatment]]:
    """(place, parameter, treatment) of what is in the body and isn't simply heeded."""
    for place in ("", *places):
        mapping = _mapping(body, place)
        for name in [name for name in mapping if name in profile.treatments]:
            treatment = profile.treatments[name]
            if treatment.concerns(mapping[name], path):
                yield place, name, treatment


def _refusal(name: str, value: Any, treatment: Treatment) -> RequestError:
    """What the server says to a field that it doesn't know or a value that is too large, and what the profile says."""
    if treatment.above is None:
        kind, message = "extra_forbidden", "Extra inputs are not permitted"
    else:
        kind, message = "less_than_equal", f"Input should be less than or equal to {treatment.above}"
    known = {"{parameter}": name, "{value}": json.dumps(value), "{above}": str(treatment.above)}
    override = {key: _filled(part, known) for key, part in treatment.error.items()}
    return SchemaError(problems=[{"type": kind, "loc": (name,), "msg": message}], override=override)


def _filled(text: Any, known: dict[str, str]) -> Any:
    if isinstance(text, str):
        for placeholder, value in known.items():
            text = text.replace(placeholder, value)
    return text
