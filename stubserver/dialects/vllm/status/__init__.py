"""GET /health, /ping, /version and /load."""
