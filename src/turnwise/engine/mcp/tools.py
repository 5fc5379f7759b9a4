"""The tools of an MCP server, as tools of the engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Final, Self

import anyio
import mcp
from anyio.abc import TaskGroup
from pydantic import AfterValidator, SkipValidation

from turnwise.engine.isolation.clock import fail_after
from turnwise.engine.isolation.tasks import Lifetime
from turnwise.engine.mcp.connection import Listing, MCPUnreachable, ServerAnswer, ServerConnection
from turnwise.engine.mcp.offered import tool_of
from turnwise.engine.mcp.transports import Credentials, credentials, over_http, over_stdio
from turnwise.engine.tools.context import ToolContext
from turnwise.engine.tools.declare import Tool
from turnwise.engine.tools.sources import Offer, warn_left_out
from turnwise.foreign import described
from turnwise.logger import logger
from turnwise.states.errors import InvalidArgument, SettingsError
from turnwise.states.values.checked import checked
from turnwise.states.values.limits import Duration, not_blank
from turnwise.states.values.plain import shown

CONNECT_TIMEOUT: Final = 60.0
"""Seconds: a server that is started may have to be downloaded first."""
LIST_AGAIN_AFTER_S: Final = 30.0
"""Seconds after a failed listing of new tools until the next attempt."""

_NotBlank = Annotated[str, AfterValidator(not_blank)]
Adapt = Callable[[Tool], Tool | None]
"""Returns a server's tool as it is to be offered, `None` to leave it out."""


