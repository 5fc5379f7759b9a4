"""An MCP server over HTTP of protocol 2025-06-18 with sessions, as most deployed servers use.

Restarts, deployments and idle time end its sessions.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from fastapi import FastAPI, Request, Response

from support.served import listening

SESSION: Final = "Mcp-Session-Id"
OFFERED: Final = {"name": "give", "description": "Give.", "inputSchema": {"type": "object"}}
HELLO: Final = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "sessions", "version": "1"},
}
NOT_FOUND: Final = -32601


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes = b""
    media_type: str = "application/json"

    @classmethod
    def refusal(cls, status: int, code: int, message: str) -> Answer:
        """Return a JSON-RPC error from a server that has not read the request."""
        return cls(status, rpc(None, error={"code": code, "message": message}))


@dataclass
class Sessions:
    """The state of a server, and the requests that it received."""

    stranger: Answer
    """The answer to a request of an unknown session."""
    url: str = ""
    ids: set[str] = field(default_factory=set)
    session_count: int = 0
    runs: int = 0
    """How often its tool ran."""
    failing: list[Answer] = field(default_factory=list)
    """Answers to the next calls, in place of the tool's result; the tool still runs."""
    on_run: Callable[[], None] | None = None
    tools: list[Any] = field(default_factory=lambda: [OFFERED])
    results: dict[str, Any] = field(default_factory=dict)
    """Results of tools as they are; by default a text that counts the calls."""
    token: str | None = None
    """The bearer token that requests need."""

    def forget(self) -> None:
        """Forget every session, as a restart does."""
        self.ids.clear()

    async def post(self, request: Request) -> Response:
        if self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            return Response(status_code=401)
        asked = await request.json()
        headers = {}
        if asked["method"] == "initialize":
            self.session_count += 1
            self.ids.add(str(self.session_count))
            headers[SESSION] = str(self.session_count)
            answer = Answer(200, rpc(asked["id"], result=HELLO))
        else:
            answer = self._answer(asked, request.headers.get(SESSION))
        return Response(answer.body, answer.status, headers, answer.media_type)

    def _answer(self, asked: dict[str, Any], session: str | None) -> Answer:
        if session not in self.ids:
            return self.stranger
        if "id" not in asked:
            return Answer(202)
        match asked["method"]:
            case "tools/list":
                return Answer(200, rpc(asked["id"], result={"tools": self.tools}))
            case "tools/call":
                self.runs += 1
                if self.on_run is not None:
                    self.on_run()
                result = self.results.get(asked["params"]["name"]) or {
                    "content": [{"type": "text", "text": f"given {self.runs}"}]
                }
                return self.failing.pop() if self.failing else Answer(200, rpc(asked["id"], result=result))
        return Answer(200, rpc(asked["id"], error={"code": NOT_FOUND, "message": "no such method"}))


def rpc(request_id: object, **outcome: Any) -> bytes:
    """Return a JSON-RPC message that answers a request."""
    return json.dumps({"jsonrpc": "2.0", "id": request_id, **outcome}).encode()


@asynccontextmanager
async def serving_sessions(stranger: Answer = Answer(404), **what: Any) -> AsyncIterator[Sessions]:
    sessions, app = Sessions(stranger, **what), FastAPI()
    app.add_route("/mcp", sessions.post, methods=["POST"])
    app.add_route("/mcp", lambda _: Response(status_code=200), methods=["DELETE"])
    async with listening(app) as address:
        sessions.url = f"{address}/mcp"
        yield sessions
