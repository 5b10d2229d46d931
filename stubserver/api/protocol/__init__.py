"""Shapes of requests and replies, as pydantic models: names, types and limits of vLLM 0.32.0's OpenAI server."""
