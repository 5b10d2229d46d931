"""Clients that read labels, each an adapter of the contract suite: right ones, and one a clause that is wrong there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from math import exp, isfinite, log
from typing import Any, ClassVar

import httpx

from stubserver.testing import LabelReadbackContract, LabelRequest
from stubserver.testing.contract import NoSingleTokenError

FILLED_IN = -30.0


class MissingLabelError(Exception):
    pass


def post(request: LabelRequest, path: str, body: Mapping[str, Any]) -> Any:
    """The JSON of a good reply."""
    headers = {"authorization": f"Bearer {request.api_key}"}
    reply = httpx.post(
        f"{request.base_url}/{path}", json={"model": request.model, **body}, headers=headers, verify=False
    )
    reply.raise_for_status()
    return reply.json()


def checked(values: Sequence[float]) -> Sequence[float]:
    if not all(map(isfinite, values)):
        raise ValueError(f"no numbers: {values}")
    return values


# Right ones


class ByMask(LabelReadbackContract):
    """allowed_token_ids, and the top K by id: raises where a label is missing, as in raw mode."""

    missing_label_errors = MissingLabelError

    def ids(self, request: LabelRequest) -> Sequence[int]:
        return request.label_ids

    def complete(self, request: LabelRequest, body: Mapping[str, Any]) -> Any:
        return post(request, "completions", body)

    def body(self, request: LabelRequest) -> dict[str, Any]:
        return {
            "prompt": request.prompt,
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": len(request.labels),
            "allowed_token_ids": self.ids(request),
            "return_tokens_as_token_ids": True,
        }

    def read_labels(self, request: LabelRequest) -> Sequence[float]:
        reply = self.complete(request, self.body(request))
        top = reply["choices"][0]["logprobs"]["top_logprobs"][0]
        return self.pick(request, {int(token.removeprefix("token_id:")): value for token, value in top.items()})

    def pick(self, request: LabelRequest, top: dict[int, float]) -> Sequence[float]:
        """`top`: the sampled token first."""
        ids = self.ids(request)
        missing = [label for label, token_id in zip(request.labels, ids, strict=True) if token_id not in top]
        if missing:
            raise MissingLabelError(f"no logprobs of {missing}")
        return checked([top[token_id] for token_id in ids])


class ById(ByMask):
    """logprob_token_ids: every label has a value in every mode."""

    def body(self, request: LabelRequest) -> dict[str, Any]:
        others = {key: value for key, value in super().body(request).items() if key != "allowed_token_ids"}
        return {**others, "logprobs": 1, "logprob_token_ids": self.ids(request)}


class ByIdAgain(ById):
    """The same, asked again after a 429."""

    def complete(self, request: LabelRequest, body: Mapping[str, Any]) -> Any:
        try:
            return super().complete(request, body)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != 429:
                raise
            return super().complete(request, body)


class ByIdAsync(ById):
    """The same, asynchronously, and as probabilities that add up to 1."""

    async def read_labels(self, request: LabelRequest) -> Sequence[float]:  # type: ignore[override]
        async with httpx.AsyncClient(base_url=request.base_url, verify=False) as client:
            reply = await client.post("/completions", json=self.body(request))
        reply.raise_for_status()
        top = reply.json()["choices"][0]["logprobs"]["top_logprobs"][0]
        values = self.pick(request, {int(token.removeprefix("token_id:")): value for token, value in top.items()})
        total = sum(map(exp, values))
        return [exp(value) / total for value in values]


class ByMaskChecked(ByMask):
    """Wants processed mode, and finds out: the labels' probabilities have to add up to 1."""

    not_applicable: ClassVar = {
        "raw_values_have_right_ratios": "processed mode only",
        "sampled_label_counts_once": "the same",
    }

    def pick(self, request: LabelRequest, top: dict[int, float]) -> Sequence[float]:
        values = super().pick(request, top)
        if abs(sum(map(exp, values)) - 1) > 1e-3:
            raise ValueError("not normalised over the labels: is the server in processed mode?")
        return values


class ByText(LabelReadbackContract):
    """Nothing but a chat's top 20, by text: raises where a text is missing or there twice."""

    missing_label_errors = MissingLabelError
    chat: ClassVar = {"max_tokens": 1, "temperature": 0, "logprobs": True, "top_logprobs": 20}

    def read_labels(self, request: LabelRequest) -> Sequence[float]:
        messages = [{"role": "user", "content": request.prompt}]
        reply = post(request, "chat/completions", {"messages": messages, **self.chat, **self.more(request)})
        return checked(self.pick(request, reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]))

    def more(self, request: LabelRequest) -> dict[str, Any]:
        return {}

    def pick(self, request: LabelRequest, top: Sequence[Mapping[str, Any]]) -> Sequence[float]:
        texts = [entry["token"] for entry in top]
        for label in request.labels:
            if label not in texts:
                raise MissingLabelError(f"no logprob of {label!r}")
            if texts.count(label) > 1 or request.labels.count(label) > 1:
                raise ValueError(f"two tokens have the text {label!r}")
        return [top[texts.index(label)]["logprob"] for label in request.labels]


