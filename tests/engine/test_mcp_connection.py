"""A connection to an MCP server in this process: what it offers, and what it does once it is over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp
import pytest
from mcp.types import ListToolsResult, PaginatedRequestParams, Tool

from support import mcp_server
from turnwise.engine.mcp import MCPTools, MCPUnreachable
from turnwise.engine.mcp.connection import Connection


async def report(*_: Any) -> None:
    """Take no notice of progress."""


@asynccontextmanager
async def connected() -> AsyncIterator[Connection]:
    connection = Connection("numbers", mcp.Client(mcp_server.server))
    async with anyio.create_task_group() as tasks:
        offered = await tasks.start(connection.keep)
        assert "add" in {tool.name for tool in offered}
        yield connection
        connection.close()


async def test_closed_connection_makes_no_calls() -> None:
    """Not even while the client under it is still there: its answer would come to nobody."""
    async with connected() as connection:
        answer = await connection.call("add", {"first": 1, "second": 2}, report)
        assert (answer.is_error, connection.is_over) == (False, False)
        connection.close()
        assert connection.is_over
        with pytest.raises(
            MCPUnreachable, match="'numbers' is out of reach: ConnectionError: the connection is closed"
        ):
            await connection.call("add", {"first": 1, "second": 2}, report)


async def test_closing_fails_the_waiting_calls() -> None:
    began = anyio.Event()

    async def begun(*_: Any) -> None:
        began.set()

    async def close(connection: Connection) -> None:
        await began.wait()
        connection.close()

    async with connected() as connection, anyio.create_task_group() as tasks:
        tasks.start_soon(close, connection)
        with pytest.raises(MCPUnreachable):
            await connection.call("wait_for_ever", {}, begun)


async def test_endless_pages_are_refused() -> None:
    async def pages(_: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        following = {None: "b", "b": "c", "c": "b"}[None if params is None else params.cursor]
        return ListToolsResult(tools=[Tool(name="x", input_schema={"type": "object"})], next_cursor=following)

    server: Any = mcp.server.Server("pages", on_list_tools=pages)
    with anyio.fail_after(60), pytest.raises(MCPUnreachable, match="its list of tools has no end"):
        await MCPTools(lambda: mcp.Client(server), name="pages").__aenter__()


async def test_silent_server_is_unreachable_after_the_timeout() -> None:
    async def silence(*_: Any) -> ListToolsResult:
        await anyio.sleep_forever()
        raise AssertionError

    server: Any = mcp.server.Server("silence", on_list_tools=silence)
    tools = MCPTools(lambda: mcp.Client(server), name="silence", connect_timeout=0.1)
    with anyio.fail_after(60), pytest.raises(MCPUnreachable, match=r"it has not told its tools within 0\.1 s"):
        await tools.__aenter__()
