"""Routes of vLLM that are there, and do little here."""
