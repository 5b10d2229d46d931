"""The built-in vocabulary: what its lists promise is so, and the shipped files are what the lists give."""

from pathlib import Path

import pytest

from stubserver.tokenizer.builtin.build import WHITE_SPACE, build, labels, word_list
from stubserver.tokenizer.hf import builtin_directory, load_tokenizer

BUILTIN = load_tokenizer("builtin")


def test_the_shipped_files_are_what_the_word_lists_give(tmp_path: Path) -> None:
    build(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (builtin_directory() / name).read_bytes(), (
            f"{name}: run build.py again"
        )


def test_the_shipped_files_are_small() -> None:
    assert (builtin_directory() / "tokenizer.json").stat().st_size < 150_000


def test_special_tokens() -> None:
    assert BUILTIN.encode("<|endoftext|><|im_start|><|im_end|>") == [0, 1, 2]
    assert BUILTIN.special_tokens == {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    assert (BUILTIN.eos_token_id, BUILTIN.vocab_size) == (0, 4096)


def test_every_label_and_word_is_one_token() -> None:
    texts = [*labels(), *WHITE_SPACE, *(" " + word for word in word_list("words.txt"))]
    assert [text for text in texts if len(BUILTIN.encode(text)) != 1] == []


@pytest.mark.parametrize(
    "text",
    ["A", " B", "yes", " No", "True", " negative", "7", " 100", " **", '{"', '":', '",', "}", "\n", "\n\n", " left"],
)
def test_everyday_labels_are_one_token(text: str) -> None:
    assert BUILTIN.token_text(BUILTIN.one_token(text)) == text


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Is the sky blue?\nAnswer: yes", ["Is", " the", " sky", " blue", "?", "\n", "Answer", ":", " yes"]),
        ('{"answer": "yes"}', ['{"', "answer", '":', ' "', "yes", '"}']),
        ("10042", ["100", "42"]),
        ("A.\n\nB", ["A", ".", "\n\n", "B"]),
    ],
)
def test_how_text_splits(text: str, tokens: list[str]) -> None:
    assert [BUILTIN.token_text(token_id) for token_id in BUILTIN.encode(text)] == tokens
