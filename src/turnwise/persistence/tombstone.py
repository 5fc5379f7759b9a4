"""A tombstone: what is left of a chat that was deleted."""

from __future__ import annotations

import hashlib
from datetime import datetime

from turnwise.persistence.stored_chat import UNKNOWN_TIME, PartialRead, is_hash
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


def mark_of(chat_id: str, owner: str | None) -> str:
    """Return what proves that a deleted chat was an owner's, to one who names the owner; empty without an owner."""
    return "" if owner is None else hashlib.sha256(f"{chat_id}\n{owner}".encode()).hexdigest()
