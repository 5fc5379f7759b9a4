"""The inspector: a page that shows and steers the chats of a service, by the service's own routes."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

PAGE: Final = "index.html"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
"""What the page may load, as its `Content-Security-Policy`: its own files, and the answers of its own service."""
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_MEDIA_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


def add_inspector(routes: APIRouter) -> None:
    """Add the page at `/inspector`, and its files below it. They need no token: they tell nothing of any chat."""
    for file in sorted(Path(__file__).parent.iterdir()):
        if file.suffix in _MEDIA_TYPES:
            path = "/inspector" if file.name == PAGE else f"/inspector/{file.name}"
            routes.add_route(path, _answer(file))  # which only answers GET and HEAD, and describes no route


def _answer(file: Path) -> Callable[[Request], Awaitable[Response]]:
    content = file.read_bytes()
    headers = _HEADERS | {"ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"'}

    async def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=_MEDIA_TYPES[file.suffix], headers=headers)

    return answer