class ByChoice(ByText):
    """structured_outputs: the mask is there in raw mode too. The values of masked tokens are no values."""

    def more(self, request: LabelRequest) -> dict[str, Any]:
        return {"structured_outputs": {"choice": request.labels}}

    def pick(self, request: LabelRequest, top: Sequence[Mapping[str, Any]]) -> Sequence[float]:
        return super().pick(request, [entry for entry in top if entry["logprob"] > -9999])


class ByLogitBias(ByText):
    """A bias of 100 for each label: a mask in processed mode."""

    def more(self, request: LabelRequest) -> dict[str, Any]:
        return {"logit_bias": {str(token_id): 100 for token_id in request.label_ids}}


class ByEcho(LabelReadbackContract):
    """The prompt with each label after it, scored by `echo`: labels may be several tokens."""

    def read_labels(self, request: LabelRequest) -> Sequence[float]:
        return [self.score(request, number) for number in range(len(request.labels))]

    def score(self, request: LabelRequest, number: int) -> float:
        start = len(self.tokenize(request, request.prompt))
        try:
            label_ids = [request.label_ids[number]]
        except NoSingleTokenError:
            label_ids = self.tokenize(request, request.labels[number])
        ids = [*self.tokenize(request, request.prompt), *label_ids]
        body = {"prompt": ids, "echo": True, "max_tokens": 1, "logprobs": 1, "temperature": 0}
        values = post(request, "completions", body)["choices"][0]["logprobs"]["token_logprobs"]
        return sum(checked(values[start:-1]))

    def tokenize(self, request: LabelRequest, text: str) -> list[int]:
        reply = httpx.post(f"{request.url}/tokenize", json={"prompt": text, "add_special_tokens": False}, verify=False)
        ids: list[int] = reply.json()["tokens"]
        return ids


# Wrong ones


class Shifted(ById):
    """Sets the best label to 0."""

    def pick(self, request: LabelRequest, top: dict[int, float]) -> Sequence[float]:
        values = super().pick(request, top)
        return [value - max(values) for value in values]


class OnTopic(ByMask):
    """Right, and raises if the sampled token is no label: the server ignored the mask."""

    def pick(self, request: LabelRequest, top: dict[int, float]) -> Sequence[float]:
        if next(iter(top)) not in self.ids(request):
            raise MissingLabelError(f"another token than {request.labels} was sampled")
        return super().pick(request, top)


class Fills(OnTopic):
    """A label that isn't in the K entries it asked for gets -30."""

    def pick(self, request: LabelRequest, top: dict[int, float]) -> Sequence[float]:
        if len(top) >= len(request.labels):
            top = top | {token_id: FILLED_IN for token_id in self.ids(request) if token_id not in top}
        return super().pick(request, top)


class SharesTheRest(OnTopic):
    """Probabilities that add up to less than 0.9 are made 1, by an even share for each label."""

    def pick(self, request: LabelRequest, top: dict[int, float]) -> Sequence[float]:
        probs = [exp(value) for value in super().pick(request, top)]
        share = (1 - sum(probs)) / len(probs) if sum(probs) < 0.9 else 0
        return [prob + share for prob in probs]


class CountsTheExtraTwice(ByMask):
    """Adds the sampled token to the entries if there are more than it asked for."""

    def pick(self, request: LabelRequest, top: dict[int, float]) -> Sequence[float]:
        first = next(iter(top))
        return super().pick(request, top | {first: top[first] + log(2)} if len(top) > len(request.labels) else top)


class AsTheyCome(ById):
    """Results in the order of the replies."""

    def read_many(self, requests: Sequence[LabelRequest]) -> list[Any]:
        with ThreadPoolExecutor(len(requests)) as threads:
            reads = [threads.submit(self.read_labels, request) for request in requests]
            return [read.result() for read in as_completed(reads)]


class Strips(ByText):
    """Adds up the tokens that are the label but for spaces."""

    def pick(self, request: LabelRequest, top: Sequence[Mapping[str, Any]]) -> Sequence[float]:
        merged: dict[str, float] = {}
        for entry in top:
            text = entry["token"].strip()
            merged[text] = merged.get(text, 0.0) + exp(entry["logprob"])
        stripped = [
            {"token": label, "logprob": log(merged[label.strip()])}
            for label in request.labels
            if label.strip() in merged
        ]
        return super().pick(request, stripped)


