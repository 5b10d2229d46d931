"""The running text and the entries' strings, against the real server's recordings and against a plain decode."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from stubserver.tokenizer.base import Detokenizer
from stubserver.tokenizer.detokenizer import decode_entries
from stubserver.tokenizer.hf import HFTokenizer, load_tokenizer

FIXTURES = Path(__file__).parents[2] / "fixtures"
RECORDINGS = sorted((FIXTURES / "vllm-0.32.0").glob("*.jsonl"))

BUILTIN = load_tokenizer("builtin")
BIGRAM = load_tokenizer(str(FIXTURES / "bigram512"))
T7 = load_tokenizer(str(FIXTURES / "t7"))

EMOJI = [BUILTIN.token_of_bytes(bytes([byte])) for byte in "😀".encode()]


def run(tokenizer: HFTokenizer, prompt: list[int], output: list[int], *, skip: bool = False) -> list[str]:
    detokenizer: Detokenizer = tokenizer.detokenizer(prompt, skip_special_tokens=skip)
    return [detokenizer.step(token_id) for token_id in output]


def recorded_completions(path: Path) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(name, request body, choice) of every /v1/completions that came as one reply."""
    with path.open() as lines:
        next(lines)
        for line in lines:
            record = json.loads(line)
            if record["request"]["path"] == "/v1/completions":
                for choice in (record["response"].get("body") or {}).get("choices", []):
                    yield record["name"], record["request"].get("body", {}), choice


# --- the recordings


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_prompt_entries_as_recorded(path: Path) -> None:
    for name, _, choice in recorded_completions(path):
        context: list[int] = []
        for entry in (choice.get("prompt_logprobs") or [])[1:]:
            ids = [int(token_id) for token_id in entry]
            assert decode_entries(BIGRAM, ids, context) == [shown["decoded_token"] for shown in entry.values()], name
            context.append(ids[0])


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_sampled_entries_as_recorded(path: Path) -> None:
    for name, request, choice in recorded_completions(path):
        if request.get("echo") or request.get("return_tokens_as_token_ids") or not choice.get("logprobs"):
            continue
        ids = choice.get("token_ids") or []
        shown = [decode_entries(BIGRAM, [token_id], ids[:position])[0] for position, token_id in enumerate(ids)]
        assert shown == choice["logprobs"]["tokens"][: len(ids)], name


@pytest.mark.parametrize("name", ["bytes_ri", "bytes_emo", "bytes_lonebyte", "bytes_twocont", "bytes_lead"])
def test_top_entries_as_recorded(name: str) -> None:
    """Each was recorded twice: with texts and with ids. Ids with one text share one key."""
    choices = {
        name: choice for name, _, choice in recorded_completions(FIXTURES / "vllm-0.32.0" / "raw_logprobs.jsonl")
    }
    placeholders = choices[f"{name}_ids"]["logprobs"]
    sampled = [int(token.removeprefix("token_id:")) for token in placeholders["tokens"]]
    for position, (keys, top) in enumerate(
        zip(placeholders["top_logprobs"], choices[name]["logprobs"]["top_logprobs"], strict=True)
    ):
        ids = [int(key.removeprefix("token_id:")) for key in keys]
        assert list(dict.fromkeys(decode_entries(BIGRAM, ids, sampled[:position]))) == list(top)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_running_text_as_recorded(path: Path) -> None:
    for name, request, choice in recorded_completions(path):
        plain = choice.get("token_ids") and choice["finish_reason"] == "length" and isinstance(request["prompt"], str)
        if not plain or request.get("echo"):
            continue
        skip = request.get("skip_special_tokens", True)
        assert (
            "".join(run(BIGRAM, BIGRAM.encode(request["prompt"]), choice["token_ids"], skip=skip)) == choice["text"]
        ), name


# --- the running text


def test_a_character_shows_when_it_is_complete() -> None:
    assert run(BUILTIN, [], EMOJI) == ["", "", "", "😀"]


def test_the_output_completes_the_prompts_character() -> None:
    assert run(BUILTIN, EMOJI[:1], EMOJI[1:]) == ["", "", "😀"]


def test_special_tokens_show_unless_skipped() -> None:
    ids = BUILTIN.encode("yes<|im_end|> no")
    assert run(BUILTIN, [], ids) == ["yes", "<|im_end|>", " no"]
    assert run(BUILTIN, [], ids, skip=True) == ["yes", "", " no"]


@pytest.mark.parametrize("token_id", [-1, 4096, 2**40])
def test_an_unknown_id_shows_nothing(token_id: int) -> None:
    assert run(BUILTIN, [], [token_id, *BUILTIN.encode("A"), token_id]) == ["", "A", ""]


def test_a_byte_token_that_is_a_whole_character() -> None:
    assert run(T7, [0], [6, 3, 6]) == ["A", " B", "A"]


