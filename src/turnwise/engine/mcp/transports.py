"""Connections to MCP servers: over HTTP, or to a process whose lines the SDK cannot always parse."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
import mcp
from anyio.abc import ObjectReceiveStream
from mcp import types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from turnwise.engine.mcp.answers import CURRENT_RESPONSE
from turnwise.states.errors import InvalidArgument
from turnwise.states.values.plain import shown, well_formed_json

_TIMEOUT: Final = httpx2.Timeout(30, read=300)
"""In seconds; an open stream may be idle for long."""

Credentials = httpx2.Auth | tuple[str, str] | Callable[[httpx2.Request], httpx2.Request]
"""The forms of httpx: user and password, a function that changes each request, or an `Auth`, which may also renew a
token and send the request again."""


def credentials(auth: Any) -> Credentials | None:
    """Convert `auth` to credentials for httpx2."""
    if auth is None or isinstance(auth, httpx2.Auth):
        return auth
    if hasattr(auth, "async_auth_flow"):
        return _OfHttpx(auth)
    if callable(auth):
        sign: Callable[[httpx2.Request], httpx2.Request] = auth
        return sign
    if isinstance(auth, tuple | list) and len(auth) == 2 and all(isinstance(one, str) for one in auth):  # noqa: PLR2004
        user, password = auth
        return user, password
    problem = f"must be an httpx.Auth, (user, password) or a function of the request; it was {shown(auth)}"
    raise InvalidArgument("auth", problem)


class _OfHttpx(httpx2.Auth):
    """An `Auth` of httpx for httpx2, whose requests and responses have the same attributes."""

    def __init__(self, auth: Any) -> None:
        self._auth = auth

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        flow = self._auth.async_auth_flow(request)
        try:
            request = await anext(flow)
            while True:
                request = await flow.asend((yield request))
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()


@asynccontextmanager
async def over_http(url: str, headers: Mapping[str, str], auth: Credentials | None) -> AsyncIterator[mcp.Client]:
    hooks = {"response": [_note_status]}
    async with (
        httpx2.AsyncClient(headers=dict(headers), auth=auth, timeout=_TIMEOUT, event_hooks=hooks) as http,
        mcp.Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


async def _note_status(response: httpx2.Response) -> None:
    """Note the HTTP status, which the SDK does not pass on. Only a POST sends a request; a GET resumes an answer."""
    response_info = CURRENT_RESPONSE.get()
    if response_info is not None and response.request.method == "POST":
        response_info.status = response.status_code


@asynccontextmanager
async def over_stdio(started: mcp.StdioServerParameters) -> AsyncIterator[mcp.Client]:
    async with mcp.Client(_transport(started)) as client:
        yield client


@asynccontextmanager
async def _transport(started: mcp.StdioServerParameters) -> AsyncIterator[tuple[Any, Any]]:
    async with stdio_client(started) as (lines, requests):
        yield _Readable(lines), requests


class _Readable(ObjectReceiveStream[Any]):
    """The messages of a server, as far as they can be repaired."""

    def __init__(self, lines: Any) -> None:
        self._lines = lines

    async def receive(self) -> SessionMessage | Exception:
        return repaired(await self._lines.receive())

    async def aclose(self) -> None:
        await self._lines.aclose()


def repaired(item: SessionMessage | Exception) -> SessionMessage | Exception:
    """Return the message of a line that the SDK cannot parse, such as one with half of an emoji or deep nesting.

    An answer that cannot be repaired becomes an error, or its call would wait until it times out. What a server prints
    beside its messages stays the SDK's exception.
    """
    if not isinstance(item, ValidationError):
        return item
    line: Any = item.errors(include_url=False)[0]["input"]
    try:
        message: Any = well_formed_json(json.loads(line) if isinstance(line, str) else line)
    except (ValueError, RecursionError):
        return item
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return item
    error = {"code": types.PARSE_ERROR, "message": "the answer cannot be parsed"}
    for readable in (message, {"jsonrpc": "2.0", "id": message.get("id"), "error": error}):
        try:
            return SessionMessage(types.jsonrpc_message_adapter.validate_python(readable, by_name=False))
        except ValidationError:
            if "method" in message:
                break
    return item
