"""What families use: a chat and its subagents, as far as it has heard of them, or until now."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from turnwise.engine.subagents.family import answers_in, subagents_in
from turnwise.persistence.audit.record import AuditRecord
from turnwise.persistence.protocol import ChatStore
from turnwise.states.errors import ChatDeleted, ChatNotFound, ChatUnreadable
from turnwise.states.facts import Facts
from turnwise.states.usage import NO_USAGE, Usage


async def unheard_usage(store: ChatStore, chat_id: str, subagent: Facts) -> Usage:
    """Return what a subagent, and its own, have used that no answer has brought to a chat so far.

    What was used below it counts as it has heard it: those that were stopped with it say nothing any more, but they may
    be told more, and then be heard with all that they have used. The chat may have heard some of them itself.
    What a chat has used that was deleted, or cannot be read, or came back from a backup without what an answer told of,
    is not known.
    """
    logs = _Logs(store)
    own = answers_in(await logs.of(chat_id))
    if logs.are_partial:
        return NO_USAGE.marked_partial()
    told = await logs.told_by(subagent.chat_id, len(await logs.of(subagent.chat_id)))
    before: dict[str, int] = {}
    for name in [*told, *await _between(store, chat_id, subagent)]:
        newest = max((answer.version for answer in own.get(name, ())), default=0)
        for below, version in (await logs.told_by(name, newest)).items():
            before[below] = max(version, before.get(below, 0))
    used = NO_USAGE
    for name, until in told.items():
        used += await logs.used(name, before.get(name, 0), until)
    return used.marked_partial() if logs.are_partial else used


async def _between(store: ChatStore, chat_id: str, subagent: Facts) -> list[str]:
    """Return the chats between a chat and a subagent below it; such a one may have told the chat of that subagent."""
    chats: list[str] = []
    above = subagent.profile.parent
    with suppress(ChatNotFound, ChatUnreadable):
        while above is not None and above not in (chat_id, *chats):
            chats.append(above)
            above = (await store.facts(above)).profile.parent
    return chats


class _Logs:
    """The logs of a family, each read once, and what they tell of who has used what."""

    def __init__(self, store: ChatStore) -> None:
        self._store = store
        self._read: dict[str, Sequence[AuditRecord]] = {}
        self.are_partial = False
        """Whether something could not be told."""

    async def of(self, chat_id: str) -> Sequence[AuditRecord]:
        """Return the log of a chat; nothing, if it is gone or cannot be read."""
        if chat_id not in self._read:
            self._read[chat_id] = ()
            try:
                self._read[chat_id] = await self._store.audit(chat_id)
            except (ChatNotFound, ChatUnreadable):
                self.are_partial = True
        return self._read[chat_id]

    async def told_by(self, chat_id: str, version: int) -> dict[str, int]:
        """Return up to which version each chat was heard of by whoever hears a chat at that version of it."""
        told: dict[str, int] = {}
        pending = [(chat_id, version)]
        while pending:
            name, until = pending.pop()
            if until <= told.get(name, 0):
                continue
            told[name] = until
            for below, answers in answers_in(await self.of(name)).items():
                pending += [(below, answer.version) for answer in answers if answer.at <= until]
        return told

    async def used(self, chat_id: str, after: int, until: int) -> Usage:
        """Return what a chat has used after a version of it, and not after another."""
        records = await self.of(chat_id)
        self.are_partial |= len(records) < max(after, until)
        if min(until, len(records)) <= after:
            return NO_USAGE
        try:
            entries = await self._store.ledger(chat_id)
        except (ChatNotFound, ChatUnreadable):
            self.are_partial = True
            return NO_USAGE
        # In the order of the log, which was read before: what the chat has used since then stands behind.
        versions = [record.version for record in records for write in record.writes if write.kind == "usage"]
        self.are_partial |= len(entries) < len(versions)
        used = NO_USAGE
        for version, entry in zip(versions, entries, strict=False):
            if after < version <= until:
                used += entry.usage
        return used


async def family_usage(store: ChatStore, chat_id: str) -> Usage:
    """Return what a chat, its subagents and theirs have used, whether anybody has heard of it or not.

    It is partial if some of them are deleted or cannot be read.
    """
    used = (await store.facts(chat_id)).usage
    for name in subagents_in(await store.audit(chat_id)):
        try:
            used += await family_usage(store, name)
        except (ChatDeleted, ChatUnreadable):
            used = used.marked_partial()
        except ChatNotFound:
            continue
    return used
