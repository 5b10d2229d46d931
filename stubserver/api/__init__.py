"""The wire: vLLM's routes, their request and reply shapes, and their errors."""
