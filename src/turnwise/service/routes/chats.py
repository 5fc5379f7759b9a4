"""Chats: create, list, read, change, configure, fork, erase, delete, export and import."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from turnwise.engine.chats.chats import COMMANDS
from turnwise.engine.config.results import Chat, Page
from turnwise.engine.engine import Engine
from turnwise.http_problems import NotAllowed
from turnwise.persistence.rows import micros_of
from turnwise.persistence.stored_chat import UNKNOWN_TIME
from turnwise.service.bodies import Permissions
from turnwise.service.caller import ChatId, Sender
from turnwise.service.routes.declared import with_query_of
from turnwise.service.routes.pages import page_of
from turnwise.service.routes.preconditions import (
    IfNoneMatch,
    is_known,
    tag_of,
    tagged,
)
from turnwise.service.routes.streamed import JSON_LINES, lines_of, messages_in, streamed
from turnwise.states.errors import ChatNotFound, InvalidArgument
from turnwise.states.names import ChatState

_CREATED: Final = re.compile(r"\A-?[0-9]+~")
"""In a place, before the chat's id: when it was created."""
_PASSED: Final = "~~"
"""In a place, behind another one, and before the id of a chat whose time of creation is unknown."""


@with_query_of(
    COMMANDS["list_chats"],
    owner="Whose chats; an owner sees its own only.",
    awaiting="`client` is a person's inbox.",
)
async def list_chats(
    caller: Sender,
    state: ChatState | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    after: Annotated[str | None, Query(description="`next` of the page before, or a chat's id.")] = None,
    **wanted: Any,
) -> Page[Chat]:
    """List chats, newest first, a page at a time."""
    if not caller.principal.sees_all:
        wanted["owner"] = caller.principal.name
    before = None if after is None else await _chat_before(caller, after)
    page = await caller.engine.list_chats(state=state, limit=limit, after=before, **wanted)
    items = page_of(page.items)
    has_more = page.next is not None or len(items) < len(page.items)
    return Page(items, _end_of(items, after or "") if has_more else None)


def _end_of(chats: Sequence[Chat], after: str) -> str:
    """Return the place where a page ends that began at `after`.

    The time of creation of an unreadable chat may be unknown: then the place holds the one before it, too.
    """
    *before, last = [_place(chat.id, chat.created_at) for chat in chats]
    if last is not None:
        return last
    anchor = next((place for place in reversed(before) if place is not None), after.partition(_PASSED)[0])
    return f"{anchor}{_PASSED}{chats[-1].id}"


async def _chat_before(caller: Sender, place: str) -> str | None:
    """Return the id of the chat after which a page begins; `None` for the first page.

    A chat keeps its place when it is deleted, but its owner is not known any more. Then an owner must know the
    microsecond in which it was created, which `next` holds: its id can be computed. Of a chat without that the page
    begins at the place before it, and lists again what stands between.

    Raises:
        InvalidArgument: there is no such chat, or it is another owner's: the two are indistinguishable.
    """
    anchor, passed, last = place.partition(_PASSED)
    chat_id = last if passed else _CREATED.sub("", anchor)
    try:
        await caller.check_sees(chat_id)
    except ChatNotFound:
        if not await _was_there(caller, place, chat_id):
            if passed:
                return await _chat_before(caller, anchor) if anchor else None
            await caller.wait_for_not_found()
            raise InvalidArgument("after", "must be `next` of a page, or the id of a chat that is listed") from None
    return chat_id


async def _was_there(caller: Sender, place: str, chat_id: str) -> bool:
    try:
        tombstone = await caller.engine.tombstone(chat_id)
    except ChatNotFound:
        return False
    return tombstone is not None and (caller.principal.sees_all or place == _place(chat_id, tombstone.created_at))


def _place(chat_id: str, created_at: datetime | None) -> str | None:
    return None if created_at in (None, UNKNOWN_TIME) else f"{micros_of(created_at)}~{chat_id}"


async def get_chat(caller: Sender, chat_id: ChatId, response: Response, if_none_match: IfNoneMatch = None) -> Any:
    """Return a chat as it stands; its version is the `ETag`."""
    chat = await caller.chat(chat_id)
    if is_known(tag_of(chat), if_none_match):
        return Response(status_code=304, headers={"ETag": tag_of(chat)})
    return tagged(response, chat)


async def list_ids(
    caller: Sender,
    prefix: Annotated[str, Query(description="What the ids begin with.")] = "",
    owner: Annotated[str | None, Query(description="Whose chats; an owner sees its own only.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> list[str]:
    """List the ids of chats, the latest change of state first, unreadable ones included."""
    whose = owner if caller.principal.sees_all else caller.principal.name
    return await caller.engine.chat_ids(prefix, owner=whose, limit=limit)


async def export_chat(caller: Sender, chat_id: ChatId) -> StreamingResponse:
    """Export the whole chat as JSON Lines, for another store to import. An owner's export is not importable.

    A whole export holds the system prompt, summaries and the provider's own data. An owner's export holds the chat and
    its messages as the owner sees them, then a line with the number of lines before it (`rows`) and no hash (`head`).
    """
    chat = await caller.chat(chat_id)
    name = f'attachment; filename="{quote(chat_id)}.jsonl"'
    lines = _exported(caller.engine, chat_id) if caller.principal.sees_all else _seen(caller.engine, chat)
    return await streamed(lines, media_type=JSON_LINES, headers={"Content-Disposition": name})


async def _exported(engine: Engine, chat_id: str) -> AsyncIterator[str]:
    async with aclosing(engine.export_chat(chat_id)) as lines:
        async for line in lines:
            yield line


async def _seen(engine: Engine, chat: Chat) -> AsyncIterator[str]:
    """Yield the chat and its messages as an owner sees them, and a last line by which a client knows the end."""
    yield _line(chat)
    rows = 1
    async with aclosing(messages_in(engine.transcript_pages(chat.id))) as pages:
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

    taken = await caller.chats.import_chat(lines_of(request), permit=permit)
    response.headers["Location"] = quote(taken.id)
    return tagged(response, taken)


async def list_agents(caller: Sender) -> dict[str, list[str]]:
    """List the agents that the service runs, each with its tools."""
    return {name: sorted(tools) for name, tools in caller.engine.agents.items()}


async def read_principal(caller: Sender) -> Permissions:
    """Return who sends the request, and what they may do: the operations and fields that the policy allows."""
    principal = caller.principal
    may = await caller.service.policy.permitted(principal)
    return Permissions(name=principal.name, role=principal.role, until=principal.until, may=may)
