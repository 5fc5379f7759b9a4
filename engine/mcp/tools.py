"""The tools of an MCP server, made into tools of the engine."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, Self

import anyio
import httpx2
import mcp
import msgspec
from anyio.abc import TaskGroup
from mcp import types
from mcp.client.streamable_http import streamable_http_client

from turnwise.engine.mcp.connection import Connection, MCPUnreachable
from turnwise.engine.tools.declare import Tool, ToolContext, ToolOutput
from turnwise.states.checked import checked
from turnwise.states.errors import InvalidArgument, SettingsError, TurnwiseError
from turnwise.states.limits import Duration, said
from turnwise.states.messages import FilePart
from turnwise.states.plain import shown

_CONTEXT = "turnwise_context"
_LONGEST_NAME = 64
CONNECT_TIMEOUT: Final = 60.0
"""Seconds: a server that is started may have to be downloaded first."""
_TIMEOUT = httpx2.Timeout(30, read=300)
"""In seconds; a server may send nothing on an open stream for a long time."""


_Said = Annotated[str, said]


class MCPToolFailed(TurnwiseError):
    """A tool of an MCP server reported that it failed. The model sees the text of its report."""


@checked
class MCPTools:
    """The tools of one MCP server. Use it as an async context manager, around the engine that is given its `tools`.

    A call to a server that is gone, or has forgotten the session, fails, and the model sees that. The next call
    connects, or starts the server, again.

    Args:
        connect: returns a new client, each time it is called.
        name: the name of the server in errors.
        prefix: put before each tool's name, so that those of several servers cannot clash.
        connect_timeout: seconds in which the server must have started, and listed its tools.

    Raises:
        InvalidArgument: an argument is not what it may be.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[mcp.Client]],
        *,
        name: _Said,
        prefix: str = "",
        connect_timeout: Duration = CONNECT_TIMEOUT,
    ) -> None:
        self._tools: Sequence[Tool] | None = None
        self._connect = connect
        self._name = name
        self._prefix = prefix
        self._connect_timeout = connect_timeout
        self._tasks: TaskGroup | None = None
        self._connection: Connection | None = None
        self._connecting = anyio.Lock()

    @classmethod
    @checked
    def stdio(
        cls,
        command: _Said,
        arguments: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        prefix: str = "",
        connect_timeout: Duration = CONNECT_TIMEOUT,
    ) -> Self:
        """Return the tools of a server that is started as a process, with few environment variables besides `env`.

        Raises:
            InvalidArgument: an argument is not what it may be.
        """
        started = mcp.StdioServerParameters(command=command, args=[*arguments], env=dict(env or {}), cwd=cwd)
        return cls(lambda: mcp.Client(started), name=command, prefix=prefix, connect_timeout=connect_timeout)

    @classmethod
    @checked
    def http(
        cls,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        prefix: str = "",
        connect_timeout: Duration = CONNECT_TIMEOUT,
    ) -> Self:
        """Return the tools of a server that is reached over streamable HTTP.

        Raises:
            InvalidArgument: `url` is no address of HTTP, or another argument is not what it may be.
        """
        if not url.startswith(("http://", "https://")):
            raise InvalidArgument("url", f"must be like https://host/mcp; it was {shown(url)}")
        connect = partial(_over_http, url, headers or {})
        return cls(connect, name=url, prefix=prefix, connect_timeout=connect_timeout)

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools that the server offered when the context was entered.

        A tool that says it is read-only is `parallel_safe`; one that says it is read-only or idempotent may run again
        after a crash. To trust a server less, change its tools with `dataclasses.replace`.

        Raises:
            SettingsError: the context was not entered yet, so that nobody knows them.
        """
        if self._tools is None:
            problem = "has no tools before its server is connected: enter it first, `async with` it around the engine"
            raise SettingsError(f"MCPTools {self._name!r}", problem)
        return self._tools

    async def __aenter__(self) -> Self:
        """Connect, and ask for the tools.

        Raises:
            MCPUnreachable: the server did not start, does not speak MCP, or has not listed its tools in time.
            SettingsError: it offers something that can be no tool.
        """
        self._tasks = await anyio.create_task_group().__aenter__()
        try:
            self._connection, offered = await self._connected(self._tasks)
            self._tools = [self._tool(tool) for tool in offered]
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *raised: object) -> None:
        """Disconnect; a server that was started is stopped."""
        tasks, self._tasks = self._tasks, None
        if self._connection is not None:
            self._connection.close()
        if tasks is not None:
            await tasks.__aexit__(None, None, None)

    async def _connected(self, tasks: TaskGroup) -> tuple[Connection, list[mcp.Tool]]:
        connection = Connection(self._name, self._connect())
        try:
            with anyio.fail_after(self._connect_timeout):
                return connection, await tasks.start(connection.keep)
        except TimeoutError:
            late = TimeoutError(f"it has not told its tools within {self._connect_timeout:g} s")
            raise MCPUnreachable(self._name, late) from None

    async def _current(self) -> Connection:
        async with self._connecting:
            if self._tasks is None or self._connection is None:
                raise MCPUnreachable(self._name, ConnectionError("its tools were left"))
            if self._connection.is_over:
                self._connection, _ = await self._connected(self._tasks)
            return self._connection

    def _tool(self, offered: mcp.Tool) -> Tool:
        hints = offered.annotations or types.ToolAnnotations()

        async def run(**arguments: Any) -> ToolOutput:
            context: ToolContext = arguments.pop(_CONTEXT)

            async def report(progress: float, total: float | None, message: str | None) -> None:
                context.report({"progress": progress, "total": total, "message": message})

            connection = await self._current()
            return _output(await connection.call(offered.name, arguments, report))

        try:
            return Tool(
                name=_name(self._prefix + offered.name),
                description=offered.description or offered.title or offered.name,
                schema=offered.input_schema,
                run=run,
                context_parameter=_CONTEXT,
                parallel_safe=bool(hints.read_only_hint),
                crash="at_least_once" if hints.read_only_hint or hints.idempotent_hint else "at_most_once",
            )
        except SettingsError as error:
            problem = f"offers {offered.name!a:.80}, which can be no tool: {error.problem}"
            raise SettingsError(f"MCPTools {self._name!r}", problem) from error


@asynccontextmanager
async def _over_http(url: str, headers: Mapping[str, str]) -> AsyncIterator[mcp.Client]:
    async with (
        httpx2.AsyncClient(headers=dict(headers), timeout=_TIMEOUT) as http,
        mcp.Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


def _name(original: str) -> str:
    """Return a name that every provider takes; the end of a long one is a digest, so that no two become the same."""
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", original)
    return name if len(name) <= _LONGEST_NAME else f"{name[:55]}_{sha256(original.encode()).hexdigest()[:8]}"


def _output(result: types.CallToolResult) -> ToolOutput:
    """Return a result as a tool's output: its structured content if it has some, else its text, with the files."""
    lines, files = [], []
    for block in result.content:
        match block:
            case types.TextContent():
                lines.append(block.text)
            case types.ImageContent() | types.AudioContent():
                files.append(FilePart(media_type=block.mime_type, data=block.data))
            case types.ResourceLink():
                lines.append(f"{block.title or block.name}: {block.uri}")
            case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
                lines.append(resource.text)
            case types.EmbeddedResource(resource=types.BlobResourceContents() as resource):
                media_type = resource.mime_type or "application/octet-stream"
                files.append(FilePart(media_type=media_type, data=resource.blob, name=str(resource.uri)))
    text = "\n".join(lines)
    if result.is_error:
        raise MCPToolFailed(_complaint(text, result.structured_content, files))
    return ToolOutput(text if result.structured_content is None else result.structured_content, tuple(files))


def _complaint(text: str, structured: dict[str, Any] | None, files: Sequence[FilePart]) -> str:
    """Return what a failed call says: its text, or else its structured content, and which files stay out of it."""
    said = [text or (msgspec.json.encode(structured).decode() if structured else "")]
    if files:
        said.append(f"[left out, as the call failed: {', '.join(file.name or file.media_type for file in files)}]")
    return "\n".join(filter(None, said)) or "it does not say why"
