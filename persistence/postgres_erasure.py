"""Erasing what a message said: from its row and from every event that told it. The audit log keeps its digest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import asyncpg

from turnwise.persistence.postgres_reading import calls, event_in
from turnwise.persistence.postgres_rows import body_of
from turnwise.persistence.rows import CALLS, MESSAGES, message_of
from turnwise.states.errors import StoreError
from turnwise.states.events import ActionRequiredEvent, Event, MessageEvent, QueueEvent, ToolResultEvent
from turnwise.states.messages import FORMAT, Message, without_metadata

_TELLING: Final = ["message", "queue", "action_required", "tool_result"]


async def erase(connection: asyncpg.Connection, chat_id: str, blank: Message) -> None:
    """Put `blank` in the place of the message of its id.

    Events keep their numbers, apart from the parts of a reply: they are pruned, the message's event replaces them.

    Raises:
        StoreError: the chat has no such message.
    """
    sql = "SELECT format, body FROM messages WHERE chat_id = $1 AND id = $2"
    row = await connection.fetchrow(sql, chat_id, blank.id)
    if row is None:
        raise StoreError(f"chat {chat_id!r} has no message {blank.id!r} to erase; nothing was written")
    said = message_of(row["format"], row["body"])
    sql = "UPDATE messages SET erased = true, format = $3, body = $4 WHERE chat_id = $1 AND id = $2"
    await connection.execute(sql, chat_id, blank.id, FORMAT, MESSAGES.dump(blank))
    if said.role == "assistant":
        sql = "DELETE FROM partial_events WHERE kind = 'part' AND chat_id = $1 AND step = $2"
        await connection.execute(sql, chat_id, said.step)
        await _erase_arguments(connection, chat_id, [call.call_id for call in said.calls])
    sql = "SELECT chat_id, seq, at, body FROM events WHERE chat_id = $1 AND kind = ANY ($2)"
    told = [event_in(row) for row in await connection.fetch(sql, chat_id, _TELLING)]
    blanked = [(event, _without(event, blank, said)) for event in told]
    sql = "UPDATE events SET body = $3 WHERE chat_id = $1 AND seq = $2"
    rows = [(chat_id, event.seq, body_of(after)) for event, after in blanked if after != event]
    await connection.executemany(sql, rows)


async def _erase_arguments(connection: asyncpg.Connection, chat_id: str, call_ids: Sequence[str]) -> None:
    known = await calls(connection, chat_id, call_ids)
    sql = "UPDATE calls SET body = $3 WHERE chat_id = $1 AND call_id = $2"
    rows = [(chat_id, call_id, CALLS.dump(replace(call, arguments={}))) for call_id, call in known.items()]
    await connection.executemany(sql, rows)


def _without(event: Event, blank: Message, said: Message) -> Event:
    """Return the event without what the message said, or as it is where it tells nothing of it."""
    asked = {call.call_id for call in said.calls}
    match event:
        case MessageEvent() if event.message.id == said.id:
            return event.model_copy(update={"message": without_metadata(blank)})
        case QueueEvent():
            queue = [
                queued.model_copy(update={"parts": blank.parts}) if queued.id == said.id else queued
                for queued in event.queue
            ]
            return event.model_copy(update={"queue": tuple(queue)})
        case ActionRequiredEvent():
            open_calls = [replace(call, arguments={}) if call.call_id in asked else call for call in event.calls]
            return event.model_copy(update={"calls": tuple(open_calls)})
        case ToolResultEvent() if said.result is not None and event.call_id == said.result.call_id:
            return event.model_copy(update={"output": None})
    return event
