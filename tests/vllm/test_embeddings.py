"""POST /v1/embeddings: scripted and seeded vectors, encodings, refusals."""

import base64
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from stubserver.app import create_app
from stubserver.errors import ScriptError
from stubserver.script.context import context_seed
from stubserver.script.embeddings import Embeddings, normalize, seeded_vector, shorten
from stubserver.script.file.load import load_script

BIGRAM = Path(__file__).parents[2] / "fixtures" / "bigram512"
SCRIPTED = {"embeddings": {"vectors": {"blue": [3, 4, 0], "red": [0, 0, -2]}}, "default": "random"}


@cache
def bigram():
    return TestClient(create_app(BIGRAM / "script.yaml"), raise_server_exceptions=False)


def scripted():
    return TestClient(create_app(SCRIPTED))


def embed(app, given, **fields):
    reply = app.post("/v1/embeddings", json={"input": given, **fields})
    assert reply.status_code == 200, reply.text
    data = reply.json()["data"]
    assert [item["index"] for item in data] == list(range(len(data)))
    return [item["embedding"] for item in data]


def decoded(text, dtype="<f4"):
    return np.frombuffer(base64.b64decode(text), dtype=dtype).tolist()


# Vectors --------------------------------------------------------------------------------------------------------------


def test_scripted_vectors_have_length_one():
    blue, red = embed(scripted(), ["blue", "red"])
    assert blue == pytest.approx([0.6, 0.8, 0.0])
    assert red == [0.0, 0.0, -1.0]
    assert embed(scripted(), "blue", use_activation=False) == [[3.0, 4.0, 0.0]]


def test_a_scripted_text_by_its_ids():
    app = scripted()
    ids = app.post("/tokenize", json={"prompt": "blue"}).json()["tokens"]
    assert embed(app, ids) == embed(app, [ids]) == embed(app, "blue")


def test_dimensions_shorten_then_normalize():
    assert embed(scripted(), "blue", dimensions=1) == [[1.0]]
    assert embed(scripted(), "blue", dimensions=2) == [pytest.approx([0.6, 0.8])]
    assert embed(scripted(), "blue", dimensions=2, use_activation=False) == [[3.0, 4.0]]
    # What is cut away may be all there was.
    assert embed(scripted(), "red", dimensions=2) == [[0.0, 0.0]]


def test_seeded_vectors():
    numbers = np.random.Generator(np.random.PCG64(context_seed(0, [300, 292]))).standard_normal(8)
    (vector,) = embed(bigram(), [300, 292])
    assert vector == pytest.approx((numbers / np.sqrt((numbers**2).sum())).tolist(), abs=1e-6)
    assert sum(value**2 for value in vector) == pytest.approx(1.0, abs=1e-6)


def test_a_seeded_vector_depends_on_the_text_alone():
    alone = embed(bigram(), "The sky is")
    assert embed(bigram(), ["red", "The sky is"])[1] == alone[0]
    assert embed(bigram(), "The sky was") != alone
    other_seed = TestClient(create_app(BIGRAM / "script.yaml", seed=1))
    assert embed(other_seed, "The sky is") != alone


def test_a_seeded_vector_is_the_same_in_every_process():
    code = "from stubserver.script.embeddings import seeded_vector; print(seeded_vector([1, 2], 4, 0).tolist())"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True) for _ in "ab"]
    assert runs[0].stdout.strip() == runs[1].stdout.strip() == str(seeded_vector([1, 2], 4, 0).tolist())


def test_pure_functions():
    vector = np.array([3, 4], dtype=np.float32)
    assert normalize(vector).tolist() == pytest.approx([0.6, 0.8])
    assert normalize(vector).dtype == np.float32
    assert normalize(np.zeros(2, dtype=np.float32)).tolist() == [0.0, 0.0]
    assert normalize(np.array([3e38, 3e38], dtype=np.float32)).tolist() == pytest.approx([0.5**0.5] * 2)
    assert shorten(vector, 1).tolist() == [3.0]
    assert shorten(vector, None) is not None
    assert len(seeded_vector([1], 1024, 0)) == 1024
    assert Embeddings().dimension == 8


