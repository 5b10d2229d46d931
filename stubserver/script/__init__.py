"""What the "model" says: a script maps a context to the logits of the next token."""
