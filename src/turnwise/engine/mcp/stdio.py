"""MCP servers that are started as processes. Lines that the SDK cannot parse are repaired, or end their call."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import mcp
from mcp import types
from mcp.client.stdio import stdio_client
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from turnwise.states.values.plain import well_formed_json


@asynccontextmanager
async def over_stdio(started: mcp.StdioServerParameters) -> AsyncIterator[mcp.Client]:
    async with mcp.Client(_transport(started)) as client:
        yield client


@asynccontextmanager
async def _transport(started: mcp.StdioServerParameters) -> AsyncIterator[tuple[Any, Any]]:
    async with stdio_client(started) as (lines, requests):
        yield _Readable(lines), requests


class _Readable:
    """The messages of a server, as far as they can be repaired."""

    def __init__(self, lines: Any) -> None:
        self._lines = lines

    async def receive(self) -> SessionMessage | Exception:
        return repaired(await self._lines.receive())

    async def aclose(self) -> None:
        await self._lines.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return repaired(await anext(self._lines))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.aclose()


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
