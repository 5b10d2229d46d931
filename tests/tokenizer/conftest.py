"""Tokenizers that more than one file here looks at."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from stubserver.tokenizer.hf import HFTokenizer, load_tokenizer


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> HFTokenizer:
    """As a converted SentencePiece model: "▁" for a space, "<0xE2>" for a byte, a decoder that strips a first space."""
    pieces = [
        "<unk>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "A",
        "▁A",
        "▁▁A",
        "blue",
        "▁blue",
        "▁é",
    ]
    backend = Tokenizer(
        models.BPE(
            {piece: token_id for token_id, piece in enumerate(pieces)},
            [],
            unk_token="<unk>",
            byte_fallback=True,
            ignore_merges=True,
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken("<unk>", special=True), AddedToken("</s>", special=True)])
    directory = tmp_path_factory.mktemp("llama")
    backend.save(str(directory / "tokenizer.json"))
    return load_tokenizer(str(directory))
