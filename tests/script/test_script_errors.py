"""Each mistake in a script: its place and its words."""

import numpy as np
import pytest
from script_helpers import BIGRAM512, T6

from stubserver.errors import ScriptError, TokenizerError
from stubserver.script.file.load import load_script

HEAD = f"tokenizer: {BIGRAM512}\n"
RULE = HEAD + "rules:\n  - steps:\n"


@pytest.fixture
def error_of(tmp_path, monkeypatch):
    """Load a script file with this text; give the error."""
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "short.npz", table=np.zeros((500, 500)), row=np.zeros(500))
    bad = np.zeros((2, 512))
    bad[1, 7] = np.nan
    np.savez(
        tmp_path / "arrays.npz",
        nan=bad,
        inf=np.full(512, np.inf),
        huge=np.full(512, 1e300),
        impossible=np.full(512, -np.inf),
        words=np.array(["a"] * 512),
        cube=np.zeros((1, 1, 512)),
        flat=np.zeros((3, 512)),
    )
    np.savez(tmp_path / "objects.npz", table=np.array([{}], dtype=object))
    (tmp_path / "broken.npz").write_bytes(b"PK\3\4 and no more")
    (tmp_path / "model.py").write_text("number = 5\n")
    (tmp_path / "raises.py").write_text("1 / 0\n")

    def error_of(text, name="script.yaml"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        with pytest.raises(ScriptError) as caught:
            load_script(name)
        return str(caught.value)

    return error_of


STRUCTURE = {
    "rulse: []": "script.yaml:1: rulse: unknown key; did you mean 'rules'?",
    "rules:\n  - stpes: []": "script.yaml:2: rules[0].stpes: unknown key; did you mean 'steps'?",
    "zzz: 1": "script.yaml:1: zzz: unknown key; the keys here are vocab, vocab_size, rules,",
    "max_model_len: many\ndefault: random": "script.yaml:1: max_model_len: input should be a valid integer",
    "logprobs_mode: raw\ndefault: random": "script.yaml:1: logprobs_mode: input should be 'raw_logprobs'",
    "rules: 5": "script.yaml:1: rules: has to be a list, got 5",
    "rules:\n  - 5": "script.yaml:2: rules[0]: has to be a mapping of keys to values, got 5",
    "rules:\n  - name: a": "script.yaml:2: rules[0]: needs `steps`, or a chat `message`",
    "rules:\n  - name: 5\n    steps: []": "script.yaml:2: rules[0].name: has to be a text, got 5: if",
    "rules:\n  - steps: []\n    then: stop": "script.yaml:3: rules[0].then: input should be 'eos', 'repeat' or",
    "rules:\n  - steps: [{text: ' good'}]\n    recorded: {top_logprobs: [1, 1]}": (
        "script.yaml:3: rules[0].recorded.top_logprobs: has 2 numbers, but the rule has 1 steps"
    ),
    "rules:\n  - steps: []\n    recorded: {top_logprobs: [-1]}": (
        "script.yaml:3: rules[0].recorded.top_logprobs[0]: input should be greater than or equal to 0, got -1"
    ),
    "rules:\n  - steps: []\n    recorded: {}": "script.yaml:3: rules[0].recorded.top_logprobs: this key is missing",
    "rules:\n  - steps: []\n    then: repeat": "script.yaml:3: rules[0].then: there is no step to repeat",
    "default: never": "script.yaml:1: default: has to be error, random, or a step such as",
    "default: {random: {scale: 0}}": "script.yaml:1: default.random.scale: input should be greater than 0, got 0",
    "default: {logits: {5: 1}, random: {}}": "script.yaml:1: default: needs exactly one of",
    "default: {text: ' good ok'}": "script.yaml:1: default.text: is 3 steps, but the default is one row",
    "vocab_size: 5\ndefault: random": "script.yaml:1: vocab_size: rows have 5 values, but the tokenizer 'builtin' has",
    "vocab: ['']\ndefault: random": "script.yaml:1: vocab[0]: string should have at least 1 character",
    "vocab: [' one two', ' one two']\ndefault: random": 'script.yaml:1: vocab: vocab[1] is " one two", which stands',
    "tokenizer: nowhere\ndefault: random": "script.yaml:1: tokenizer: tokenizer ",
    "bigram: a.npz\ncallable: b:c": "script.yaml: needs exactly one of: rules (with or without default),",
    "port: 8000": "script.yaml: needs exactly one of: rules (with or without default), bigram, callable; got none",
    "": "script.yaml: is empty; it needs rules, bigram or callable",
    "just text": "script.yaml: has to be a mapping of keys to values, got 'just text'",
}

YAML = {
    "rules:\n  - [}\n": "script.yaml:2: isn't YAML: ",
    "rules: []\nport: 1\nrules: []": "script.yaml:3: rules: this key stands twice",
    "rules: !python/name:os.system": "script.yaml:1: rules: the YAML tag",
    "rules: !!int five": "script.yaml:1: rules: 'five' isn't of type int",
    "? [a]\n: 1": "script.yaml:1: a key has to be a text or a number",
    "a: &a [*a]": "script.yaml: is nested too deeply, or has an alias inside",
    "a: 1\n---\nb: 1": "script.yaml:2: isn't YAML: ",
}

STEPS = {
    "{}": "rules[0].steps[0]: needs exactly one of logits, probs, logprobs, text, tokens, array; got none",
    "{text: a, probs: {5: 1}}": "rules[0].steps[0]: needs exactly one of logits, probs, logprobs, text, tokens, array; "
    "got probs and text",
    "{probs: {5: 1}, rest: 0}": "rules[0].steps[0].rest: `rest` goes with `logits`; with `probs` the other",
    "{logit: {5: 1}}": "rules[0].steps[0].logit: unknown key; did you mean 'logits'?",
    "{logits: {' bleu': 1}, rest: 0}": 'rules[0].steps[0].logits[" bleu"]: " bleu" is 4 tokens, not one: '
    '" b" (270) + "l" (79) + "e" (72) + "u" (88)',
    "{logits: {512: 1}, rest: 0}": "rules[0].steps[0].logits[512]: there is no token 512: ids go from 0 to 511",
    "{logits: {token_id:x: 1}, rest: 0}": 'rules[0].steps[0].logits["token_id:x"]: token_id:x isn\'t an id such as',
    "{logits: {'bytes:xy': 1}, rest: 0}": 'rules[0].steps[0].logits["bytes:xy"]: bytes:xy isn\'t hex such as',
    "{logits: {'bytes:FFFE': 1}, rest: 0}": 'rules[0].steps[0].logits["bytes:FFFE"]: no token of ',
    "{logits: {true: 1}, rest: 0}": "a token is a text or an id, got true: if it is text, quote it",
    "{logits: {1.5: 1}, rest: 0}": "a token is a text or an id, got 1.5: if it is text, quote it",
    "{logits: {' blue': 1, 296: 2}, rest: 0}": 'rules[0].steps[0].logits[296]: " blue" and 296 are the same token',
    "{logits: {5: 1}}": "rules[0].steps[0].logits: 511 tokens aren't listed: say what they get, for",
    "{logits: {5: '1'}, rest: 0}": "rules[0].steps[0].logits[5]: has to be a number or -inf, got '1'",
    "{logits: {5: .nan}, rest: 0}": "rules[0].steps[0].logits[5]: has to be a number or -inf, got nan",
    "{logits: {5: 1e300}, rest: 0}": "rules[0].steps[0].logits[5]: has to be a number or -inf, got 1e+300",
    "{logits: {5: 1}, rest: .inf}": "rules[0].steps[0].rest: has to be a number or -inf, got inf",
    "{logits: {5: -inf}, rest: -inf}": "rules[0].steps[0].logits: every token is -inf",
    "{logits: [5]}": "rules[0].steps[0].logits: has to be a mapping of keys to values, got a list",
    "{probs: {5: 1.5}}": "rules[0].steps[0].probs[5]: a probability has to be between 0 and 1, got 1.5",
    "{probs: {5: 0.7, 6: 0.4}}": "rules[0].steps[0].probs: the probabilities sum to 1.1, which is more than 1",
    "{logprobs: {5: 0.1}}": "rules[0].steps[0].logprobs[5]: a logprob has to be 0 or less, got 0.1",
    "{logprobs: {5: -0.1, 6: -0.1}}": "rules[0].steps[0].logprobs: the probabilities sum to 1.809675, which",
    "{text: 5}": "rules[0].steps[0].text: has to be a text, got 5: if it is text, quote it",
    "{tokens: [5, ' bleu']}": 'rules[0].steps[0].tokens[1]: " bleu" is 4 tokens',
    "{array: none.npz}": "rules[0].steps[0].array: there is no such file: ",
    "{array: broken.npz}": "isn't a .npz or .npy file of plain arrays",
    "{array: short.npz}": "holds table, row: say which one with `key`",
    "{array: {file: short.npz, key: rwo}}": "has no array 'rwo'; it holds table, row",
    "{array: {file: short.npz, key: row}}": "rules[0].steps[0].array: rows have 500 values, but the tokenizer ",
    "{array: {file: arrays.npz, key: nan}}": "rules[0].steps[0].array: the value at [1, 7] is nan",
    "{array: {file: arrays.npz, key: inf}}": "rules[0].steps[0].array: the value at [0] is inf",
    "{array: {file: arrays.npz, key: huge}}": "rules[0].steps[0].array: the value at [0] is inf",
    "{array: {file: arrays.npz, key: impossible}}": "rules[0].steps[0].array: a row is -inf for every token",
    "{array: {file: arrays.npz, key: words}}": "rules[0].steps[0].array: has to hold numbers; its dtype is <U1",
    "{array: {file: arrays.npz, key: cube}}": "rules[0].steps[0].array: has to be [V] or [n, V]; its shape is",
    "{array: {file: arrays.npz, key: flat, index: 3}}": "has no row 3: its shape is [3, 512]",
    "{array: objects.npz}": "can't be read: Object arrays cannot be loaded",
}

CONDITIONS = {
    "{promt: a}": "rules[0].when.promt: unknown key; did you mean 'prompt'?",
    "{prompt: 5}": "rules[0].when.prompt: has to be a mapping of keys to values, got 5",
    "{prompt: {}}": "rules[0].when.prompt: needs at least one of exact, contains, regex, token_ids",
    "{prompt: {contains: }}": "rules[0].when.prompt.contains: has no value",
    "{prompt: {regex: '('}}": "rules[0].when.prompt.regex: isn't a regular expression: missing ), unterminated",
    "{prompt: {token_ids: [-1]}}": "rules[0].when.prompt.token_ids[0]: input should be greater than or equal to 0",
    "{model: 5}": "rules[0].when.model: has to be a list, got 5",
    "{field: {'a..b': 1}}": "rules[0].when.field[\"a..b\"]: isn't a path such as messages[-1].content: can't",
    "{field: {'a[x]': 1}}": "can't read '[x]'",
    "{field: {'': 1}}": "isn't a path such as messages[-1].content",
    "{field: {a: {equals: 1}}}": "rules[0].when.field.a.equals: unknown key; the keys here are exact, contains,",
    "{field: {a: {regex: '*'}}}": "rules[0].when.field.a.regex: isn't a regular expression",
    "{header: {a: 5}}": "rules[0].when.header.a: has to be a mapping of keys to values, got 5",
}


@pytest.mark.parametrize("text", STRUCTURE | YAML)
def test_file(error_of, text):
    assert error_of(text).startswith((STRUCTURE | YAML)[text])


@pytest.mark.parametrize("step", STEPS)
def test_step(error_of, step):
    error = error_of(RULE + f"      - {step}")
    assert error.startswith("script.yaml:4: rules[0].steps[0]")
    assert STEPS[step] in error


@pytest.mark.parametrize("when", CONDITIONS)
def test_condition(error_of, when):
    error = error_of(f"rules:\n  - steps: []\n    when: {when}")
    assert error.startswith("script.yaml:3: rules[0].when")
    assert CONDITIONS[when] in error


def test_place_is_the_line_of_the_key_itself(error_of):
    text = (
        RULE + '      - logits:\n          " blue": 1\n\n          # a comment\n          " bleu": 2\n        rest: 0\n'
    )
    assert error_of(text).startswith('script.yaml:8: rules[0].steps[0].logits[" bleu"]: ')


def test_array_lengths_that_differ(error_of, tmp_path):
    np.savez(tmp_path / "padded.npz", a=np.zeros(600), b=np.zeros(601))
    steps = "      - array: {file: padded.npz, key: a}\n      - array: {file: padded.npz, key: b}\n"
    assert error_of(RULE + steps) == (
        "script.yaml:5: rules[0].steps[1].array: rows have 601 values, but the vocabulary has 600 tokens"
    )


@pytest.mark.parametrize(
    ("bigram", "words"),
    [
        ("short.npz", "rows have 500 values, but the tokenizer "),
        ("{file: short.npz, key: row}", "has to be a table [V, V]; its shape is [500]"),
        ("arrays.npz", "has no array 'table'; it holds nan, inf,"),
        ("none.npz", "there is no such file: "),
    ],
)
def test_bigram(error_of, bigram, words):
    error = error_of(HEAD + f"bigram: {bigram}")
    assert error.startswith("script.yaml:2: bigram: ")
    assert words in error


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("none.py:f", "there is no such file: "),
        ("model.py:f", "model.py has no 'f'"),
        ("model.py:number", "'number' of model.py is of type int, which can't be called"),
        ("raises.py:f", "ZeroDivisionError: division by zero"),
        ("no_such_module:f", "can't import no_such_module: ModuleNotFoundError: No module named 'no_such_module'"),
        ("f", "'f' isn't file.py:function or module:function"),
    ],
)
def test_callable(error_of, reference, words):
    error = error_of(f"callable: '{reference}'")
    assert error.startswith("script.yaml:1: callable: ")
    assert words in error


