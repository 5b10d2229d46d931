"""Chat with logprobs through the clients that people use, against the server process, and what vLLM answered."""

from __future__ import annotations

import os
from typing import Any

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or it asks the internet for prices at import
openai = pytest.importorskip("openai", reason="pip install 'llm-stubserver[clients]'")
langchain_openai = pytest.importorskip("langchain_openai", reason="pip install 'llm-stubserver[clients]'")
litellm = pytest.importorskip("litellm", reason="pip install 'llm-stubserver[clients]'")

pytestmark = pytest.mark.filterwarnings("ignore:.*ReadOnly:UserWarning")  # litellm's types, pydantic's warning

LABEL_IDS = [276, 327, 328, 329]  # " A", " B", " C", " D"
MESSAGES = [{"role": "user", "content": "Answer:"}]

# vLLM 0.32.0, recordings chat/lp3 in raw_logprobs and chat/allowed+stream in processed_logprobs.
TOP3 = [
    [(" no", -1.1595714092254639), ("\x18", -2.612696409225464), ("word95", -2.6283223628997803)],
    [("H", -1.1326509714126587), ("]", -1.929526925086975), ("%", -2.679525852203369)],
]
LABELS = [
    [(" D", -0.5606948137283325), (" B", -0.9513198137283325), (" C", -3.529445171356201), (" A", -4.295070171356201)],
    [(" A", -0.37737077474594116), (" B", -1.799245834350586), (" D", -2.174245834350586), (" C", -3.346121072769165)],
]


def assert_content(content: list[dict[str, Any]], expected: list[list[tuple[str, float]]]) -> None:
    """That these steps have these top logprobs, sampled the first of them, and give the tokens' bytes."""
    assert len(content) == len(expected)
    for step, top in zip(content, expected, strict=True):
        tokens, values = zip(*top, strict=True)
        assert (step["token"], step["logprob"]) == (tokens[0], pytest.approx(values[0], abs=2e-5))
        assert tuple(entry["token"] for entry in step["top_logprobs"]) == tokens
        assert [entry["logprob"] for entry in step["top_logprobs"]] == pytest.approx(values, abs=2e-5)
        assert [bytes(entry["bytes"]) for entry in step["top_logprobs"]] == [token.encode() for token in tokens]


def chat(url: str, **more: Any) -> Any:
    """What the openai SDK makes of a chat request with logprobs."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=30)
    request = {"model": "bigram", "messages": MESSAGES, "max_tokens": 2, "temperature": 0, "logprobs": True}
    return client.chat.completions.create(**request, **more)


def test_openai(raw_server: str) -> None:
    reply = chat(raw_server, top_logprobs=3)
    [choice] = reply.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", " noH", "length")
    assert_content(choice.logprobs.model_dump()["content"], TOP3)
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (19, 2)


def test_openai_stream(processed_server: str) -> None:
    extra = {"allowed_token_ids": LABEL_IDS}
    first, *rest = chat(processed_server, top_logprobs=4, stream=True, extra_body=extra)
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert [event.choices[0].delta.content for event in rest] == [" D", " A"]
    assert_content([entry for event in rest for entry in event.choices[0].logprobs.model_dump()["content"]], LABELS)


def test_openai_stream_helper_puts_the_pieces_together(raw_server: str) -> None:
    client = openai.OpenAI(base_url=f"{raw_server}/v1", api_key="none", max_retries=0, timeout=30)
    request = {"model": "bigram", "messages": MESSAGES, "max_tokens": 2, "temperature": 0}
    with client.chat.completions.stream(**request, logprobs=True, top_logprobs=3) as stream:
        for _ in stream:
            pass
        snapshot = stream.current_completion_snapshot
    [choice] = snapshot.choices
    assert choice.message.content == " noH"
    assert_content([entry.model_dump() for entry in choice.logprobs.content], TOP3)


def langchain(url: str, **more: Any) -> Any:
    model: Any = langchain_openai.ChatOpenAI(
        model="bigram", base_url=f"{url}/v1", api_key="none", max_retries=0, max_tokens=2, temperature=0, **more
    )
    return model


def test_langchain(raw_server: str) -> None:
    message = langchain(raw_server, logprobs=True, top_logprobs=3).invoke("Answer:")
    assert message.content == " noH"
    assert_content(message.response_metadata["logprobs"]["content"], TOP3)
    assert message.usage_metadata["total_tokens"] == 21


def test_langchain_stream(processed_server: str) -> None:
    extra = {"allowed_token_ids": LABEL_IDS}
    model = langchain(processed_server, logprobs=True, top_logprobs=4, extra_body=extra)
    chunks = [chunk for chunk in model.stream("Answer:") if chunk.content]
    assert [chunk.content for chunk in chunks] == [" D", " A"]
    content = [entry for chunk in chunks for entry in chunk.response_metadata["logprobs"]["content"]]
    assert_content(content, LABELS)


def test_litellm(raw_server: str, processed_server: str) -> None:
    request = {"model": "hosted_vllm/bigram", "messages": MESSAGES, "max_tokens": 2, "temperature": 0, "logprobs": True}
    reply = litellm.completion(**request, api_base=f"{raw_server}/v1", top_logprobs=3)
    assert reply.choices[0].message.content == " noH"
    assert_content(reply.choices[0].logprobs.model_dump()["content"], TOP3)
    labels = litellm.completion(
        **request, api_base=f"{processed_server}/v1", top_logprobs=4, allowed_token_ids=LABEL_IDS
    )
    assert_content(labels.choices[0].logprobs.model_dump()["content"], LABELS)


def test_litellm_error(raw_server: str) -> None:
    with pytest.raises(litellm.NotFoundError, match=r"The model `nope` does not exist\. Valid aliases: bigram\."):
        litellm.completion(model="hosted_vllm/nope", messages=MESSAGES, api_base=f"{raw_server}/v1", num_retries=0)
