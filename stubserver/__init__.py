"""A test double of vLLM's OpenAI-compatible server: scripted logits in, vLLM's answers out."""

__version__ = "0.1.0"
