"""Erasing what a message said: from its row and from every event that told it. The audit log keeps its digest."""

from __future__ import annotations

import asyncpg

from turnwise.persistence.postgres_reading import event_in
from turnwise.persistence.postgres_rows import body_of
from turnwise.persistence.rows import MESSAGES, message_of
from turnwise.states.errors import StoreError
from turnwise.states.events import Event, MessageEvent, QueueEvent, ToolResultEvent
from turnwise.states.messages import FORMAT, Message, without_metadata


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
    sql = "SELECT chat_id, seq, at, body FROM events WHERE chat_id = $1 AND kind = ANY ($2)"
    told = [event_in(row) for row in await connection.fetch(sql, chat_id, ["message", "queue", "tool_result"])]
    blanked = [(event.seq, body_of(_without(event, blank, said))) for event in told if _tells(event, said)]
    sql = "UPDATE events SET body = $3 WHERE chat_id = $1 AND seq = $2"
    await connection.executemany(sql, [(chat_id, seq, body) for seq, body in blanked])


def _tells(event: Event, said: Message) -> bool:
    match event:
        case MessageEvent():
            return event.message.id == said.id
        case QueueEvent():
            return any(queued.id == said.id for queued in event.queue)
        case ToolResultEvent():
            return said.result is not None and event.call_id == said.result.call_id
    return False


def _without(event: Event, blank: Message, said: Message) -> Event:
    match event:
        case MessageEvent():
            return event.model_copy(update={"message": without_metadata(blank)})
        case QueueEvent():
            emptied = [
                queued.model_copy(update={"parts": blank.parts}) if queued.id == said.id else queued
                for queued in event.queue
            ]
            return event.model_copy(update={"queue": tuple(emptied)})
        case ToolResultEvent():
            return event.model_copy(update={"output": None})
    return event