# Shapes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "count", "tokens"),
    [("The sky", 1, 2), (["The sky", "The"], 2, 3), ([300, 292], 1, 2), ([[300, 292], [300]], 2, 3)],
)
def test_inputs(given, count, tokens):
    reply = bigram().post("/v1/embeddings", json={"input": given, "request_id": "x"}).json()
    assert {key: reply[key] for key in ("id", "object", "model")} == {
        "id": "embd-x",
        "object": "list",
        "model": "bigram",
    }
    assert [item["object"] for item in reply["data"]] == ["embedding"] * count
    assert reply["usage"] == {
        "prompt_tokens": tokens,
        "total_tokens": tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


def test_base64_decodes_to_the_floats():
    floats = embed(bigram(), ["The sky", "is"])
    assert [decoded(text) for text in embed(bigram(), ["The sky", "is"], encoding_format="base64")] == floats


@pytest.mark.parametrize(
    ("fields", "dtype"),
    [
        ({"endianness": "big"}, ">f4"),
        ({"endianness": "little", "embed_dtype": "float16"}, "<f2"),
        ({"endianness": "big", "embed_dtype": "float16"}, ">f2"),
    ],
)
def test_other_encodings(fields, dtype):
    (text,) = embed(scripted(), "blue", encoding_format="base64", use_activation=False, **fields)
    assert decoded(text, dtype) == [3.0, 4.0, 0.0]


def test_truncated_inputs():
    whole = [300, 292, 351]
    assert embed(bigram(), whole, truncate_prompt_tokens=2) == embed(bigram(), whole[:2])
    assert embed(bigram(), whole, truncate_prompt_tokens=2, truncation_side="left") == embed(bigram(), whole[1:])
    assert embed(bigram(), [1] * 600, truncate_prompt_tokens=-1) == embed(bigram(), [1] * 512)


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dimensions": 9}, "Model 'bigram' only supports dimensions in range [1, 8], got 9."),
        ({"dimensions": 0}, "Model 'bigram' only supports dimensions in range [1, 8], got 0."),
        ({"input": []}, "You must pass at least one prompt"),
        ({"input": ""}, "The decoder prompt cannot be empty"),
        ({"input": ["The", ""]}, "The decoder prompt cannot be empty"),
        ({"input": [[]]}, "The decoder prompt cannot be empty"),
        ({"input": [600]}, "Token id 600 is out of vocabulary"),
        (
            {"truncate_prompt_tokens": 513},
            "truncate_prompt_tokens value is greater than max_model_len. Please request a smaller truncation size.",
        ),
        (
            {"input": [1] * 513},
            "This model's maximum context length is 512 tokens. However, your prompt contains at least 513 input "
            "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
            "prompt. (parameter=input_tokens, value=513)",
        ),
        (
            {"normalize": True},
            "Parameter `normalize` was removed; use `use_activation` instead. (parameter=normalize)",
        ),
    ],
)
def test_refused(fields, message):
    reply = bigram().post("/v1/embeddings", json={"input": "The sky", **fields})
    error = reply.json()["error"]
    assert (reply.status_code, error["message"], error["type"]) == (400, message, "BadRequestError")


@pytest.mark.parametrize(
    "fields",
    [{"input": None}, {"input": 5}, {"input": [1.5]}, {"encoding_format": "hex"}, {"embed_dtype": "fp8_e4m3"}],
)
def test_not_of_the_schema(fields):
    reply = bigram().post("/v1/embeddings", json={"input": "The sky", **fields})
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "Bad Request")


def test_unknown_model():
    assert bigram().post("/v1/embeddings", json={"input": "x", "model": "zz"}).status_code == 404


# The script's keys ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "dimension"),
    [({}, 8), ({"dimension": 3}, 3), ({"vectors": {"a": [1, 2]}}, 2), ({"dimension": 2, "vectors": {"a": [1, 2]}}, 2)],
)
def test_dimension_of_a_script(keys, dimension):
    assert load_script({"default": "random", "embeddings": keys}).embeddings.dimension == dimension


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"dimension": 0}, "embeddings.dimension: input should be greater than or equal to 1, got 0"),
        ({"dimensions": 3}, "embeddings.dimensions: unknown key; did you mean 'dimension'?"),
        ({"dimension": 3, "vectors": {"a": [1, 2]}}, "embeddings.vectors.a: has 2 numbers instead of 3"),
        ({"vectors": {"a": [1, 2], "a b": [1]}}, 'embeddings.vectors["a b"]: has 1 numbers instead of 2'),
        ({"vectors": {"a": [0, 0]}}, "embeddings.vectors.a: has no direction: a number has to differ from 0"),
        ({"vectors": {"a": []}}, "embeddings.vectors.a: has no direction: a number has to differ from 0"),
        ({"vectors": {"a": [1, "x"]}}, "embeddings.vectors.a[1]: has to be a number, got 'x'"),
        ({"vectors": {"a": [1, "-inf"]}}, "embeddings.vectors.a[1]: has to be a number, got '-inf'"),
        ({"vectors": {"a": [1, 1e39]}}, "embeddings.vectors.a[1]: has to be a number, got 1e+39"),
    ],
)
def test_mistakes_in_a_script(keys, message):
    with pytest.raises(ScriptError) as caught:
        load_script({"default": "random", "embeddings": keys})
    assert str(caught.value) == message


@pytest.mark.parametrize("source", [None, BIGRAM / "logits.npz", lambda context: {1: 0.0}])
def test_any_script_has_vectors(source):
    tokenizer = str(BIGRAM) if isinstance(source, Path) else None
    assert load_script(source, tokenizer=tokenizer).embeddings == Embeddings()
