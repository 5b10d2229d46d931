"""Makes tokenizer.json and tokenizer_config.json beside this file: `python -m stubserver.tokenizer.builtin.build`.

The vocabulary is a byte-level BPE of 4,096 tokens, trained on our own word lists and nothing else, so that every text
can be encoded and everyday labels are single tokens. The same lists give the same bytes.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from stubserver.tokenizer.files import TOKENIZER_FILE, save_config

HERE: Final = Path(__file__).parent
VOCAB_SIZE: Final = 4096

EOS: Final = "<|endoftext|>"
TURN_START: Final = "<|im_start|>"
TURN_END: Final = "<|im_end|>"

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# What BPE may not join across: a run of line breaks, a word, up to three digits, punctuation, other white space.
SPLIT: Final = r"\s*[\r\n]+| ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

WHITE_SPACE: Final = ("\n\n", "\n\n\n", " \n", " \n\n", "\r\n", "\t\t", "  ", "   ", "    ", 7 * " ")

# How often each is seen in training. What is seen more is joined first; words that begin a line get what room is left.
LABEL_WEIGHT: Final = 64
WORD_WEIGHT: Final = 8


def build(directory: Path) -> None:
    """Write both files."""
    train().save(str(directory / TOKENIZER_FILE), pretty=False)
    save_config(directory, {"eos_token": EOS, "pad_token": EOS}, CHAT_TEMPLATE)


def train() -> Tokenizer:
    """Train the tokenizer on the word lists."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        show_progress=False,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in (EOS, TURN_START, TURN_END)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(training_texts(), trainer)
    return tokenizer


def training_texts() -> Iterator[str]:
    """Labels in every form a client may ask for, then the words as they stand within a sentence and at its start."""
    for text in (*labels(), *WHITE_SPACE):
        yield from [text] * LABEL_WEIGHT
    for word in word_list("words.txt"):
        yield from [" " + word] * WORD_WEIGHT
        yield from [word, word.capitalize()] * (WORD_WEIGHT // 4)


def labels() -> Iterator[str]:
    """What has to be one token, with and without a leading space: labels, letters, numbers up to 100, symbols."""
    words = word_list("labels.txt")
    capitalized = [word.capitalize() for word in words]
    numbers = [str(number) for number in range(101)]
    for text in (*words, *capitalized, *string.ascii_letters, *numbers, *word_list("symbols.txt")):
        yield text
        yield " " + text


def word_list(name: str) -> list[str]:
    """The words of a file beside this one, each once, in its order."""
    return list(dict.fromkeys((HERE / name).read_text(encoding="utf-8").split()))


if __name__ == "__main__":
    build(HERE)
