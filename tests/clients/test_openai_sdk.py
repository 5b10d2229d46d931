"""The openai SDK against the server process: what users of vLLM send, and what vLLM answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

openai = pytest.importorskip("openai", reason="pip install 'llm-stubserver[clients]'")

LABEL_IDS = [276, 327, 328, 329]  # " A", " B", " C", " D"
TOLERANCE = 2e-5
GREEDY = {"model": "bigram", "prompt": "Answer:", "temperature": 0}

# Greedy tokens after "Answer:", as vLLM 0.32.0 wrote them (recordings stop/greedy16 and logprobs/greedy8_lp3).
TOKEN_IDS = [260, 478, 217]
TOKENS = [" n", "word71", "\x19"]
LOGPROBS = [-1.8874990940093994, -1.1558504104614258, -2.0194268226623535]


def client_of(url: str, api_key: str = "none") -> Any:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=api_key, max_retries=0, timeout=30)


@pytest.fixture(scope="module")
def raw(raw_server: str) -> Any:
    return client_of(raw_server)


@pytest.fixture(scope="module")
def processed(processed_server: str) -> Any:
    return client_of(processed_server)


@pytest.fixture(scope="module")
def keyed_server(serve: Callable[..., AbstractContextManager[str]]) -> Iterator[str]:
    with serve("--api-key", "secret", "other") as url:
        yield url


def test_models(raw: Any) -> None:
    [model] = raw.models.list().data
    assert (model.id, model.owned_by, model.max_model_len) == ("bigram", "vllm", 512)


def test_completion(raw: Any) -> None:
    reply = raw.completions.create(**GREEDY, max_tokens=3, logprobs=3)
    [choice] = reply.choices
    assert (choice.text, choice.finish_reason) == (" nword71\x19", "length")
    assert choice.logprobs.tokens == TOKENS
    assert choice.logprobs.token_logprobs == pytest.approx(LOGPROBS, abs=TOLERANCE)
    assert choice.logprobs.text_offset == [0, 2, 8]
    first = {" n": LOGPROBS[0], ",": -1.9499990940093994, "word92": -2.6843740940093994}
    assert choice.logprobs.top_logprobs[0] == pytest.approx(first, abs=TOLERANCE)
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (2, 3, 5)


def test_stream_says_the_same_piece_by_piece(raw: Any) -> None:
    events = list(raw.completions.create(**GREEDY, max_tokens=3, logprobs=3, stream=True))
    choices = [event.choices[0] for event in events]
    assert [choice.text for choice in choices] == TOKENS
    assert [choice.logprobs.token_logprobs[0] for choice in choices] == pytest.approx(LOGPROBS, abs=TOLERANCE)
    assert [choice.logprobs.text_offset[0] for choice in choices] == [0, 2, 8]
    assert [choice.finish_reason for choice in choices] == [None, None, "length"]
    assert [event.usage for event in events] == [None] * 3


def test_stream_with_usage_ends_with_an_event_of_its_own(raw: Any) -> None:
    stream = raw.completions.create(**GREEDY, max_tokens=3, stream=True, stream_options={"include_usage": True})
    *parts, last = list(stream)
    assert [part.usage for part in parts] == [None] * 3
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (2, 3, 5)


def test_stream_with_continuous_usage(raw: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = list(raw.completions.create(**GREEDY, max_tokens=3, stream=True, stream_options=options))
    assert [event.usage.completion_tokens for event in events] == [1, 2, 3, 3]


def test_allowed_token_ids_leave_raw_logprobs_as_they_are(raw: Any) -> None:
    reply = raw.completions.create(**GREEDY, max_tokens=1, logprobs=4, extra_body={"allowed_token_ids": LABEL_IDS})
    [choice] = reply.choices
    assert choice.text == " C"
    assert choice.logprobs.token_logprobs == pytest.approx([-5.778124809265137], abs=TOLERANCE)
    # The four most likely tokens of all, and " C", which isn't one of them.
    [top] = choice.logprobs.top_logprobs
    assert len(top) == 5
    assert {" A", " B", " C", " D"} & top.keys() == {" C"}


def test_allowed_token_ids_show_in_processed_logprobs(processed: Any) -> None:
    extra = {"allowed_token_ids": LABEL_IDS}
    reply = processed.completions.create(**GREEDY, max_tokens=1, logprobs=4, extra_body=extra)
    [top] = reply.choices[0].logprobs.top_logprobs
    labels = {" A": -9.528977394104004, " B": -6.122727394104004, " C": -0.0289766788482666, " D": -3.638352155685425}
    assert top == pytest.approx(labels, abs=TOLERANCE)


def test_logprob_token_ids_read_labels_in_raw_mode(raw: Any) -> None:
    extra = {"logprob_token_ids": LABEL_IDS}
    reply = raw.completions.create(**GREEDY, max_tokens=1, logprobs=1, extra_body=extra)
    [top] = reply.choices[0].logprobs.top_logprobs
    assert top[" C"] == pytest.approx(-5.778124809265137, abs=TOLERANCE)
    # Labels differ by as much as in processed mode: a softmax over them gives the same.
    assert top[" D"] - top[" C"] == pytest.approx(-3.638352155685425 + 0.0289766788482666, abs=TOLERANCE)


def test_return_token_ids(raw: Any) -> None:
    [choice] = raw.completions.create(**GREEDY, max_tokens=3, extra_body={"return_token_ids": True}).choices
    assert (choice.prompt_token_ids, choice.token_ids) == ([351, 29], TOKEN_IDS)


def test_return_tokens_as_token_ids(raw: Any) -> None:
    extra = {"return_tokens_as_token_ids": True}
    [choice] = raw.completions.create(**GREEDY, max_tokens=3, logprobs=0, extra_body=extra).choices
    assert choice.logprobs.tokens == ["token_id:260", "token_id:478", "token_id:217"]


def test_prompt_logprobs(raw: Any) -> None:
    request = {**GREEDY, "prompt": "The sky is"}
    [choice] = raw.completions.create(**request, max_tokens=1, extra_body={"prompt_logprobs": 1}).choices
    nothing, sky, is_ = choice.prompt_logprobs
    assert nothing is None
    assert sky["292"] == {"logprob": pytest.approx(-7.0519528, abs=TOLERANCE), "rank": 90, "decoded_token": " sky"}
    assert is_["297"] == {"logprob": pytest.approx(-12.5219145, abs=TOLERANCE), "rank": 396, "decoded_token": " is"}


def test_echo_and_several_prompts(raw: Any) -> None:
    prompts = [[333, 334, 29], [276, 327]]
    request = {**GREEDY, "prompt": prompts}
    reply = raw.completions.create(**request, max_tokens=1, logprobs=1, echo=True)
    assert [choice.logprobs.tokens for choice in reply.choices] == [[" The", " Yes", ":", " n"], [" A", " B", ""]]
    values = reply.choices[0].logprobs.token_logprobs
    assert values[0] is None
    assert values[1:] == pytest.approx([-11.6861181, -3.3511486, -1.8874991], abs=TOLERANCE)


def test_bad_request(raw: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        raw.completions.create(**GREEDY, max_tokens=1, logprobs=21)
    message = "Requested sample logprobs of 21, which is greater than max allowed: 20 (parameter=logprobs, value=21)"
    assert caught.value.body == {"message": message, "type": "BadRequestError", "param": "logprobs", "code": 400}
    assert (caught.value.status_code, caught.value.param) == (400, "logprobs")


def test_unknown_model(raw: Any) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        raw.completions.create(**{**GREEDY, "model": "nope"}, max_tokens=1)
    message = "The model `nope` does not exist. Valid aliases: bigram."
    assert caught.value.body == {"message": message, "type": "NotFoundError", "param": "model", "code": 404}


@pytest.mark.parametrize("api_key", ["secret", "other"])
def test_right_api_key(keyed_server: str, api_key: str) -> None:
    [choice] = client_of(keyed_server, api_key).completions.create(**GREEDY, max_tokens=1).choices
    assert choice.text == " n"


def test_wrong_api_key(keyed_server: str) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        client_of(keyed_server, "wrong").completions.create(**GREEDY, max_tokens=1)
    assert (caught.value.status_code, caught.value.body) == (401, "Unauthorized")


async def test_async_client(raw_server: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{raw_server}/v1", api_key="none", max_retries=0) as client:
        stream = await client.completions.create(**GREEDY, max_tokens=3, stream=True)
        assert [event.choices[0].text async for event in stream] == TOKENS
