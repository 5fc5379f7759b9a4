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
from turnwise import InvalidArgument
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


async def test_no_call_is_made_once_it_is_over() -> None:
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


async def test_whoever_waits_for_an_answer_as_it_closes_gets_none() -> None:
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


async def test_nothing_is_called_before_it_is_connected() -> None:
    connection = Connection("numbers", mcp.Client(mcp_server.server))
    with pytest.raises(MCPUnreachable):
        await connection.call("add", {"first": 1, "second": 2}, report)


async def test_tools_are_taken_from_every_page_and_keep_names_of_their_own() -> None:
    names = ["a b", "n" * 64, "n" * 65, "n" * 64 + "m", "last"]

    async def pages(_: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        at = int(params.cursor) if params is not None and params.cursor is not None else 0
        tool = Tool(name=names[at], title=f"Tool {at}", input_schema={"type": "object"})
        return ListToolsResult(tools=[tool], next_cursor=str(at + 1) if at + 1 < len(names) else None)

    server: Any = mcp.server.Server("pages", on_list_tools=pages)
    async with MCPTools(lambda: mcp.Client(server), name="pages") as tools:
        found = [tool.name for tool in tools.tools]
        assert [tool.description for tool in tools.tools] == [f"Tool {at}" for at in range(len(names))]
    assert [found[0], found[1], found[4]] == ["a_b", "n" * 64, "last"]
    assert len(set(found)) == len(names)
    assert all(len(name) == 64 for name in found[1:4])


async def test_a_server_that_names_a_page_again_is_not_read_for_ever() -> None:
    async def pages(_: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        following = {None: "b", "b": "c", "c": "b"}[None if params is None else params.cursor]
        return ListToolsResult(tools=[Tool(name="x", input_schema={"type": "object"})], next_cursor=following)

    server: Any = mcp.server.Server("pages", on_list_tools=pages)
    with anyio.fail_after(60), pytest.raises(MCPUnreachable, match="its list of tools has no end"):
        await MCPTools(lambda: mcp.Client(server), name="pages").__aenter__()


@pytest.mark.parametrize("again", [False, True], ids=["entered", "connected anew"])
async def test_a_server_that_never_answers_is_out_of_reach_in_time(*, again: bool) -> None:
    """When its tools are entered, and when a call connects anew."""
    asked = 0

    async def silence(_: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        nonlocal asked
        asked += 1
        if asked > again:
            await anyio.sleep_forever()
        return ListToolsResult(tools=[Tool(name="x", input_schema={"type": "object"})])

    server: Any = mcp.server.Server("silence", on_list_tools=silence)
    tools = MCPTools(lambda: mcp.Client(server), name="silence", connect_timeout=1)
    with anyio.fail_after(60):
        if again:
            async with tools:
                (tool,) = tools.tools
                assert tools._connection is not None
                tools._connection.close()
                with pytest.raises(MCPUnreachable, match="it has not told its tools within 1 s"):
                    await tool.run(turnwise_context=None)
        else:
            with pytest.raises(MCPUnreachable, match="it has not told its tools within 1 s"):
                await tools.__aenter__()


@pytest.mark.parametrize(
    "made",
    [
        lambda: MCPTools.stdio(3),  # type: ignore[arg-type]
        lambda: MCPTools.stdio("server", [1]),  # type: ignore[list-item]
        lambda: MCPTools.http("http://localhost", headers=["x"]),  # type: ignore[arg-type]
        lambda: MCPTools.http("http://localhost", connect_timeout=-1),
        lambda: MCPTools("server", name="x"),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_server_is_refused_with_what_would_be_right(made: Any) -> None:
    with pytest.raises(InvalidArgument, match="must be"):
        made()
