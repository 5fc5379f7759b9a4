"""Reports: a chat's events, its audit log and verdict, what it used, why it does not move, and its diagram."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import Depends, Header, Query
from starlette.responses import Response

from turnwise.diagrams import path, slide, sticker, svg, timeline
from turnwise.persistence.audit.record import object_from
from turnwise.service.bodies import AuditEntry
from turnwise.service.caller import ChatId, Sender, Subscriber
from turnwise.service.pages import Paging
from turnwise.service.routes.streamed import JSON_LINES
from turnwise.service.sse import Stream, stream_bytes
from turnwise.states.errors import ChatUnreadable, InvalidArgument

_SAFE = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "X-Content-Type-Options": "nosniff",
}


_After = Annotated[int, Query(ge=0, le=2**53, description="The number of the last event that was seen.", examples=[7])]
_LastEventId = Annotated[
    int | None,
    Header(alias="Last-Event-ID", ge=0, le=2**53, description="As `after`; it counts if both are given.", examples=[7]),
]


async def start_after(
    caller: Subscriber,
    chat_id: ChatId,
    after: _After = 0,
    last_event_id: _LastEventId = None,
) -> int:
    """Return the number after which a stream begins, if the chat has that event: a restored backup may not."""
    cursor = after if last_event_id is None else last_event_id
    with suppress(ChatUnreadable):  # the stream yields what can be read, and then the error
        if cursor > (await caller.chat(chat_id)).last_seq:
            newest = (await caller.engine.transcript(chat_id)).seq
            if cursor > newest:
                problem = (
                    f"must be the number of an event of this chat, as Last-Event-ID, too; the last one is {newest}"
                )
                raise InvalidArgument("after", problem)
    return cursor


async def stream_events(
    caller: Subscriber,
    chat_id: ChatId,
    cursor: Annotated[int, Depends(start_after)],
    *,
    follow: Annotated[bool, Query(description="Go on with new events.")] = True,
    until_rest: Annotated[bool, Query(description="End once the chat rests.")] = False,
) -> Response:
    """Stream a chat's events: those after a number, then new ones as they come."""
    return Stream(stream_bytes(caller.events(chat_id, after=cursor, follow=follow, until_rest=until_rest), cursor))


async def watch_chats(
    caller: Subscriber,
    after: _After = 0,
    last_event_id: _LastEventId = None,
    *,
    owner: Annotated[str | None, Query(description="Only chats of this owner. Owners see only their own.")] = None,
    agent: Annotated[str | None, Query(description="Only chats that this agent answers.")] = None,
    follow: Annotated[bool, Query(description="Go on with new changes.")] = True,
) -> Response:
    """Stream the chats that changed since a number, each as it stands, then every chat that changes."""
    cursor = after if last_event_id is None else last_event_id
    return Stream(stream_bytes(caller.watch(owner=owner, agent=agent, after=cursor, follow=follow), cursor))


async def read_audit(
    caller: Sender,
    chat_id: ChatId,
    paging: Paging,
    export: Annotated[bool, Query(description="As JSON Lines, for `turnwise verify`.")] = False,  # noqa: FBT002 - a query
) -> Any:
    """Return the audit log: one record for every transition."""
    await caller.chat(chat_id)
    if export:
        return Response(await caller.engine.export_audit(chat_id), media_type=JSON_LINES)
    records = paging.page(await caller.engine.audit(chat_id))
    return [AuditEntry.model_validate(object_from(record)) for record in records]


async def draw(
    caller: Sender,
    chat_id: ChatId,
    *,
    rows: Annotated[bool, Query(description="List every row of the table below the graph.")] = True,
    simple: Annotated[bool, Query(description="Draw only the states and the happy path.")] = False,
    show: Annotated[
        Literal["machine", "timeline", "path", "sticker"],
        Query(description="The machine with the chat's state highlighted, or the history of the chat."),
    ] = "machine",
) -> Response:
    """Return a diagram of the chat."""
    chat = await caller.chat(chat_id)
    if show in ("timeline", "path"):
        events = [event async for event in caller.events(chat_id, follow=False)]
        drawing = timeline(events) if show == "timeline" else path(events)
    elif show == "sticker":
        drawing = sticker(chat.state)
    else:
        drawing = slide(chat.state) if simple else svg(chat.state, rows=rows)
    return Response(drawing, media_type="image/svg+xml", headers=_SAFE)
