"""A server of HTTP that receives checkpoints, and answers as a test wants."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from queue import Queue
from typing import Final

import anyio.to_thread

from support.http_server import Quiet, answering

HOLD: Final = 0
"""In place of a status: do not answer until the server is let go."""


@dataclass
class Received:
    """What a server was sent."""

    address: str = ""
    statuses: list[int] = field(default_factory=list)
    """What to answer next; 200 once there is nothing left."""
    bodies: Queue[str] = field(default_factory=Queue)
    """The body of each request, as soon as it was read."""
    headers: list[dict[str, str]] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """The lines of the requests that were answered with 200."""
    released: threading.Event = field(default_factory=threading.Event)

    async def request(self) -> list[str]:
        """Wait for the next request and return its lines."""
        return (await anyio.to_thread.run_sync(lambda: self.bodies.get(timeout=60))).splitlines()

    @property
    def text(self) -> str:
        """The lines that were kept, as a file of checkpoints."""
        return "".join(f"{line}\n" for line in self.kept)


@contextmanager
def receiving(*statuses: int) -> Iterator[Received]:
    """Serve, and answer the first requests with `statuses`."""
    received = Received(statuses=[*statuses])

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            received.headers.append(dict(self.headers))
            status = received.statuses.pop(0) if received.statuses else 200
            if status == 200:
                received.kept += body.splitlines()
            received.bodies.put(body)
            if status == HOLD:
                received.released.wait(60)
                return
            self.send_response(status)
            if status in (301, 302, 307):
                self.send_header("Location", f"{received.address}elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

    with answering(Handler) as received.address:
        try:
            yield received
        finally:
            received.released.set()
