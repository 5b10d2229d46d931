"""POST /invocations."""
