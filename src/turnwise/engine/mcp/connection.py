"""The connection to an MCP server. If it breaks, only the calls that wait for an answer are lost."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from http import HTTPStatus
from http.client import responses
from typing import Any, Final

import anyio
import mcp
import msgspec
from anyio.abc import TaskStatus
from mcp import types
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT

from turnwise.engine.isolation.clock import fail_after
from turnwise.engine.isolation.user_code import is_the_engines
from turnwise.engine.mcp.answers import CURRENT_RESPONSE, Answers, ResponseInfo, repair_answers
from turnwise.foreign import described, first_error_in, text_of
from turnwise.states.errors import ToolOutcomeUnknown, TurnwiseError

ANSWER_TIMEOUT_S: Final = 10.0
"""Seconds in which a server that has refused a call, or has other tools, must list them."""
LISTEN_AGAIN_AFTER_S: Final = 5.0
"""Seconds after which a lost subscription is opened again."""

_CREDENTIALS: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_LOST: Final = frozenset({types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT, types.PARSE_ERROR})
"""Codes of missing or unreadable answers."""
_ANY_STATUS: Final = "Server returned an error response"
"""The SDK's message for every HTTP status without an error of the server's own."""


class MCPUnreachable(TurnwiseError):
    """An MCP server did not start, does not speak MCP, is gone, has forgotten the session, or refused the credentials.

    No call was made, unless it is `MCPAnswerLost`.
    """

    _is = "is out of reach"

    def __init__(self, server: str, problem: BaseException, status: int | None = None) -> None:
        self.server = server
        self.status = status
        if status in _CREDENTIALS:
            why = "the credentials are missing, wrong or expired (see `auth=` of MCPTools.http)"
            super().__init__(f"the MCP server {server!r} refused the request: {_status_text(status)}; {why}")
        else:
            super().__init__(f"the MCP server {server!r} {self._is}: {_describe(problem, status)}")


class MCPAnswerLost(MCPUnreachable, ToolOutcomeUnknown):
    """An MCP server was asked to run a tool, and its answer did not come or cannot be read: the tool may have run."""

    _is = "gave no readable answer"


class Listing(msgspec.Struct, frozen=True):
    """The tools that a server offers."""

    tools: Sequence[mcp.Tool]
    left_out: dict[str, str]
    """Tools that cannot be read, by name, and why."""


class ServerAnswer(msgspec.Struct, frozen=True):
    """A server's answer to a call."""

    result: types.CallToolResult
    notes: Sequence[str]
    """Notes for the model about parts that were left out."""
    output_schema: Any
    """The declared JSON schema of the structured content; `None` if there is none."""


