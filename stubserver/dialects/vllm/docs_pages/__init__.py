"""GET /docs, /redoc and /docs/oauth2-redirect."""
