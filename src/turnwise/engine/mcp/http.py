"""MCP clients over HTTP: their credentials, and the HTTP status of each answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
import mcp
from mcp.client.streamable_http import streamable_http_client

from turnwise.engine.mcp.answers import CURRENT_RESPONSE
from turnwise.states.errors import InvalidArgument
from turnwise.states.values.plain import shown

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
