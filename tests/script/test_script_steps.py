"""Each kind of step, with values that a reader can redo by hand."""

from math import exp, log

import numpy as np
import pytest
from script_helpers import AND, BIGRAM512, BLUE, EOS, FIXTURES, GOOD, RED, T6, greedy, load, logits_at, request_for

from stubserver.errors import UnscriptedError
from stubserver.sampling.logits import Logits
from stubserver.script.file.load import load_script
from stubserver.script.rows import ArrayRow, RowStore, SparseRow

SKY = "The sky is"


def row_of(step, **keys):
    loaded = load(rules=[{"steps": [step]}], **keys)
    return logits_at(loaded, request_for(loaded))


def test_logits():
    row = row_of({"logits": {" blue": 2.0, RED: 1.0}, "rest": -10})
    assert row.values.dtype == np.float32
    assert row.values.shape == (512,)
    assert row.values[[BLUE, RED, 5]].tolist() == [2.0, 1.0, -10.0]
    assert row.logprobs[BLUE] == pytest.approx(2 - log(exp(2) + exp(1) + 510 * exp(-10)), abs=1e-6)


def test_logits_with_rest_minus_infinity():
    for rest in ("-inf", -np.inf):
        row = row_of({"logits": {" blue": 2.0, " red": 1.0}, "rest": rest})
        assert row.logprobs[[BLUE, RED]].tolist() == pytest.approx([-0.313262, -1.313262], abs=1e-6)
        assert row.logprobs[5] == -np.inf


def test_logits_of_every_token_need_no_rest():
    t6 = load_script(FIXTURES / "scripts" / "t6.yaml")
    row = logits_at(t6, request_for(t6, [0, 4, 2]))
    expected = [-5.683346, -4.683346, -3.183346, -2.183346, -0.183346, -7.183346]
    assert row.logprobs.tolist() == pytest.approx(expected, abs=1e-6)


def test_probs_spread_what_is_left():
    row = row_of({"probs": {" blue": 0.7, " red": 0.2}})
    assert row.logprobs[BLUE] == pytest.approx(log(0.7), abs=1e-6)
    assert row.logprobs[RED] == pytest.approx(log(0.2), abs=1e-6)
    assert row.logprobs[5] == pytest.approx(log(0.1 / 510), abs=1e-5)


def test_probs_that_sum_to_one_leave_nothing():
    row = row_of({"probs": {" blue": 0.7, " red": 0.2, " and": 0.1}})  # 0.9999999999999999 in binary
    assert row.logprobs[5] == -np.inf
    assert row_of({"probs": {" blue": 1, " red": 0}}).logprobs[[BLUE, RED]].tolist() == [0, -np.inf]


def test_probs_of_every_token():
    probs = dict.fromkeys(range(6), 1 / 6)
    assert row_of({"probs": probs}, tokenizer=T6).logprobs.tolist() == pytest.approx([-log(6)] * 6)


def test_logprobs():
    row = row_of({"logprobs": {" blue": -0.35}})
    assert row.values[BLUE] == np.float32(-0.35)
    assert row.logprobs[5] == pytest.approx(log((1 - exp(-0.35)) / 511), abs=1e-5)


def test_text_and_tokens_by_a_wide_margin():
    loaded = load(rules=[{"steps": [{"text": " good"}, {"tokens": [" and", BLUE, "bytes:20"]}]}])
    request = request_for(loaded)
    assert greedy(loaded, request, 6) == [GOOD, AND, BLUE, 224, EOS, EOS]
    row = logits_at(loaded, request)
    assert (row.values[GOOD], row.values[5]) == (50, 0)
    assert row.logprobs[GOOD] == 0.0


def test_arrays():
    loaded = load_script(FIXTURES / "scripts" / "steps.yaml")
    request = request_for(loaded)
    # logits, probs, logprobs, two tokens of text, three tokens, row0, three rows, row 1 again, end of sequence
    assert greedy(loaded, request, 14) == [BLUE] * 3 + [AND, GOOD] + [BLUE, 351, 224] + [327] + [276, 327, 328] + [
        327,
        0,
    ]


def test_padded_rows(tmp_path):
    np.savez(tmp_path / "rows.npz", row=np.arange(600.0))
    loaded = load_script({"tokenizer": BIGRAM512, "default": {"array": str(tmp_path / "rows.npz")}})
    assert loaded.script.vocab_size == 600
    assert load(vocab_size=1000, default="random").script.vocab_size == 1000
    assert row_of({"text": " blue"}, vocab_size=1000).values.shape == (1000,)


