"""Admin: erases, deletes, imports and repairs whole chats, outside of their turns."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from datetime import datetime
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from turnwise.engine.admin.diagnose import find_issues, is_repairable, repair
from turnwise.engine.admin.erase import Erasure, ErasureRequest, summaries_after
from turnwise.engine.admin.transfer import read, store_import
from turnwise.engine.config.results import Chat, chat_of
from turnwise.engine.isolation.tasks import run_in_thread, run_shielded
from turnwise.engine.transactions.chat_writer import UnitOfWork
from turnwise.engine.transactions.runtime import Runtime
from turnwise.foreign import described, guarded, only_error_in
from turnwise.logger import logger
from turnwise.persistence.blobs.spool import Spool
from turnwise.persistence.chat_rows import ChatRows
from turnwise.persistence.protocol import Permission
from turnwise.persistence.stored_chat import PartialRead
from turnwise.persistence.tombstone import Tombstone
from turnwise.states.arguments import Erasing
from turnwise.states.errors import (
    ChatDeleted,
    ChatExists,
    ChatNotFound,
    InvalidArgument,
    NotResting,
    StoreError,
    TurnwiseError,
    VersionMismatch,
)
from turnwise.states.facts import Facts
from turnwise.states.triggers import MessageErased


class _Relatives(NamedTuple):
    """The chats that were made from a chat."""

    forks: tuple[str, ...]
    children: tuple[str, ...]


class Admin(msgspec.Struct, frozen=True):
    """Erases, deletes, imports and repairs chats."""

    runtime: Runtime
    actor: str

    async def erase(self, chat_id: str, request: ErasureRequest) -> Erasure:
        """Erase the requested content. Unreadable values cannot be blanked: with `everything`, repair the chat first.

        If the caller is cancelled, either nothing is erased, or the bytes are gone from the files, too.
        """
        if "everything" in request.what and is_repairable(await find_issues(self.runtime.store, chat_id)):
            await self.repair(chat_id)
        while True:
            facts, rows = await self.runtime.store.facts(chat_id), await self.runtime.store.rows(chat_id)
            if facts.version == rows.chat["version"]:
                erasure = await run_shielded(self._erase(request, facts, rows))
                if erasure is not None:
                    return erasure

    async def _erase(self, request: ErasureRequest, facts: Facts, rows: ChatRows) -> Erasure | None:
        """Erase content of a chat as it was read, and its bytes; return `None` if the chat has changed since."""
        chat_id, erasing = facts.chat_id, request.of(rows, facts)
        relatives = await self._relatives(chat_id)
        blank = partial(_blank, erasing, facts.version)
        committed = await self.runtime.writer.change(chat_id, blank, actor=self.actor)
        if committed.before.version != facts.version:
            return None
        names = tuple(message.id for message in erasing.messages)
        return Erasure(
            chat=chat_of(committed.facts),
            messages=names,
            queued=tuple(sorted(erasing.queued)),
            labels=tuple(sorted(request.labels)),
            quarantined=rows.quarantined,
            may_quote=summaries_after(rows, names, request.labels),
            forks=(await self._relatives(chat_id, fallback=relatives)).forks,
            overwritten=await self._remove_bytes(unsent_of=chat_id if "everything" in request.what else None),
        )

    async def _remove_bytes(self, *, unsent_of: str | None = None) -> bool:
        """Remove the bytes of erased content; return whether the database's files are free of it.

        The erasure or deletion is already committed, so a store failure here is logged, not raised.
        """
        store = self.runtime.store
        try:
            if unsent_of is not None:
                await store.let_go(seconds=0, limit=1, chat_id=unsent_of)
            removed = await self.runtime.files.collect()
            return await store.scrub() and removed
        except StoreError as error:
            logger.warning("bytes_not_removed", problem=error.problem)
            return False

    async def _relatives(self, chat_id: str, *, fallback: _Relatives | None = None) -> _Relatives:
        """Return the chat's forks and children; if the store fails, return `fallback`.

        Called before a deletion, when an error still means that nothing was written, and again after it: a fork may
        have been made meanwhile.
        """
        try:
            return _Relatives(await self._forks(chat_id), tuple(await self.runtime.store.children(chat_id)))
        except StoreError as error:
            if fallback is None:
                raise
            logger.warning("forks_not_updated", chat_id=chat_id, problem=error.problem)
            return fallback

    async def delete(self, chat_id: str, *, if_version: int | None = None) -> Tombstone:
        """Delete a chat, and return its tombstone with the present forks and children."""
        return await run_shielded(self._delete(chat_id, partial(check_deletable, if_version)))

    async def _delete(self, chat_id: str, permission: Permission) -> Tombstone:
        relatives = await self._relatives(chat_id)
        tombstone = await self.runtime.writer.delete(chat_id, permission, actor=self.actor)
        forks, children = await self._relatives(chat_id, fallback=relatives)
        return replace(tombstone, forks=forks, children=children, overwritten=await self._remove_bytes())

    async def import_chat(
        self,
        lines: Iterable[str] | AsyncIterable[str],
        *,
        key: bytes | None,
        permit: Callable[[Chat], object] | None,
    ) -> Chat:
        """Import a chat, once all of it was checked and `permit` accepts it."""
        with Spool() as spool:
            chat = await read(lines, spool, key=key)
            if permit is not None:
                await self._call_permit(permit, chat_of(await run_in_thread(lambda: chat.facts)))
            if chat.blobs:
                await self._check_new(chat.chat_id)
            await self.runtime.files.import_spool(chat.chat_id, spool)
            taken_in = self.runtime.writer.import_chat(chat, partial(store_import, chat), actor=self.actor)
            return chat_of((await taken_in).facts)

    async def _call_permit(self, permit: Callable[[Chat], object], chat: Chat) -> None:
        """Call `permit`, sync or async, which refuses a chat by an exception."""
        try:
            with guarded():
                answer = permit(chat)
            if inspect.isawaitable(answer):
                await self.runtime.tasks.user_calls.run(partial(_await, answer), "permit", chat_id=chat.id)
        except Exception as error:
            raised = only_error_in(error)
            if isinstance(raised, TurnwiseError):
                raise raised from None
            raise InvalidArgument("permit", f"refuses the chat: {described(error)}") from error

    async def _check_new(self, chat_id: str) -> None:
        try:
            await self.runtime.store.rest(chat_id)
        except ChatDeleted:
            raise
        except ChatNotFound:
            return
        raise ChatExists(chat_id)

    async def _forks(self, chat_id: str) -> tuple[str, ...]:
        every: list[str] = []
        parents = [chat_id]
        while parents:
            forks = [fork for fork in await self.runtime.store.forks(parents.pop()) if fork not in every]
            every += forks
            parents += forks
        return tuple(every)

    async def repair(self, chat_id: str) -> Chat:
        """Bring a chat to `error` with all readable content, and quarantine the rest."""
        issues = await find_issues(self.runtime.store, chat_id)
        repaired = self.runtime.writer.repair(chat_id, partial(repair, issues), actor=self.actor)
        return chat_of((await repaired).facts)


async def _await(answer: Awaitable[object]) -> None:
    await answer


def _blank(erasing: Erasing, version: int, unit: UnitOfWork) -> None:
    if unit.facts.version == version and not erasing.is_empty:
        unit.fire(MessageErased(erasing=erasing))


def check_deletable(if_version: int | None, read: PartialRead, now: datetime) -> None:  # noqa: ARG001 - a permission's signature
    """Permit the deletion of a chat that rests, archived or not, or that cannot be read."""
    readable = not read.issues and read.facts.stored_state is None
    if if_version is not None and read.facts.version != if_version:
        raise VersionMismatch(read.facts.chat_id, if_version, read.facts.version)
    if readable and not read.facts.resting:
        raise NotResting(read.facts.chat_id, read.facts.state)
