"""Files that are served as they are and need no token: the client for pages, and those of the inspector."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from turnwise.service.problems import ProblemRoute

_MEDIA_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_HEADERS: Final = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
"""A browser keeps the files, and asks by their `ETag` whether they are still the same: modules of two versions never
meet."""
_IN_WHEEL: Final = Path(__file__).with_name("client")
_IN_CHECKOUT: Final = Path(__file__).parents[3] / "clients" / "typescript"


def add_client(routes: APIRouter) -> None:
    """Add the modules of the TypeScript client at `/client/`: a page imports `/client/index.js`."""
    folder = _IN_WHEEL if _IN_WHEEL.is_dir() else _IN_CHECKOUT
    for name, content in read_files(folder).items():
        add_file(routes, f"/client/{name}", content)


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder that browsers load, by name."""
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.suffix in _MEDIA_TYPES}


def add_file(
    routes: APIRouter, path: str, content: bytes, suffix: str | None = None, headers: Mapping[str, str] | None = None
) -> None:
    """Add a file, of the type of `suffix` or the path's own. The OpenAPI document leaves it out."""
    media_type = _MEDIA_TYPES[suffix or Path(path).suffix]
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    routes.add_api_route(
        path,
        _answer(content, media_type, {**_HEADERS, **(headers or {}), "ETag": etag}),
        methods=["GET", "HEAD"],
        include_in_schema=False,
        route_class_override=ProblemRoute,
    )


def _answer(content: bytes, media_type: str, headers: Mapping[str, str]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    return answer
