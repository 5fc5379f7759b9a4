"""The connection to an MCP server. If it breaks, only the calls that wait for an answer fail."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final

import anyio
import mcp
from anyio.abc import TaskStatus
from mcp import types
from mcp.shared.dispatcher import ProgressFnT

from turnwise.engine.user_code import is_the_engines
from turnwise.foreign import described, first_error_in
from turnwise.states.errors import TurnwiseError

PATIENCE: Final = 10.0
"""Seconds in which a server that has refused a call must tell its tools, or it counts as gone."""


class MCPUnreachable(TurnwiseError):
    """An MCP server did not start, does not speak MCP, is gone, or has forgotten the session.

    Whether a running call had an effect is unknown.
    """

    def __init__(self, server: str, problem: BaseException) -> None:
        self.server = server
        super().__init__(f"the MCP server {server!r} is out of reach: {described(first_error_in(problem))}")


class Connection:
    """A client in a task of its own, because a transport that breaks cancels the task that opened it."""

    def __init__(self, server: str, client: AbstractAsyncContextManager[mcp.Client]) -> None:
        self._server = server
        self._connecting = client
        self._client: mcp.Client | None = None
        self._calls: set[anyio.CancelScope] = set()
        self._over = anyio.Event()
        self._problem: BaseException = ConnectionError("the connection is closed")

    @property
    def is_over(self) -> bool:
        """Whether no call can be made any more."""
        return self._over.is_set()

    async def keep(self, *, task_status: TaskStatus[list[mcp.Tool]]) -> None:
        """Connect, report the tools that the server offers, and stay connected until closed or broken.

        Raises:
            MCPUnreachable: the connection failed before the tools were known.
        """
        try:
            async with self._connecting as client:
                offered = await _offered(client)
                self._client = client
                task_status.started(offered)
                await self._over.wait()
        except BaseException as problem:
            if is_the_engines(problem):
                raise
            if self._client is None:
                raise MCPUnreachable(self._server, problem) from problem
            self._problem = problem
        finally:
            self.close()

    def close(self) -> None:
        """End the connection; calls that wait for an answer fail."""
        self._over.set()
        for call in self._calls:
            call.cancel()

    async def call(self, tool: str, arguments: dict[str, Any], report: ProgressFnT) -> types.CallToolResult:
        """Call a tool and return the server's answer.

        Raises:
            MCPUnreachable: there is no answer; whether the tool had an effect is unknown.
            MCPError: the server refused the call.
        """
        client = self._client
        if client is None or self.is_over:
            raise MCPUnreachable(self._server, self._problem)
        with anyio.CancelScope() as scope:
            self._calls.add(scope)
            try:
                return await client.call_tool(tool, arguments, progress_callback=report)
            except mcp.MCPError as refusal:
                if refusal.code != types.CONNECTION_CLOSED and await _serves(client):
                    raise
                self._problem = refusal
                self.close()
            finally:
                self._calls.discard(scope)
        raise MCPUnreachable(self._server, self._problem)


async def _serves(client: mcp.Client) -> bool:
    """Return whether the server still tells its tools.

    One that was restarted, or has dropped the session after some idle time, refuses everything. In which words and with
    which code differs from server to server, and a proxy before it has its own.
    """
    with anyio.move_on_after(PATIENCE), suppress(mcp.MCPError):
        await client.list_tools(cache_mode="bypass")
        return True
    return False


async def _offered(client: mcp.Client) -> list[mcp.Tool]:
    page = await client.list_tools()
    offered, cursors = [*page.tools], set[str]()
    while page.next_cursor is not None:
        if page.next_cursor in cursors:
            raise ConnectionError("its list of tools has no end: it names a page that was read before")
        cursors.add(page.next_cursor)
        page = await client.list_tools(cursor=page.next_cursor)
        offered += page.tools
    return offered
