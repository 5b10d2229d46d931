"""POST /generative_scoring."""
