"""A tombstone: what is left of a chat that was deleted."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

from turnwise.persistence.stored_chat import UNKNOWN_TIME, PartialRead, is_count, is_hash
from turnwise.states.errors import ChatDeleted, ChatNotFound
from turnwise.states.values.values import Value


class Tombstone(Value, frozen=True, kw_only=True):
    """Proof that a chat existed. It contains nothing of the content."""

    chat_id: str
    """The id of the deleted chat."""
    created_at: datetime | None
    """`None` if that could not be read any more."""
    deleted_at: datetime
    """When it was deleted."""
    actor: str
    """Who deleted it; empty if that could not be read any more."""
    records: int
    """How many records its audit log had; 0 if that could not be read any more."""
    head: str | None
    """The hash of the last of them: an export of the log that ends with it is that of this chat. `None` if it could not
    be read any more.
    """
    forks: tuple[str, ...] = ()
    """Chats that began with this one's history, and still hold copies of it. Only `delete_chat` fills this in, as
    what follows.
    """
    children: tuple[str, ...] = ()
    """Other chats that name this one as their parent."""
    overwritten: bool = False
    """Whether the database's files are free of it. `False` on PostgreSQL, in a SQLite file of more than 32 MB, and
    where readers, a full disk or a store out of reach were in the way."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tombstone) and self._proof() == other._proof()

    def __hash__(self) -> int:
        return hash(self._proof())

    def _proof(self) -> tuple[object, ...]:
        return self.chat_id, self.created_at, self.deleted_at, self.actor, self.records, self.head


def tombstone_of(rest: PartialRead, *, at: datetime, actor: str, records: int, head: object) -> Tombstone:
    """Return the tombstone of a chat that is deleted now, given what can be read of it."""
    created = rest.facts.profile.created_at
    return Tombstone(
        chat_id=rest.facts.chat_id,
        created_at=None if created == UNKNOWN_TIME else created,
        deleted_at=at,
        actor=actor,
        records=records,
        head=head if is_hash(head) else None,
    )


def tombstone_in(
    chat_id: str, created: datetime | None, deleted: datetime | None, actor: Any, records: Any, head: Any
) -> Tombstone:
    """Return the tombstone that the values of a row make, with what can be read of it."""
    return Tombstone(
        chat_id=chat_id,
        created_at=created,
        deleted_at=deleted or UNKNOWN_TIME,
        actor=actor if isinstance(actor, str) else "",
        records=records if is_count(records) else 0,
        head=head if isinstance(head, str) else None,
    )


def mark_of(chat_id: str, owner: str | None) -> str:
    """Return what proves that a deleted chat was an owner's, to one who names the owner; empty without an owner."""
    return "" if owner is None else hashlib.sha256(f"{chat_id}\n{owner}".encode()).hexdigest()


def not_found(chat_id: str, tombstone: Tombstone | None) -> ChatNotFound:
    """Return the error for a chat that is not there: `ChatDeleted` if there is a tombstone."""
    return ChatNotFound(chat_id) if tombstone is None else ChatDeleted(chat_id, tombstone.deleted_at)
