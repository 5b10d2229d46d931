"""POST /v1/systemone."""
