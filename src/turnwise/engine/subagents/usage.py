"""The usage of families, a chat and its subagents: as reported to the chat, or up to now."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from turnwise.engine.subagents.family import answers_in, subagents_in
from turnwise.persistence.audit.record import AuditRecord
from turnwise.persistence.protocol import ChatStore
from turnwise.states.errors import ChatDeleted, ChatNotFound, ChatUnreadable
from turnwise.states.facts import Facts
from turnwise.states.usage import NO_USAGE, Usage


async def unreported_usage(store: ChatStore, chat_id: str, subagent: Facts) -> Usage:
    """Return what a subagent, and its own, have used that no answer has reported to a chat so far.

    What was used below the subagent counts as far as it has reported it. Subagents that were stopped with it report
    nothing now; if they get another message, a later answer reports all that they have used. The chat may know of some
    of them directly. Usage of a chat that is deleted, unreadable, or restored from an older backup is unknown.
    """
    logs = _Logs(store)
    own = answers_in(await logs.of(chat_id))
    if logs.are_partial:
        return NO_USAGE.marked_partial()
    reported = await logs.reported_by(subagent.chat_id, len(await logs.of(subagent.chat_id)))
    before: dict[str, int] = {}
    for name in [*reported, *await _between(store, chat_id, subagent)]:
        newest = max((answer.version for answer in own.get(name, ())), default=0)
        for below, version in (await logs.reported_by(name, newest)).items():
            before[below] = max(version, before.get(below, 0))
    used = NO_USAGE
    for name, until in reported.items():
        used += await logs.used(name, before.get(name, 0), until)
    return used.marked_partial() if logs.are_partial else used


async def _between(store: ChatStore, chat_id: str, subagent: Facts) -> list[str]:
    """Return the chats between a chat and a subagent below it: each may have reported that subagent to the chat."""
    chats: list[str] = []
    above = subagent.profile.parent
    with suppress(ChatNotFound, ChatUnreadable):
        while above is not None and above not in (chat_id, *chats):
            chats.append(above)
            above = (await store.facts(above)).profile.parent
    return chats


class _Logs:
    """The logs of a family, each read once, and what they say of who has used what."""

    def __init__(self, store: ChatStore) -> None:
        self._store = store
        self._read: dict[str, Sequence[AuditRecord]] = {}
        self.are_partial = False
        """Whether something could not be read."""

    async def of(self, chat_id: str) -> Sequence[AuditRecord]:
        if chat_id not in self._read:
            self._read[chat_id] = ()
            try:
                self._read[chat_id] = await self._store.audit(chat_id)
            except (ChatNotFound, ChatUnreadable):
                self.are_partial = True
        return self._read[chat_id]

    async def reported_by(self, chat_id: str, version: int) -> dict[str, int]:
        """Return up to which version each chat was reported to a chat that reads this one at that version."""
        reported: dict[str, int] = {}
        pending = [(chat_id, version)]
        while pending:
            name, until = pending.pop()
            if until <= reported.get(name, 0):
                continue
            reported[name] = until
            for below, answers in answers_in(await self.of(name)).items():
                pending += [(below, answer.version) for answer in answers if answer.at <= until]
        return reported

    async def used(self, chat_id: str, after: int, until: int) -> Usage:
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
    """Return what a chat, its subagents and theirs have used, reported or not.

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
