"""Chats: create, list, read, change, configure, fork, erase, delete, export and import."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from turnwise.engine.config.results import Chat
from turnwise.engine.engine import Engine
from turnwise.http_problems import NotAllowed
from turnwise.service.bodies import Permissions
from turnwise.service.caller import ChatId, Sender
from turnwise.service.routes.preconditions import (
    IfNoneMatch,
    build_etag,
    is_known,
    with_etag,
)
from turnwise.service.routes.streamed import JSON_LINES, iterate_pages, read_lines, streamed


async def get_chat(caller: Sender, chat_id: ChatId, response: Response, if_none_match: IfNoneMatch = None) -> Any:
    """Return a chat as it stands; its version is the `ETag`."""
    chat = await caller.chat(chat_id)
    if is_known(build_etag(chat), if_none_match):
        return Response(status_code=304, headers={"ETag": build_etag(chat)})
    return with_etag(response, chat)


async def export_chat(caller: Sender, chat_id: ChatId) -> StreamingResponse:
    """Export the whole chat as JSON Lines, for another store to import. An owner's export is not importable.

    A whole export holds the system prompt, summaries and the provider's own data. An owner's export holds the chat and
    its messages as the owner sees them, then a line with the number of lines before it (`rows`) and no hash (`head`).
    """
    chat = await caller.chat(chat_id)
    name = f'attachment; filename="{quote(chat_id)}.jsonl"'
    whole = caller.principal.sees_all
    lines = caller.engine.export_chat(chat_id) if whole else _stream_visible(caller.engine, chat)
    return await streamed(lines, media_type=JSON_LINES, headers={"Content-Disposition": name})


async def _stream_visible(engine: Engine, chat: Chat) -> AsyncGenerator[str]:
    """Yield the chat and its messages as an owner sees them, and a last line that marks the end."""
    yield _line(chat)
    rows = 1
    async with aclosing(iterate_pages(engine.transcript_pages(chat.id))) as pages:
        async for messages in pages:
            for message in messages:
                yield _line(message)
            rows += len(messages)
    yield _line({"rows": rows, "head": None})


def _line(value: Any) -> str:
    return f"{msgspec.json.encode(value).decode()}\n"


async def import_chat(caller: Sender, request: Request, response: Response) -> Chat:
    """Take in a chat that was exported elsewhere: its lines are the body."""

    def permit(chat: Chat) -> None:
        caller.service.choices.check_chat(chat)
        if not caller.sees(chat):
            raise NotAllowed(caller.principal.role, "'operator' to import a chat of another owner")

    taken = await caller.chats.import_chat(read_lines(request), permit=permit)
    response.headers["Location"] = quote(taken.id)
    return with_etag(response, taken)


async def list_agents(caller: Sender) -> dict[str, list[str]]:
    """List the agents that the service runs, each with its tools."""
    return {name: sorted(tools) for name, tools in caller.engine.agents.items()}


async def read_principal(caller: Sender) -> Permissions:
    """Return the caller, with the operations and fields that the policy allows."""
    principal = caller.principal
    may = await caller.service.policy.permitted(principal)
    return Permissions(name=principal.name, role=principal.role, until=principal.until, may=may)
