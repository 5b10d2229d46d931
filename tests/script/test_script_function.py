"""Callable scripts and bigram tables."""

import numpy as np
import pytest
from script_helpers import BIGRAM512, BLUE, FIXTURES, NO, YES, logits_at, request_for

from stubserver.errors import GenerationError, UnscriptedError, ValidationError
from stubserver.script.file.load import load_script


def result_of(function):
    loaded = load_script(function, tokenizer=BIGRAM512)
    return logits_at(loaded, request_for(loaded))


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (np.arange(512), [0.0, 511.0]),
        ([0.5] * 512, [0.5, 0.5]),
        ({" blue": 1, 511: np.float32(2)}, [-np.inf, 2.0]),
        ({np.int64(511): 2.0}, [-np.inf, 2.0]),
        (({"token_id:511": 1}, -3), [-3.0, 1.0]),
    ],
)
def test_results(result, expected):
    row = result_of(lambda context: result)
    assert row.values.dtype == np.float32
    assert row.values[[0, 511]].tolist() == expected
    assert not row.values.flags.writeable


def test_the_context():
    seen = []

    def function(context):
        seen.append(context)
        return np.zeros(512)

    loaded = load_script(function, tokenizer=BIGRAM512)
    request = request_for(loaded)
    logits_at(loaded, request, [5], seed=7)
    assert seen[0].request is request
    assert (seen[0].token_ids, seen[0].seed) == ([300, 292, 297, 5], 7)
    assert loaded.source == "test_script_function:test_the_context.<locals>.function"


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, "TypeError: the script's function returned None instead of logits"),
        (np.zeros(5), "ValueError: the script's function returned logits of shape [5] instead of [512]"),
        (np.full(512, np.nan), "ArrayError: the value at [0] is nan"),
        (np.full(512, np.inf), "ArrayError: the value at [0] is inf"),
        ({}, "ArrayError: a row is -inf for every token, so that nothing could follow"),
        ({" bleu": 1}, 'TokenError: " bleu" is 4 tokens, not one'),
        ({True: 1}, "TokenError: a token is a text or an id, got True"),
        ({5: "x"}, "ValueError: could not convert string to float: 'x'"),
        ("text", "ValueError: could not convert string to float"),
    ],
)
def test_results_that_are_no_logits(result, words):
    with pytest.raises(GenerationError) as caught:
        result_of(lambda context: result)
    assert str(caught.value).startswith(words)
    assert caught.value.__cause__ is not None


def test_what_a_function_raises():
    def fails(context):
        raise KeyError("a")

    def refuses(context):
        raise ValidationError("not today")

    with pytest.raises(GenerationError, match="KeyError: 'a'") as caught:
        result_of(fails)
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(ValidationError, match="not today"):
        result_of(refuses)


def test_changing_the_array_later_changes_no_row():
    array = np.zeros(512, dtype=np.float32)
    row = result_of(lambda context: array)
    array[0] = 9
    assert row.values[0] == 0


def test_from_a_file(tmp_path):
    loaded = load_script(f"{FIXTURES / 'scripts' / 'model.py'}:labels", tokenizer=BIGRAM512)
    row = logits_at(loaded, request_for(loaded))
    assert row.values[[YES, NO, BLUE]].tolist() == [2, 1, -10]
    (tmp_path / "neighbour.py").write_text("value = 3.0")
    (tmp_path / "mine.py").write_text("import neighbour\nclass A:\n  def f(context): return {5: neighbour.value}, 0\n")
    loaded = load_script(f"{tmp_path / 'mine.py'}:A.f", tokenizer=BIGRAM512)
    assert logits_at(loaded, request_for(loaded)).values[5] == 3


def test_from_a_module(tmp_path, monkeypatch):
    (tmp_path / "some_scripts.py").write_text("def f(context): return {5: 1.0}, 0\n")
    monkeypatch.chdir(tmp_path)
    loaded = load_script("some_scripts:f", tokenizer=BIGRAM512)
    assert logits_at(loaded, request_for(loaded)).values[5] == 1


def test_bigram():
    table = np.load(FIXTURES / "bigram512" / "logits.npz")["table"]
    loaded = load_script(FIXTURES / "bigram512" / "script.yaml")
    request = request_for(loaded)
    row = logits_at(loaded, request)
    assert row.values.tolist() == table[297].tolist()
    assert logits_at(loaded, request, [5, 297]) is row
    assert not row.values.flags.writeable
    assert logits_at(loaded, request, [5]).values.tolist() == table[5].tolist()
    assert loaded.settings == {"served_model_name": "bigram", "tokenizer": BIGRAM512, "max_model_len": 512}
    from_npz = load_script(FIXTURES / "bigram512" / "logits.npz", tokenizer=BIGRAM512)
    assert logits_at(from_npz, request).values.tolist() == row.values.tolist()


def test_bigram_without_a_last_token():
    loaded = load_script(FIXTURES / "bigram512" / "script.yaml")
    with pytest.raises(UnscriptedError, match="no row for an empty context"):
        logits_at(loaded, request_for(loaded, []))
    with pytest.raises(UnscriptedError, match="no row for token 600"):
        logits_at(loaded, request_for(loaded, [600]))