class LastTextWins(ByMask):
    """A completion's top K, by text."""

    def body(self, request: LabelRequest) -> dict[str, Any]:
        return super().body(request) | {"return_tokens_as_token_ids": False, "allowed_token_ids": None}

    def read_labels(self, request: LabelRequest) -> Sequence[float]:
        top = self.complete(request, self.body(request))["choices"][0]["logprobs"]["top_logprobs"][0]
        missing = [label for label in request.labels if label not in top]
        if missing:
            raise MissingLabelError(f"no logprobs of {missing}")
        return checked([top[label] for label in request.labels])


class FirstToken(ById):
    """A label of several tokens is its first one."""

    def ids(self, request: LabelRequest) -> Sequence[int]:
        try:
            return request.label_ids
        except NoSingleTokenError:
            return [ByEcho.tokenize(ByEcho(), request, label)[0] for label in request.labels]


class AnyByte(ByText):
    """Looks for a token of bytes as it is shown: by an empty text."""

    def pick(self, request: LabelRequest, top: Sequence[Mapping[str, Any]]) -> Sequence[float]:
        first = [
            entry for number, entry in enumerate(top) if entry["token"] or not any(not e["token"] for e in top[:number])
        ]
        shown = [{**entry, "token": entry["token"] or "\ufffd"} for entry in first]
        return super().pick(request, shown)


class AsksForLess(ByMask):
    """After a 400 it asks for 5, and gives the others the least of their values."""

    def read_labels(self, request: LabelRequest) -> Sequence[float]:
        try:
            return super().read_labels(request)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != 400:
                raise
        reply = self.complete(request, self.body(request) | {"logprobs": 5})
        top = reply["choices"][0]["logprobs"]["top_logprobs"][0]
        return [top.get(f"token_id:{token_id}", min(top.values())) for token_id in self.ids(request)]


class FillsTheTail(ByMask):
    """If the server cut some entries off, the labels without one get the least value."""

    def pick(self, request: LabelRequest, top: dict[int, float]) -> Sequence[float]:
        if len(request.labels) / 2 < len(top) < len(request.labels):
            return [top.get(token_id, min(top.values())) for token_id in self.ids(request)]
        return super().pick(request, top)


class SureOfOne(ByMask):
    """One entry: the model is sure."""

    def pick(self, request: LabelRequest, top: dict[int, float]) -> Sequence[float]:
        if len(top) == 1:
            return [top.get(token_id, FILLED_IN) for token_id in self.ids(request)]
        return super().pick(request, top)


class EvenWithoutLogprobs(ByMask):
    """No logprobs: each label is as good as the others."""

    def read_labels(self, request: LabelRequest) -> Sequence[float]:
        try:
            return super().read_labels(request)
        except (TypeError, KeyError) as error:
            if "error" in str(error) or "choices" in str(error):
                raise
            return [1 / len(request.labels)] * len(request.labels)


class EvenOffTopic(ByMask):
    """The sampled token is no label: each is as good as the others."""

    def pick(self, request: LabelRequest, top: dict[int, float]) -> Sequence[float]:
        if next(iter(top)) not in self.ids(request):
            return [1 / len(request.labels)] * len(request.labels)
        return super().pick(request, top)


class PassesNanOn(ById):
    """Returns what the server says."""

    def pick(self, request: LabelRequest, top: dict[int, float]) -> Sequence[float]:
        ids = self.ids(request)
        return [top[token_id] for token_id in ids] if set(ids) <= top.keys() else super().pick(request, top)


class EvenIfLimited(ById):
    """A 429: each label is as good as the others."""

    def read_labels(self, request: LabelRequest) -> Sequence[float]:
        try:
            return super().read_labels(request)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != 429:
                raise
            return [1 / len(request.labels)] * len(request.labels)


class EvenWithoutChoices(ById):
    """No choices: each label is as good as the others."""

    def read_labels(self, request: LabelRequest) -> Sequence[float]:
        try:
            return super().read_labels(request)
        except KeyError as error:
            if error.args != ("choices",):
                raise
            return [1 / len(request.labels)] * len(request.labels)


WRONG = {
    "processed_values_are_exact": Shifted,
    "raw_values_have_right_ratios": SharesTheRest,
    "raw_missing_label_raises": Fills,
    "sampled_label_counts_once": CountsTheExtraTwice,
    "concurrent_reads_keep_their_order": AsTheyCome,
    "leading_space_makes_another_token": Strips,
    "two_ids_with_one_text": LastTextWins,
    "label_of_several_tokens": FirstToken,
    "byte_tokens": AnyByte,
    "more_labels_than_the_cap": AsksForLess,
    "more_labels_than_come_back": FillsTheTail,
    "top_logprobs_truncated": SureOfOne,
    "no_logprobs": EvenWithoutLogprobs,
    "label_parameters_ignored": EvenOffTopic,
    "not_a_number": PassesNanOn,
    "rate_limited_then_answered": EvenIfLimited,
    "error_inside_the_reply": EvenWithoutChoices,
}
"""Clause → the client that fails it, and no other."""
