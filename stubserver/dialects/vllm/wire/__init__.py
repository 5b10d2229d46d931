"""vLLM's shapes on the wire."""
