"""The openai SDK's embeddings against the real server process."""

import pytest

openai = pytest.importorskip("openai")


@pytest.fixture(scope="module")
def client(raw_server):
    return openai.OpenAI(base_url=f"{raw_server}/v1", api_key="none", max_retries=0)


def test_floats_and_base64_are_the_same(client):
    """The SDK asks for base64 on its own, and decodes it."""
    by_default = client.embeddings.create(model="bigram", input=["The sky", "is blue"])
    floats = client.embeddings.create(model="bigram", input=["The sky", "is blue"], encoding_format="float")
    assert [item.embedding for item in by_default.data] == [item.embedding for item in floats.data]
    assert [len(item.embedding) for item in floats.data] == [8, 8]
    assert by_default.usage.prompt_tokens == by_default.usage.total_tokens == floats.usage.prompt_tokens


def test_dimensions(client):
    (item,) = client.embeddings.create(model="bigram", input=[300, 292], dimensions=3).data
    assert sum(value**2 for value in item.embedding) == pytest.approx(1.0, abs=1e-6)
    assert len(item.embedding) == 3
    with pytest.raises(openai.BadRequestError, match=r"only supports dimensions in range \[1, 8\], got 9"):
        client.embeddings.create(model="bigram", input="The sky", dimensions=9)
