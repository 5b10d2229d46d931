"""POST /inference/v1/generate and abort_requests."""
