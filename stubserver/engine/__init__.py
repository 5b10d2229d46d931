"""The decoding loop: script, sampling and tokenizer joined; one `Step` a token."""
