"""An MCP server over HTTP of the protocol with sessions (2025-06-18), which most deployed servers speak.

Whoever restarts such a server, or deploys it anew, ends its sessions; so does it after some idle time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

from support.http_server import Quiet, answering

SESSION: Final = "Mcp-Session-Id"
OFFERED: Final = {"name": "give", "description": "Give.", "inputSchema": {"type": "object"}}
BEGUN: Final = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "sessions", "version": "1"},
}
NOT_FOUND: Final = -32601


@dataclass(frozen=True)
class Answer:
    """An answer of HTTP."""

    status: int
    body: bytes = b""
    media_type: str = "application/json"

    @classmethod
    def result(cls, asked: dict[str, Any], result: dict[str, Any]) -> Answer:
        """Return what a request results in."""
        return cls(200, told(asked["id"], result=result))

    @classmethod
    def refusal(cls, status: int, code: int, message: str) -> Answer:
        """Return an error of JSON-RPC, as servers say it who have not read whose request it was."""
        return cls(status, told(None, error={"code": code, "message": message}))


@dataclass
class Sessions:
    """What a server remembers, and what it was asked."""

    stranger: Answer
    """What a request of a session gets that the server does not have."""
    url: str = ""
    ids: set[str] = field(default_factory=set)
    begun: int = 0
    runs: int = 0
    """How often its tool ran."""
    failing: list[Answer] = field(default_factory=list)
    """What the next calls get after the tool ran for them, in place of its result."""
    on_run: Callable[[], None] | None = None
    """Called when the tool has run."""

    def forget(self) -> None:
        """Forget every session, as a restart does."""
        self.ids.clear()

    def begin(self) -> str:
        """Begin a session and return its id."""
        self.begun += 1
        self.ids.add(str(self.begun))
        return str(self.begun)

    def answer(self, asked: dict[str, Any], session: str | None) -> Answer:
        """Return the answer to a request of a session."""
        if session is None:
            return Answer.refusal(400, -32600, "Bad Request: Missing session ID")
        if session not in self.ids:
            return self.stranger
        if "id" not in asked:
            return Answer(202)
        match asked["method"]:
            case "tools/list":
                return Answer.result(asked, {"tools": [OFFERED]})
            case "tools/call":
                return self._run(asked)
            case _:
                return Answer(200, told(asked["id"], error={"code": NOT_FOUND, "message": "no such method"}))

    def _run(self, asked: dict[str, Any]) -> Answer:
        self.runs += 1
        if self.on_run is not None:
            self.on_run()
        given = Answer.result(asked, {"content": [{"type": "text", "text": f"given {self.runs}"}]})
        return self.failing.pop() if self.failing else given


def told(request_id: object, **said: Any) -> bytes:
    """Return a message of JSON-RPC that answers a request."""
    return json.dumps({"jsonrpc": "2.0", "id": request_id, **said}).encode()


@contextmanager
def serving_sessions(stranger: Answer) -> Iterator[Sessions]:
    """Serve."""
    sessions = Sessions(stranger)

    class Handler(Quiet, BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if asked["method"] == "initialize":
                self.answer(Answer.result(asked, BEGUN), sessions.begin())
            else:
                self.answer(sessions.answer(asked, self.headers[SESSION]))

        def do_GET(self) -> None:
            self.answer(Answer(405))

        def do_DELETE(self) -> None:
            self.answer(Answer(200))

        def answer(self, answer: Answer, session: str | None = None) -> None:
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.media_type)
            self.send_header("Content-Length", str(len(answer.body)))
            if session is not None:
                self.send_header(SESSION, session)
            self.end_headers()
            self.wfile.write(answer.body)

    with answering(Handler) as address:
        sessions.url = f"{address}mcp"
        yield sessions
