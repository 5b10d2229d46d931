"""What a file is read as; the examples, the docs and the published schema."""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel
from script_helpers import BIGRAM512, FIXTURES, ROOT, greedy, logits_at, request_for

from stubserver.faults.keys import FaultKeys
from stubserver.keys.document import read_document
from stubserver.script.file import schema
from stubserver.script.file.load import load_script

DOCS = (ROOT / "docs" / "scripts.md").read_text(encoding="utf-8")
EXAMPLES = sorted(path for path in (FIXTURES / "scripts").iterdir() if path.suffix in (".yaml", ".json"))


def read(tmp_path, text, name="script.yaml"):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return read_document(tmp_path / name, name)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Yes", "Yes"),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("012", 12),
        ("0x1F", 31),
        ("0o17", 15),
        ("-5", -5),
        ("1e-3", 0.001),
        ("-.5", -0.5),
        ("-.inf", -math.inf),
        ("-inf", "-inf"),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("2024-01-01", "2024-01-01"),
        ("'1'", "1"),
        ("!!str 1", "1"),
        ("[1, {a: b}]", [1, {"a": "b"}]),
    ],
)
def test_yaml_values(tmp_path, text, value):
    data = read(tmp_path, f"key: {text}").data["key"]
    assert data == value
    assert type(data) is type(value)


def test_lines(tmp_path):
    document = read(tmp_path, "a:\n  - b: 1\n    c:\n      - 1\n      - 2\nd: &d\n  e: 1\nf: *d\n")
    place = document.root / "a" / 0 / "c" / 1
    assert str(place) == "script.yaml:5: a[0].c[1]"
    assert str(document.root / "a" / 0 / "c" / "unknown") == "script.yaml:3: a[0].c.unknown"
    assert str(document.root / "f" / "e") == "script.yaml:7: f.e"
    assert str(document.root) == "script.yaml"


def test_json_with_tabs_and_escapes(tmp_path):
    document = read(tmp_path, '{\n\t"a":\t"\\ud83d\\ude00\\/",\n\t"b": 1E5\n}', "script.json")
    assert document.data == {"a": "😀/", "b": 1e5}
    assert str(document.root / "b") == "script.json:3: b"
    assert read(tmp_path, r'{"\\ud83d\\ude00":1,"x":[-1.5,null,true,"\u00e9"]}', "script.json").data == {
        r"\ud83d\ude00": 1,
        "x": [-1.5, None, True, "é"],
    }


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_load(path):
    loaded = load_script(path)
    assert loaded.source == str(path)
    assert len(greedy(loaded, request_for(loaded, "The sky is"), 2)) == 2


def test_a_file_describes_a_server(tmp_path):
    keys = "served_model_name: [a, b]\nport: 0\nlogits_processors: 'p.py:P, package.module:P'\n"
    shutil.copytree(BIGRAM512, tmp_path / "tok")
    loaded = load_script(read_path(tmp_path, keys + "tokenizer: tok\ndefault: random\n"))
    assert loaded.settings == {
        "served_model_name": ["a", "b"],
        "port": 0,
        "tokenizer": str(tmp_path / "tok"),
        "logits_processors": [str(tmp_path / "p.py:P"), "package.module:P"],
    }
    assert loaded.tokenizer.vocab_size == 512
    assert load_script(tmp_path / "script.yaml", tokenizer="builtin").tokenizer.name == "builtin"


def read_path(tmp_path, text) -> Path:
    (tmp_path / "script.yaml").write_text(text, encoding="utf-8")
    return tmp_path / "script.yaml"


def test_demo():
    loaded = load_script(None)
    assert (loaded.source, loaded.tokenizer.name, loaded.settings) == ("demo", "builtin", {})
    row = logits_at(loaded, request_for(loaded, "Is it blue? Answer:"))
    yes, no = loaded.tokenizer.one_token(" Yes"), loaded.tokenizer.one_token(" No")
    assert not {yes, no} & set(row.top(2).tolist())
    assert row.keep(np.array([no, yes])).logprobs.tolist() == pytest.approx([-1.313262, -0.313262], abs=1e-6)
    blue = greedy(loaded, request_for(loaded, "The sky is"), 4)
    assert loaded.tokenizer.decode(blue) == " blue and bright."
    assert logits_at(loaded, request_for(loaded, "anything")).values.std() > 1


def test_mapping_from_python(monkeypatch):
    monkeypatch.chdir(FIXTURES / "scripts")
    loaded = load_script({"tokenizer": "../bigram512", "bigram": "../bigram512/logits.npz"})
    assert loaded.settings == {"tokenizer": BIGRAM512}


# Docs and schema ------------------------------------------------------------------------------------------------------


def test_published_schema_is_current():
    current = schema.SCHEMA_FILE.read_text(encoding="utf-8")
    assert current == schema.json_schema(), "run `python -m stubserver.script.file.schema`"
    assert json.loads(current)["title"] == "stubserver script"


def models():
    found = [schema.Keys]
    for model in found:
        found.extend(sub for sub in model.__subclasses__() if sub not in found)
    # Kinds of faults have docs of their own, and a test of them: tests/faults/test_fault_docs.py.
    return [model for model in found if issubclass(model, BaseModel) and not issubclass(model, FaultKeys)]


@pytest.mark.parametrize("model", models(), ids=lambda model: model.__name__)
def test_every_key_is_in_the_docs(model):
    own = set(model.model_fields) - set(schema.Settings.model_fields)
    assert [key for key in sorted(own) if not re.search(rf"\b{key}\b", DOCS)] == []


@pytest.mark.parametrize(
    ("language", "block"), re.findall(r"```(yaml|json|python)\n(.*?)```", DOCS, re.DOTALL), ids=lambda part: part[:20]
)
def test_docs_examples_load(tmp_path, language, block):
    shutil.copytree(FIXTURES / "scripts", tmp_path / "scripts")
    shutil.copytree(FIXTURES / "bigram512", tmp_path / "bigram512")
    file = tmp_path / "scripts" / f"example.{'py' if language == 'python' else language}"
    file.write_text(block, encoding="utf-8")
    source, tokenizer = (f"{file}:next_logits", BIGRAM512) if language == "python" else (str(file), None)
    loaded = load_script(source, tokenizer=tokenizer)
    assert len(greedy(loaded, request_for(loaded, "The sky is"), 1)) == 1
