"""The inspector: a page that shows and steers the chats of a service, by the service's own routes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from fastapi import APIRouter

from turnwise.service.static import add_file, read_files
from turnwise.states.names import SPECS

PAGE: Final = "index.html"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
"""What the page may load, as its `Content-Security-Policy`: its own files, and the answers of its own service."""
_HEADERS: Final = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}


def add_inspector(routes: APIRouter) -> None:
    """Add the page at `/inspector`, and its files below it. They need no token: they hold no data of chats."""
    files = {**read_files(Path(__file__).parent), "states.js": _states().encode()}
    for name, content in sorted(files.items()):
        path = "/inspector" if name == PAGE else f"/inspector/{name}"
        add_file(routes, path, content, Path(name).suffix, _HEADERS)


def _states() -> str:
    """Return the page's module of all states, each with what it asks of workers."""
    kinds = json.dumps({state: spec.kind for state, spec in SPECS.items()})
    return f"// The states, as the machine declares them.\n\nexport const KINDS = {kinds};\n"
