"""vLLM's OpenAI-compatible server."""
