"""Files that are served as they are and need no token: the client for pages, and those of the inspector."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from turnwise.service.problems import ProblemRoute
from turnwise.states.names import SPECS

_MEDIA_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_HEADERS: Final = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
"""A browser keeps the files, and asks by their `ETag` whether they are still the same: modules of two versions never
meet."""
_IN_WHEEL: Final = Path(__file__).with_name("client")
_IN_CHECKOUT: Final = Path(__file__).parents[3] / "clients" / "typescript"
_INSPECTOR: Final = Path(__file__).with_name("inspector")
_PAGE: Final = "index.html"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
"""What the inspector's page may load: its own files, and the answers of its own service."""
_OF_INSPECTOR: Final = {"Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer"}


def add_client(routes: APIRouter) -> None:
    """Add the modules of the TypeScript client at `/client/`: a page imports `/client/index.js`."""
    folder = _IN_WHEEL if _IN_WHEEL.is_dir() else _IN_CHECKOUT
    for name, content in _read_files(folder).items():
        _add_file(routes, f"/client/{name}", content, name)


def add_inspector(routes: APIRouter) -> None:
    """Add the inspector at `/inspector`, a page that shows and steers the chats by the service's own routes.

    Its files hold no data of chats. One of them is made here: the states, each with what it asks of workers.
    """
    kinds = json.dumps({state: spec.kind for state, spec in SPECS.items()})
    states = f"// The states, as the machine declares them.\n\nexport const KINDS = {kinds};\n"
    for name, content in (_read_files(_INSPECTOR) | {"states.js": states.encode()}).items():
        path = "/inspector" if name == _PAGE else f"/inspector/{name}"
        _add_file(routes, path, content, name, _OF_INSPECTOR)


def _read_files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.suffix in _MEDIA_TYPES}


def _add_file(
    routes: APIRouter, path: str, content: bytes, name: str, headers: Mapping[str, str] | None = None
) -> None:
    """Add a route for a file. The OpenAPI document leaves it out."""
    media_type = _MEDIA_TYPES[Path(name).suffix]
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    own = {**_HEADERS, **(headers or {}), "ETag": etag}

    async def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=own)
        return Response(content, media_type=media_type, headers=own)

    routes.add_api_route(
        path, answer, methods=["GET", "HEAD"], include_in_schema=False, route_class_override=ProblemRoute
    )
