"""Retention: archives chats that rest for long, and deletes archived ones after a while."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from functools import partial

import msgspec

from turnwise.engine.config.settings import Settings
from turnwise.engine.subagents.family import is_awaited
from turnwise.engine.transactions.chat_writer import Change, UnitOfWork
from turnwise.persistence.protocol import ChatStore, Permission
from turnwise.persistence.stored_chat import PartialRead
from turnwise.states.errors import TurnwiseError
from turnwise.states.facts import Facts
from turnwise.states.names import SYSTEM
from turnwise.states.triggers import Archived


class NotDue(TurnwiseError):
    """The chat was changed since it was found, is due by one clock only, or is waited for. Nothing was written."""

    def __init__(self, chat_id: str) -> None:
        super().__init__(
            f"chat {chat_id!r} was changed, is due by the store's clock only, or is a subagent that a chat waits for; "
            "nothing was written"
        )


class Archiving(msgspec.Struct, frozen=True):
    """A chat is to be archived, unless another one waits for it."""

    change: Change


class Deletion(msgspec.Struct, frozen=True):
    """A chat is to be deleted, if that is still permitted."""

    permit: Permission


Retained = tuple[str, Archiving | Deletion]
"""A chat, and what is to happen to it."""


async def due_chats(store: ChatStore, settings: Settings, *, as_of: datetime, limit: int) -> list[Retained]:
    """Return chats that are to be archived or deleted: up to `limit` of each kind, with what is to happen to them.

    What is not due `as_of` a time that the worker relies on stays as it is, whatever the store's clock says.
    """
    return [due async for due in _due(store, settings, as_of, limit)]


async def _due(store: ChatStore, settings: Settings, as_of: datetime, limit: int) -> AsyncIterator[Retained]:
    if settings.archive_after is not None:
        for chat_id in await store.rested(archived=False, seconds=settings.archive_after, limit=limit):
            yield chat_id, Archiving(partial(_archive, settings.archive_after, as_of))
    if settings.delete_after is not None:
        for chat_id in await store.rested(archived=True, seconds=settings.delete_after, limit=limit):
            yield chat_id, Deletion(partial(_permit_deletion, settings.delete_after, as_of))


async def check_not_awaited(store: ChatStore, chat_id: str) -> None:
    """Check that no chat waits for this one: archived, it would never answer.

    Raises:
        NotDue: one does.
    """
    if await is_awaited(store, await store.facts(chat_id)):
        raise NotDue(chat_id)


def _archive(seconds: float, as_of: datetime, unit: UnitOfWork) -> None:
    facts = unit.facts
    if facts.archived or not facts.resting:
        return
    if not _is_unchanged(facts, min(unit.now, as_of), seconds):
        raise NotDue(facts.chat_id)
    unit.fire(Archived(), actor=SYSTEM, reason=f"unchanged for {seconds:g} s")


def _permit_deletion(seconds: float, as_of: datetime, rest: PartialRead, now: datetime) -> None:
    """Permit a deletion as long as the chat is archived and unchanged, or cannot be read."""
    facts = rest.facts
    unchanged = _is_unchanged(facts, min(now, as_of), seconds)
    if not rest.issues and not (facts.archived and facts.resting and unchanged):
        raise NotDue(facts.chat_id)


def _is_unchanged(facts: Facts, now: datetime, seconds: float) -> bool:
    return now - (facts.updated_at or facts.profile.created_at) >= timedelta(seconds=seconds)