def test_npy(tmp_path):
    np.save(tmp_path / "row.npy", np.arange(512, dtype=np.int32))
    assert row_of({"array": str(tmp_path / "row.npy")}).values[511] == 511


@pytest.mark.parametrize(("then", "expected"), [("eos", EOS), ("repeat", BLUE)])
def test_after_the_last_step(then, expected):
    loaded = load(rules=[{"steps": [{"text": " blue"}], "then": then}])
    assert greedy(loaded, request_for(loaded), 4) == [BLUE, expected, expected, expected]


def test_an_error_after_the_last_step():
    loaded = load(rules=[{"name": "sky", "steps": [{"text": " blue"}], "then": "error"}])
    request = request_for(loaded)
    with pytest.raises(UnscriptedError, match=r'Rule "sky" \(rules\[0\]\) has 1 steps and says `then: error`'):
        logits_at(loaded, request, [BLUE])


def test_no_steps_is_an_empty_answer():
    loaded = load(rules=[{"steps": []}])
    assert greedy(loaded, request_for(loaded), 1) == [EOS]


def test_text_forms_of_a_token():
    loaded = load(
        vocab=["bytes:20", "token_id:5"], rules=[{"steps": [{"tokens": ["text:bytes:20", "text:token_id:5"]}]}]
    )
    assert greedy(loaded, request_for(loaded), 2) == [512, 513]
    assert row_of({"tokens": ["token_id:5"]}).values.argmax() == 5


def test_vocab_makes_single_tokens():
    loaded = load(vocab=[" blue-green"], rules=[{"steps": [{"logits": {" blue-green": 1}, "rest": 0}]}])
    assert loaded.script.vocab_size == 513
    assert greedy(loaded, request_for(loaded), 1) == [512]


def test_rows_are_read_only_and_given_out_again():
    loaded = load(rules=[{"steps": [{"text": " blue"}, {"text": " blue"}]}])
    request = request_for(loaded)
    first = logits_at(loaded, request)
    assert logits_at(loaded, request) is first
    assert logits_at(loaded, request, [BLUE]) is first  # the same token by the same margin
    with pytest.raises(ValueError, match="read-only"):
        first.values[0] = 1


def test_the_store_forgets_what_was_not_used_for_long():
    store = RowStore(vocab_size=100, max_bytes=100 * 8 * 20)
    rows = [ArrayRow(np.full(100, index, dtype=np.float32)) for index in range(21)]
    first = store.get(rows[0])
    for row in rows:
        store.get(row)
    again = store.get(rows[0])
    assert again is not first
    assert again.values.tolist() == first.values.tolist()


def test_sparse_rows_give_up_what_was_written_out():
    store = RowStore(vocab_size=100, max_bytes=100 * 8 * 20)
    rows = [store.get(SparseRow({index: 1.0}, 0.0)) for index in range(21)]
    written_out = [row.values for row in rows]
    assert rows[20].values is written_out[20]
    assert rows[0].values is not written_out[0]  # the oldest of more than 20
    assert rows[0].values.tolist() == written_out[0].tolist()
    assert rows[0].logprobs.tolist() == Logits.of(written_out[0]).logprobs.tolist()


def test_a_sparse_row_is_kept_for_longer_than_a_dense_one():
    store = RowStore(vocab_size=100, max_bytes=100 * 8 * 20)
    rows = [SparseRow({index: 1.0}, 0.0) for index in range(1000)]
    first = store.get(rows[0])
    for row in rows:
        store.get(row)
    assert store.get(rows[0]) is first


def test_rules_that_name_the_same_row_of_a_file_share_it(tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(1024, dtype=np.float32).reshape(2, 512))
    file = str(tmp_path / "rows.npy")
    rules = [
        {"when": {"prompt": prompt}, "steps": [{"array": {"file": file, "index": index}}]}
        for prompt, index in (("a", 0), ("b", 1), ("c", 0))
    ]
    first, second, third = (
        rule.steps[0] for rule in load_script({"tokenizer": BIGRAM512, "rules": rules}).script.rules
    )
    assert first is third
    assert first is not second


def test_array_rows_are_not_copied():
    array = np.zeros(4, dtype=np.float32)
    assert np.shares_memory(RowStore(4).get(ArrayRow(array)).values, array)
