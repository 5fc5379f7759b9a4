"""The inspector: a page that shows and steers the chats of a service, by the service's own routes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from turnwise.states.names import SPECS

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
_CLIENT: Final = Path(__file__).parents[4] / "clients" / "typescript"
"""Where a checkout has the files that the page shares with the client; a wheel has them beside the page."""
_SHARED: Final = ("fold.js",)
_MEDIA_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


def add_inspector(routes: APIRouter) -> None:
    """Add the page at `/inspector`, and its files below it. They need no token: they hold no data of chats."""
    folder = Path(__file__).parent
    files = {file.name: file for file in folder.iterdir() if file.suffix in _MEDIA_TYPES}
    for name in _SHARED:
        files.setdefault(name, _CLIENT / name)
    contents = {name: file.read_bytes() for name, file in files.items()}
    for name, content in sorted({**contents, "states.js": _states().encode()}.items()):
        path = "/inspector" if name == PAGE else f"/inspector/{name}"
        routes.add_route(path, _answer(content, _MEDIA_TYPES[Path(name).suffix]))  # answers GET and HEAD, undescribed


def _states() -> str:
    """Return the page's module of all states, each with what it asks of workers."""
    kinds = json.dumps({state: spec.kind for state, spec in SPECS.items()})
    return f"// The states, as the machine declares them.\n\nexport const KINDS = {kinds};\n"


def _answer(content: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    headers = _HEADERS | {"ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"'}

    async def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    return answer
