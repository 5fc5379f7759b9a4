"""What stores share when they take in a chat of another: where it stands, and its events in their own spelling.

Each store spells the rows of events in its own way, and the audit log holds digests of the rows. Where a spelling
differs from that of the store that the chat came from, the record of the import states the digests anew.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import cast

import msgspec

from turnwise.persistence.archive.format import WholeChat
from turnwise.persistence.audit.record import WriteRecord
from turnwise.persistence.audit.row_digests import EventFields, digest_of_events, digested_fields
from turnwise.persistence.chat_rows import Row
from turnwise.persistence.commit import CachedChat
from turnwise.persistence.erasure import aside_in, spans_of
from turnwise.persistence.integrity.raw_chat import stored_in
from turnwise.persistence.rows import message_of, time_of
from turnwise.persistence.stored_chat import facts_of
from turnwise.states.events import FLEETING, Event
from turnwise.states.facts import Facts
from turnwise.states.messages import Message, without_secrets


def standing_of(chat: WholeChat, at: datetime) -> CachedChat:
    """Return where an exported chat stands, with the lease that it was exported with."""
    return CachedChat(facts_in(chat), chat.rows.chat["head"], at, chat.rows.chat["facts"])


def facts_in(chat: WholeChat) -> Facts:
    """Return the facts of an exported chat."""
    stored = chat.rows
    rows = {"chats": [stored.chat], **stored.tables, "leases": [] if stored.lease is None else [stored.lease]}
    return facts_of(stored_in(chat.chat_id, rows))


def events_in(chat: WholeChat, rows: Sequence[Row]) -> list[Event]:
    """Return the events that rows of the chat hold, in whatever spelling."""
    messages = {
        row["position"]: message_of(row["format"], row["body"], chat.chat_id) for row in chat.rows.tables["messages"]
    }
    return [_event_in(chat.chat_id, row, messages) for row in rows]


def _event_in(chat_id: str, row: Row, messages: Mapping[int, Message]) -> Event:
    columns = {"kind": row["kind"], "chat_id": chat_id, "seq": row["seq"], "at": time_of(row["at"]).isoformat()}
    fields = {**json.loads(row["body"]), **columns}
    message = messages.get(row.get("position", 0))
    if message is not None and row["kind"] == "message":
        fields["message"] = msgspec.to_builtins(without_secrets(message))
    elif message is not None:
        fields["output"] = None if message.result is None else message.result.output
    return cast("Event", msgspec.convert(fields, Event))


def restated(chat: WholeChat, spelled: Mapping[int, EventFields]) -> list[WriteRecord]:
    """Return the digests of events to state anew, given the fields that the store has for each number."""
    fields = {row["seq"]: digested_fields(row) for row in chat.rows.tables["events"] if row["kind"] not in FLEETING}
    asides = {entry.version: aside_in(entry) for entry in chat.rows.audit}
    row_digests: list[WriteRecord] = []
    numbers = sorted(fields)
    for version, first, last in spans_of(chat.rows):
        within = numbers[bisect_left(numbers, first) : bisect_right(numbers, last)]
        if any(fields[seq] != list(spelled[seq]) for seq in within):
            row_digests += digest_of_events(first, last, [spelled[seq] for seq in within], salt=asides[version].events)
    return row_digests
