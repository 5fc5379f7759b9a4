"""Reads of one chat, as both stores do them: each method answers one question from one moment of the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from turnwise.persistence.audit.record import AuditRecord, Entry, log_of
from turnwise.persistence.reading import PAGE_BYTES, EventPage, Expiry, Snapshot
from turnwise.persistence.rows import CALLS, PARSE_ERRORS, RECEIPTS, USAGE, Body, event_of, message_of, unreadable
from turnwise.persistence.sql.database import Row, SQLDatabase
from turnwise.persistence.sql.tombstones import missing
from turnwise.persistence.stored_chat import PartialRead, Stored, facts_of, head_of, is_count, salvage
from turnwise.states.arguments import Cut
from turnwise.states.calls import ToolCall
from turnwise.states.errors import ChatUnreadable
from turnwise.states.events import PartEvent, TurnFinishedEvent
from turnwise.states.facts import Facts
from turnwise.states.message_order import in_prompt_order
from turnwise.states.messages import Message
from turnwise.states.values.plain import COUNTABLE
from turnwise.states.writes import RecordReceipt, RecordUsage

_T = TypeVar("_T")

_POSITIONS: Final = msgspec.json.Decoder(list[int])


class ChatReads:
    """Reads a chat. Methods raise `ChatNotFound` where `ChatStore` says so, and `ChatUnreadable`."""

    def __init__(self, db: SQLDatabase, chat_id: str) -> None:
        self.db = db
        self.chat_id = chat_id

    async def stored(self) -> Stored:
        """Return the stored values that say where the chat stands."""
        found = await self.db.stored("WHERE chats.id = :chat_id", chat_id=self.chat_id)
        if not found:
            raise await missing(self.db, self.chat_id)
        return found[0]

    async def facts(self) -> Facts:
        return facts_of(await self.stored())

    async def rest(self) -> PartialRead:
        return salvage(await self.stored())

    async def head(self) -> tuple[int, str]:
        row = await self.db.fetch_one("head", chat_id=self.chat_id)
        if row is None:
            raise await missing(self.db, self.chat_id)
        version, head = row
        return head_of(self.chat_id, version, head)

    async def lease_expiry(self) -> Expiry | None:
        row = await self.db.fetch_one("expires", chat_id=self.chat_id)
        if row is None or row[0] is None:
            return None
        try:
            expires = self.db.time_in(row[0])
        except PARSE_ERRORS as error:
            raise unreadable(self.chat_id, "leases.expires", error) from None
        return Expiry(expires, await self.db.now())

    async def history(self, *, at_version: int | None = None, after: int = 0, size: int | None = None) -> list[Message]:
        values = {"chat_id": self.chat_id, "at_version": at_version, "after": after}
        rows, _ = await self.db.fetch_page("history", size=size, **values)
        return self._messages(rows)

    async def snapshot(self, *, size: int | None = None) -> Snapshot:
        async with self.db.one_moment():
            chat = await self.facts()
            messages = await self.history(size=size)
            step = chat.step
            parts = await self.shown(step.number, step.attempt) if step.attempt_open else []
            row = await self.db.fetch_one("last_finished", chat_id=self.chat_id)
        finished = None if row is None else event_of(self.chat_id, *row)
        reason = finished.stop_reason if isinstance(finished, TurnFinishedEvent) else None
        return Snapshot(chat, tuple(messages), tuple(parts), reason)

    async def prompt(self) -> list[Message]:
        async with self.db.one_moment():
            boundary, carried = await self._newest_boundary()
            rows = await self.db.fetch("prompt", chat_id=self.chat_id, boundary=boundary, carried=carried)
        return in_prompt_order(self._messages(rows), carried)

    async def cut_at(self, message_id: str) -> tuple[Message, Cut] | None:
        async with self.db.one_moment():
            rows = await self.db.fetch("message", chat_id=self.chat_id, message_id=message_id)
            if not rows:
                return None
            (message,) = self._messages(rows)
            boundary, carried = await self._newest_boundary(before=message.position)
            between = {"boundary": boundary, "position": message.position}
            ((newer,),) = await self.db.fetch("said_between", chat_id=self.chat_id, **between)
            history_version = (await self.facts()).history_version
        cut = Cut(
            position=message.position,
            first_removed=message.id,
            boundary=boundary,
            foldable=newer + sum(position < boundary for position in carried),
            history_version=history_version,
        )
        return message, cut

    async def calls(self, call_ids: Sequence[str]) -> dict[str, ToolCall]:
        rows = await self.db.fetch("calls", chat_id=self.chat_id, call_ids=[*call_ids])
        return {call.call_id: call for call in self._each(CALLS, rows)}

    async def receipt(self, client_id: str) -> RecordReceipt | None:
        rows = await self.db.fetch("receipt", chat_id=self.chat_id, client_id=client_id)
        return next(iter(self._each(RECEIPTS, rows)), None)

    async def ledger(self) -> list[RecordUsage]:
        return self._each(USAGE, await self.db.fetch("ledger", chat_id=self.chat_id))

    async def events(self, *, after: int, limit: int) -> EventPage:
        values = {"chat_id": self.chat_id, "after": after, "limit": limit}
        rows, is_full = await self.db.fetch_page("events", size=PAGE_BYTES, **values)
        page = EventPage(event_of(self.chat_id, *row[:6]) for row in rows)
        page.more = len(page) == limit or is_full
        return page

    async def shown(self, step: int, attempt: int) -> list[PartEvent]:
        rows = await self.db.fetch("parts", chat_id=self.chat_id, step=step, attempt=attempt)
        return [event for event in (event_of(self.chat_id, *row) for row in rows) if isinstance(event, PartEvent)]

    async def audit(self) -> list[AuditRecord]:
        rows = await self.db.fetch("audit", chat_id=self.chat_id)
        try:
            return log_of(self.chat_id, [Entry(*row) for row in rows])
        except PARSE_ERRORS as error:
            raise unreadable(self.chat_id, "audit.body", error) from None

    async def _newest_boundary(self, *, before: int = COUNTABLE) -> tuple[int, list[int]]:
        """Return the position of the newest boundary before another, and the positions that it carries."""
        row = await self.db.fetch_one("newest_boundary", chat_id=self.chat_id, before=before)
        if row is None:
            return 0, []
        position, carried = row
        try:
            positions = _POSITIONS.decode(carried) if isinstance(carried, str | bytes) else [*carried]
        except PARSE_ERRORS as error:
            raise unreadable(self.chat_id, "boundaries.carried", error) from None
        if not is_count(position):
            raise ChatUnreadable("boundaries.position", "a count belongs here", chat_id=self.chat_id)
        return position, positions

    def _messages(self, rows: Sequence[Row]) -> list[Message]:
        return [message_of(row[0], row[1], self.chat_id) for row in rows]

    def _each(self, kind: Body[_T], rows: Sequence[Row]) -> list[_T]:
        return [kind.load(row[0], self.chat_id) for row in rows]