def test_json(error_of):
    assert error_of('{"rules": [\n1,]}', "script.json").startswith("script.json:2: isn't JSON: ")
    assert error_of('{\n\t"rulse": []\n}', "script.json").startswith("script.json:2: rulse: unknown key")
    assert error_of('{"rules": [],\n"rules": []}', "script.json") == "script.json:2: rules: this key stands twice"


def test_eos_is_needed_and_missing(error_of, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((tmp_path / T6 / "tokenizer.json").read_bytes())
    error = error_of("tokenizer: .\nrules:\n  - steps: []")
    assert error.startswith("script.yaml:3: rules[0]: the tokenizer ")
    assert error.endswith("names no end-of-sequence token: say `then: repeat` or `then: error`")


def test_sources(tmp_path):
    for source, words in {
        "none.yaml": "none.yaml: there is no such file (looked for ",
        "none.npz": "none.npz: bigram: there is no such file: ",
        "none.py:f": "none.py:f: callable: there is no such file: ",
        "script": "'script' is no script: give a .yaml, .yml, .json or .npz file, or module:function",
        tmp_path: f"{str(tmp_path)!r} is no script",
    }.items():
        with pytest.raises(ScriptError) as caught:
            load_script(source)
        assert str(caught.value).startswith(words)
    (tmp_path / "latin.yaml").write_bytes(b"\xe9")
    with pytest.raises(ScriptError, match="isn't UTF-8 text"):
        load_script(tmp_path / "latin.yaml")


def test_mapping_has_a_place_without_a_file():
    with pytest.raises(ScriptError) as caught:
        load_script({"rules": [{"steps": [{"text": 5}]}]})
    assert str(caught.value) == "rules[0].steps[0].text: has to be a text, got 5: if it is text, quote it"
    assert caught.value.place == "rules[0].steps[0].text"


def test_a_tokenizer_given_beside_the_script_is_no_mistake_of_the_script():
    with pytest.raises(TokenizerError, match="nowhere"):
        load_script({"default": "random"}, tokenizer="nowhere")