class ServerConnection:
    """A client in a task of its own, because a transport that breaks cancels the task that opened it."""

    def __init__(self, server: str, client: AbstractAsyncContextManager[mcp.Client]) -> None:
        self._server = server
        self._connecting = client
        self._client: mcp.Client | None = None
        self._answers: Answers | None = None
        self._calls: set[anyio.CancelScope] = set()
        self._over = anyio.Event()
        self._problem: BaseException = ConnectionError("the connection is closed")
        self.tools_changed = False
        """Whether the server has reported a change of its tools."""

    @property
    def is_over(self) -> bool:
        """Whether no call can be made any more."""
        return self._over.is_set()

    async def keep(self, *, task_status: TaskStatus[Listing]) -> None:
        """Connect, report the tools that the server offers, and stay connected until closed or broken."""
        response_info = ResponseInfo()
        CURRENT_RESPONSE.set(response_info)
        try:
            async with self._connecting as client:
                self._answers = repair_answers(client, self._note_change)
                listing = await self._listing(client)
                self._client = client
                async with anyio.create_task_group() as following:
                    following.start_soon(self._follow_changes, client)
                    task_status.started(listing)
                    await self._over.wait()
                    following.cancel_scope.cancel()
        except BaseException as problem:
            if is_the_engines(problem):
                raise
            if self._client is None:
                raise MCPUnreachable(self._server, problem, response_info.status) from problem
            self._problem = problem
        finally:
            self.close()

    def close(self) -> None:
        """End the connection; calls that wait for an answer are lost."""
        self._over.set()
        for call in self._calls:
            call.cancel()

    async def listing(self) -> Listing:
        if self._client is None or self.is_over:
            raise MCPUnreachable(self._server, self._problem)
        self.tools_changed = False
        try:
            with fail_after(ANSWER_TIMEOUT_S):
                return await self._listing(self._client)
        except BaseException:
            self.tools_changed = True
            raise

    async def _listing(self, client: mcp.Client) -> Listing:
        assert self._answers is not None  # noqa: S101 - for the type checker: a client is there once it is listened to
        self._answers.left_out.clear()
        try:
            page = await client.list_tools(cache_mode="refresh")
        except mcp.MCPError as refusal:
            if refusal.code == types.METHOD_NOT_FOUND and client.server_capabilities.tools is None:
                return Listing((), {})
            raise
        offered, cursors = [*page.tools], set[str]()
        while page.next_cursor:  # many servers send an empty one with the last page
            if page.next_cursor in cursors:
                raise ConnectionError("its list of tools has no end: it names a page that was read before")
            cursors.add(page.next_cursor)
            page = await client.list_tools(cursor=page.next_cursor)
            offered += page.tools
        return Listing(offered, dict(self._answers.left_out))

    def _note_change(self) -> None:
        self.tools_changed = True

    async def _follow_changes(self, client: mcp.Client) -> None:
        """Note that tools have changed, where the protocol wants a subscription for that."""
        tools = client.server_capabilities.tools
        if tools is None or not tools.list_changed:
            return
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        self._note_change()
            except ListenNotSupportedError:  # an older protocol, which notifies without a subscription
                return
            except (mcp.MCPError, SubscriptionLost, TimeoutError):
                self._note_change()  # notifications meanwhile are lost
            await anyio.sleep(LISTEN_AGAIN_AFTER_S)

    async def call(self, tool: str, arguments: dict[str, Any], report: ProgressFnT) -> ServerAnswer:
        """Call a tool and return the server's answer.

        Raises:
            MCPUnreachable: the call was not made.
            MCPAnswerLost: there is no answer, or none that can be read; whether the tool had an effect is unknown.
            MCPError: the server refused the call.
        """
        client, answers = self._client, self._answers
        if client is None or answers is None or self.is_over:
            raise MCPUnreachable(self._server, self._problem)
        response_info = ResponseInfo()
        problem: Exception | None = None
        entered = CURRENT_RESPONSE.set(response_info)
        with anyio.CancelScope() as scope:
            self._calls.add(scope)
            try:
                result = await client.call_tool(tool, arguments, progress_callback=report)
                return ServerAnswer(result, [*response_info.notes], answers.output_schemas.get(tool))
            except mcp.MCPError as refusal:
                problem, status = refusal, response_info.status
                if status not in _CREDENTIALS:
                    if not await _serves(client):
                        self._problem = refusal
                        self.close()
                    elif not _is_stand_in(refusal, status):
                        raise
                response_info.status = status  # that of another request may have replaced it
            except Exception as unreadable:  # noqa: BLE001 - the call was made, and its answer cannot be read
                problem = unreadable
            finally:
                self._calls.discard(scope)
                CURRENT_RESPONSE.reset(entered)
        was_refused = HTTPStatus.MULTIPLE_CHOICES <= (response_info.status or 0) < HTTPStatus.INTERNAL_SERVER_ERROR
        kind = MCPUnreachable if was_refused else MCPAnswerLost
        raise kind(self._server, problem or self._problem, response_info.status)


def _describe(problem: BaseException, status: int | None) -> str:
    problem = first_error_in(problem)
    if status is None or status < HTTPStatus.MULTIPLE_CHOICES:
        return described(problem)
    text = text_of(problem, otherwise="")
    return f"it answered {_status_text(status)}" + ("" if text in (_ANY_STATUS, "") else f": {text}")


def _status_text(status: int | None) -> str:
    return f"{status} {responses.get(status or 0, '')}".rstrip()


def _is_stand_in(refusal: mcp.MCPError, status: int | None) -> bool:
    """Whether a refusal stands for a missing answer, and is not the server's own."""
    failed = status is not None and status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return failed or refusal.code in _LOST or refusal.message == _ANY_STATUS


async def _serves(client: mcp.Client) -> bool:
    """Whether the server still lists its tools.

    A server that was restarted, or has dropped the session, refuses everything, each with other texts and codes.
    """
    with anyio.move_on_after(ANSWER_TIMEOUT_S), suppress(mcp.MCPError):
        await client.list_tools(cache_mode="bypass")
        return True
    return False
