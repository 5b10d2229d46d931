"""GET /docs, /redoc and /docs/oauth2-redirect: FastAPI's pages, which read /openapi.json in the browser.

The HTML files are FastAPI 0.136's pages as vLLM 0.32.0 sends them, `@ROOT@` where the root path goes.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from stubserver.serving.dialect import Route
from stubserver.serving.state import server_state


async def show_page(name: str, request: Request) -> Response:
    """One of the pages."""
    page = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return HTMLResponse(page.replace("@ROOT@", server_state(request).settings.root_path.rstrip("/")))


DOCS, REDOC, OAUTH2 = (Route(partial(show_page, name)) for name in ("docs.html", "redoc.html", "oauth2-redirect.html"))
