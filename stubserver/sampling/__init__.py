"""From logits to a token and its logprobs, as vLLM does it. Pure: numpy in, numpy out."""
