"""What is left of deleted chats: stores and reads it, and refuses those who ask for one of them."""

from __future__ import annotations

from collections.abc import Collection

from turnwise.persistence.sql.database import SQLDatabase
from turnwise.persistence.stored_chat import UNKNOWN_TIME, is_count
from turnwise.persistence.tombstone import Tombstone, mark_of
from turnwise.states.errors import ChatDeleted, ChatNotFound, VersionMismatch


async def stored_tombstone(db: SQLDatabase, chat_id: str) -> Tombstone | None:
    """Return the tombstone of a deleted chat; `None` if no chat of that id was deleted."""
    row = await db.fetch_one("tombstone", chat_id=chat_id)
    if row is None:
        return None
    created, deleted, actor, records, head = row
    return Tombstone(
        chat_id=chat_id,
        created_at=db.time_or_none(created),
        deleted_at=db.time_or_none(deleted) or UNKNOWN_TIME,
        actor=actor if isinstance(actor, str) else "",
        records=records if is_count(records) else 0,
        head=head if isinstance(head, str) else None,
    )


async def deleted_among(db: SQLDatabase, chat_ids: Collection[str]) -> frozenset[str]:
    return frozenset(await db.fetch_column("deleted", chat_ids=[*chat_ids]))


async def insert_tombstone(db: SQLDatabase, tombstone: Tombstone, *, owner: str | None) -> None:
    await db.execute(
        "bury",
        chat_id=tombstone.chat_id,
        created=tombstone.created_at,
        deleted=tombstone.deleted_at,
        actor=tombstone.actor,
        records=tombstone.records,
        head=tombstone.head,
        whose=mark_of(tombstone.chat_id, owner),
    )


async def missing(db: SQLDatabase, chat_id: str) -> ChatNotFound:
    tombstone = await stored_tombstone(db, chat_id)
    return ChatNotFound(chat_id) if tombstone is None else ChatDeleted(chat_id, tombstone.deleted_at)


async def check_not_deleted(db: SQLDatabase, chat_id: str) -> None:
    """Check that no chat of that id was deleted, or raise `ChatDeleted`: there was one."""
    error = await missing(db, chat_id)
    if isinstance(error, ChatDeleted):
        raise error


async def check_parent(db: SQLDatabase, chat_id: str, version: int, *, unchanged: bool) -> None:
    """Check that nothing of a chat was erased or changed since a version, nor will be until the transaction ends.

    Raises:
        ChatNotFound: there is no such chat.
        VersionMismatch: something was.
    """
    row = await db.fetch_one("lock_parent", chat_id=chat_id)
    if row is None:
        raise await missing(db, chat_id)
    # Another statement: it sees what was committed while this transaction waited for the lock.
    ((was_erased,),) = await db.fetch("erased_since", chat_id=chat_id, version=version)
    if was_erased or (unchanged and row[0] != version):
        raise VersionMismatch(chat_id, version, row[0])
