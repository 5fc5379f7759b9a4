"""Erasing what a message said: from its row and from every event that told it. The audit log keeps its digest."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace

from turnwise.persistence.event_rows import TOLD, at_of, body_of, event_of
from turnwise.persistence.rows import MESSAGES, message_of
from turnwise.states.errors import StoreError
from turnwise.states.events import ActionRequiredEvent, Event, QueueEvent
from turnwise.states.messages import FORMAT, Message


def erase(connection: sqlite3.Connection, chat_id: str, blank: Message) -> None:
    """Put `blank` in the place of the message of its id.

    Its own event tells it as it is stored. The others keep their numbers, apart from the parts of a reply: they are
    pruned, the message's event replaces them.

    Raises:
        StoreError: the chat has no such message.
    """
    sql = "SELECT format, body FROM messages WHERE chat_id = ? AND id = ?"
    row = connection.execute(sql, (chat_id, blank.id)).fetchone()
    if row is None:
        raise StoreError(f"chat {chat_id!r} has no message {blank.id!r} to erase; nothing was written")
    connection.execute(
        "UPDATE messages SET erased = 1, format = ?, body = ? WHERE chat_id = ? AND id = ?",
        (FORMAT, MESSAGES.dump(blank), chat_id, blank.id),
    )
    _erase_from_queue_events(connection, chat_id, blank)
    said = message_of(*row)
    if said.role == "assistant":
        connection.execute("DELETE FROM events WHERE kind = 'part' AND chat_id = ? AND step = ?", (chat_id, said.step))
        _erase_arguments(connection, chat_id, {call.call_id for call in said.calls})
    elif said.result is not None:
        connection.execute(
            "UPDATE events SET body = json_set(body, '$.output', NULL)"
            " WHERE chat_id = ? AND kind = 'tool_result' AND position IS NULL AND json_extract(body, '$.call_id') = ?",
            (chat_id, said.result.call_id),
        )


def _erase_arguments(connection: sqlite3.Connection, chat_id: str, call_ids: set[str]) -> None:
    connection.executemany(
        "UPDATE calls SET body = json_set(body, '$.arguments', json('{}')) WHERE chat_id = ? AND call_id = ?",
        [(chat_id, call_id) for call_id in call_ids],
    )

    def blanked(event: Event) -> Event:
        if not isinstance(event, ActionRequiredEvent) or call_ids.isdisjoint(call.call_id for call in event.calls):
            return event
        calls = tuple(replace(call, arguments={}) if call.call_id in call_ids else call for call in event.calls)
        return event.model_copy(update={"calls": calls})

    _rewrite(connection, chat_id, "action_required", blanked)


def _erase_from_queue_events(connection: sqlite3.Connection, chat_id: str, blank: Message) -> None:
    def blanked(event: Event) -> Event:
        if not isinstance(event, QueueEvent) or blank.id not in {queued.id for queued in event.queue}:
            return event
        queue = (
            queued.model_copy(update={"parts": blank.parts}) if queued.id == blank.id else queued
            for queued in event.queue
        )
        return event.model_copy(update={"queue": tuple(queue)})

    _rewrite(connection, chat_id, "queue", blanked)


def _rewrite(connection: sqlite3.Connection, chat_id: str, kind: str, blanked: Callable[[Event], Event]) -> None:
    sql = f"{TOLD} WHERE events.chat_id = ? AND kind = ?"
    for row in connection.execute(sql, (chat_id, kind)).fetchall():
        told = event_of(*row)
        event = blanked(told)
        if event is not told:
            values = (at_of(event), body_of(event), chat_id, event.seq)
            connection.execute("UPDATE events SET at = ?, body = ? WHERE chat_id = ? AND seq = ?", values)
