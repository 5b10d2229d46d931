"""POST /v1/chat/completions, and its batch form."""
