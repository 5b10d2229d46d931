"""The built-in vocabulary: what it is made from, and what came of it."""
