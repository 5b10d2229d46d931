"""POST /v1/completions/render and /v1/chat/completions/render."""