@checked
class MCPTools:
    """The tools of one MCP server, which an engine or an agent takes as they are: `Engine(tools=[mcp])`.

    The engine connects when it is entered, and disconnects when it is left. Each step of a model is offered what the
    server offers then. A tool that cannot be one, or that no provider takes, is left out with a warning that names it.

    A call to a server that is gone, or has forgotten the session, fails, and the model sees that. The next call
    connects, or starts the server, again. A call whose answer is lost ends `unknown`.

    Args:
        connect: returns a new client, each time it is called.
        name: the name of the server in errors.
        prefix: put before each tool's name, so that those of several servers cannot clash.
        adapt: changes a tool before it is offered, for instance by `dataclasses.replace(tool, policy="ask")`.
        connect_timeout: seconds in which the server must have started, and listed its tools.

    Raises:
        InvalidArgument: an argument is not what it may be.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[mcp.Client]],
        *,
        name: _NotBlank,
        prefix: str = "",
        adapt: Adapt | None = None,
        connect_timeout: Duration = CONNECT_TIMEOUT,
    ) -> None:
        self._connect = connect
        self._name = name
        self._prefix = prefix
        self._adapt = adapt
        self._connect_timeout = connect_timeout
        self._offer = Offer(())
        self._is_known = False
        self._tasks: TaskGroup | None = None
        self._connection: ServerConnection | None = None
        self._connecting = anyio.Lock()
        self._refreshing = anyio.Lock()
        self._not_before = 0.0
        """When the server may be asked for new tools, by the monotonic clock."""
        self._lifetime = Lifetime()
        self._entering = anyio.Lock()
        self._entered = 0

    @classmethod
    @checked
    def stdio(  # noqa: PLR0913 - how a process is started, all but the command keyword-only
        cls,
        command: _NotBlank,
        arguments: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        prefix: str = "",
        adapt: Adapt | None = None,
        connect_timeout: Duration = CONNECT_TIMEOUT,
    ) -> Self:
        """Return the tools of a server that is started as a process, with few environment variables besides `env`.

        Raises:
            InvalidArgument: an argument is not what it may be.
        """
        started = mcp.StdioServerParameters(command=command, args=[*arguments], env=dict(env or {}), cwd=cwd)
        connect = partial(over_stdio, started)
        return cls(connect, name=command, prefix=prefix, adapt=adapt, connect_timeout=connect_timeout)

    @classmethod
    @checked
    def http(
        cls,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        auth: Annotated[Credentials | None, SkipValidation] = None,
        prefix: str = "",
        adapt: Adapt | None = None,
        connect_timeout: Duration = CONNECT_TIMEOUT,
    ) -> Self:
        """Return the tools of a server that is reached over streamable HTTP.

        Args:
            url: of the server.
            headers: sent with every request, as they are now.
            auth: as httpx has it: an `httpx.Auth`, a function of the request, or user and password. It is asked with
                each request, so a token that expires is best brought by it.
            prefix: put before each tool's name.
            adapt: changes a tool before it is offered.
            connect_timeout: seconds in which the server must have listed its tools.

        Raises:
            InvalidArgument: `url` is no address of HTTP, or another argument is not what it may be.
        """
        if not url.startswith(("http://", "https://")):
            raise InvalidArgument("url", f"must be like https://host/mcp; it was {shown(url)}")
        connect = partial(over_http, url, headers or {}, credentials(auth))
        return cls(connect, name=url, prefix=prefix, adapt=adapt, connect_timeout=connect_timeout)

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools that the server offers, as far as it was asked: they may change.

        A tool that says it is read-only is `parallel_safe`; one that says it is read-only or idempotent may run again
        after a crash. To trust a server less, change its tools with `adapt`.

        Raises:
            SettingsError: the context was not entered yet: the server was never asked.
        """
        if not self._is_known:
            problem = "has no tools before its server is connected: enter it first, or give the engine tools=[mcp]"
            raise SettingsError(f"MCPTools {self._name!r}", problem)
        return self._offer.tools

    def offer(self) -> Offer:
        """Return the tools as far as they are known; none before the first connection."""
        return self._offer

    async def refresh(self) -> None:
        """Ask the server for its tools again, if it has reported a change. The engine does it."""
        async with self._refreshing:
            connection = self._connection
            if connection is None or connection.is_over or not connection.tools_changed:
                return
            if monotonic() < self._not_before:
                return
            try:
                self._take(await connection.listing())
            except Exception as error:  # noqa: BLE001 - the known tools stay
                self._not_before = monotonic() + LIST_AGAIN_AFTER_S
                logger.warning("tools_not_refreshed", source=self._name, problem=described(error))

    async def __aenter__(self) -> Self:
        """Connect, and ask for the tools, unless that was done.

        Raises:
            MCPUnreachable: the server did not start, does not speak MCP, or has not listed its tools in time.
        """
        async with self._entering:
            if self._entered == 0:
                await self._lifetime.begin(self._life)
            self._entered += 1
        return self

    async def __aexit__(self, *raised: object) -> None:
        """Disconnect at the last exit; a server that was started is stopped."""
        async with self._entering:
            self._entered -= 1
            if self._entered == 0:
                await self._lifetime.end()

    @asynccontextmanager
    async def _life(self) -> AsyncIterator[None]:
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            try:
                self._connection = await self._connected(tasks)
            except Exception as error:  # noqa: BLE001 - raised below: the group would put it into a group
                failure = error
            else:
                self._tasks = tasks
                try:
                    yield
                finally:
                    self._tasks = None
                    self._connection.close()
        if failure is not None:
            raise failure

    async def _connected(self, tasks: TaskGroup) -> ServerConnection:
        connection = ServerConnection(self._name, self._connect())
        try:
            with fail_after(self._connect_timeout):
                listing = await tasks.start(connection.keep)
        except TimeoutError:
            late = TimeoutError(f"it has not listed its tools within {self._connect_timeout:g} s")
            raise MCPUnreachable(self._name, late) from None
        self._take(listing)
        return connection

    async def _current(self) -> ServerConnection:
        async with self._connecting:
            if self._tasks is None or self._connection is None:
                raise MCPUnreachable(self._name, ConnectionError("its tools were left"))
            if self._connection.is_over:
                self._connection = await self._connected(self._tasks)
            return self._connection

    def _take(self, listing: Listing) -> None:
        """Offer from now on what the server lists, tool by tool."""
        for name, problem in listing.left_out.items():
            warn_left_out(self._name, name, problem)
        made: dict[str, Tool] = {}
        for offered in listing.tools:
            try:
                tool = tool_of(offered, self._name, self._prefix, self._call)
                changed = tool if self._adapt is None else self._adapt(tool)
            except Exception as error:  # noqa: BLE001 - the others are offered, whatever this one is
                problem = error.problem if isinstance(error, SettingsError) else described(error)
                warn_left_out(self._name, offered.name, problem)
                continue
            if changed is None:
                continue
            if changed.name in made:
                warn_left_out(
                    self._name, offered.name, f"another tool of the server is named {changed.name!r} here, too"
                )
            else:
                made[changed.name] = changed
        before = {tool.name: tool for tool in (*self._offer.retired, *self._offer.tools)}
        retired = tuple(tool for name, tool in before.items() if name not in made)
        self._offer, self._is_known = Offer(tuple(made.values()), retired), True

    async def _call(self, tool: str, arguments: dict[str, Any], context: ToolContext) -> ServerAnswer:
        async def report(progress: float, total: float | None, message: str | None) -> None:
            context.report({"progress": progress, "total": total, "message": message})

        return await (await self._current()).call(tool, arguments, report)