def test_added_tokens_in_a_row_can_be_shown_bare() -> None:
    ids = BUILTIN.encode("<|im_start|><|im_end|>A")
    stepper = BUILTIN.detokenizer([], skip_special_tokens=False, spaces_between_special_tokens=False)
    assert [stepper.step(token_id) for token_id in ids] == ["<|im_start|>", "<|im_end|>", "A"]


def test_a_lost_stream_starts_anew(llama: HFTokenizer) -> None:
    """Byte 32 alone is "2", but in a run of byte pieces that is no UTF-8 it is U+FFFD: what was shown is no prefix."""
    output = [llama.token_of_bytes(b"2"), llama.token_of_bytes(b"\x9c"), llama.one_token("blue"), llama.one_token(" A")]
    assert run(llama, [], output) == ["2", "", "blue", " A"]


# After a U+FFFD of the text's own the stream waits: it looks like an unfinished character.
TEXT = st.text(st.characters(exclude_characters="\ufffd", exclude_categories=["Cs"]))


@given(TEXT, TEXT)
def test_the_parts_join_to_the_whole(prompt: str, output: str) -> None:
    ids = BUILTIN.encode(output)
    parts = run(BUILTIN, BUILTIN.encode(prompt), ids)
    assert len(parts) == len(ids)
    assert "".join(parts) == output


# Those that are decoded alone (specials, single bytes, texts) and ids without a token, each often.
ID = st.sampled_from(
    [*range(8), *BUILTIN.special_token_ids, *EMOJI, BUILTIN.token_of_bytes(b"\xc3"), 300, 1000, 2000, 5000]
) | st.integers(0, 4200)


@pytest.mark.parametrize("tokenizer", [BUILTIN, BIGRAM, T7], ids=lambda tokenizer: tokenizer.name)
@pytest.mark.parametrize("skip", [True, False])
@given(st.lists(ID), st.lists(ID))
def test_the_parts_are_those_of_a_stream(
    tokenizer: HFTokenizer, skip: bool, prompt: list[int], output: list[int]
) -> None:
    """The library's own stream, as vLLM uses it, from the first token on."""
    backend = Tokenizer.from_str(tokenizer._backend.to_str())
    stream = DecodeStream(ids=prompt, skip_special_tokens=skip)
    expected = [stream.step(backend, token_id) or "" for token_id in output]
    assert run(tokenizer, prompt, output, skip=skip) == expected


@given(st.lists(st.integers(0, 4095)), st.lists(st.integers(0, 4095)))
def test_no_ids_break_it(prompt: list[int], output: list[int]) -> None:
    assert len(run(BUILTIN, prompt, output)) == len(output)


# --- the entries


def test_the_completing_token_shows_the_whole_character() -> None:
    shown = [decode_entries(BUILTIN, [token_id], EMOJI[:position])[0] for position, token_id in enumerate(EMOJI)]
    assert shown == ["", "", "", "😀"]


def test_alternatives_are_told_apart_by_the_same_context() -> None:
    last = [BUILTIN.token_of_bytes(bytes([byte])) for byte in (0x80, 0x81, 0xF0)]
    yes = BUILTIN.one_token(" yes")
    assert decode_entries(BUILTIN, [*last, yes, 4096], EMOJI[:3]) == ["😀", "😁", "", " yes", ""]


def test_four_tokens_are_looked_back_at() -> None:
    """4096 is no token: it fills a place and adds nothing."""
    assert decode_entries(BUILTIN, EMOJI[3:], [*EMOJI[:3], 4096]) == ["😀"]
    assert decode_entries(BUILTIN, EMOJI[3:], [*EMOJI[:3], 4096, 4096]) == [""]


def test_whole_tokens_are_not_looked_at_twice() -> None:
    """With no U+FFFD in sight the context isn't decoded at all."""
    assert decode_entries(BUILTIN, BUILTIN.encode("yes no"), [-1, 2**80]) == ["yes", " no"]


@given(st.lists(st.integers(0, 4095)), st.lists(st.integers(-1, 5000), max_size=6))
def test_every_entry_gets_a_string(token_ids: list[int], context: list[int]) -> None:
    shown = decode_entries(BUILTIN, token_ids, context)
    assert len(shown) == len(token_ids)
    assert not any(text.endswith("\ufffd") for text in shown)


@given(st.text())
def test_the_entries_of_a_text_in_single_bytes_join_to_it(text: str) -> None:
    ids = [BUILTIN.token_of_bytes(bytes([byte])) for byte in text.replace("\ufffd", "?").encode()]
    shown = [decode_entries(BUILTIN, [token_id], ids[:position])[0] for position, token_id in enumerate(ids)]
    assert "".join(shown) == text.replace("\ufffd", "?")
