"""Families: the helpers of a chat, what its log says of them, and what all of them have used."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from turnwise.engine.agents.delegate import HELPER, HELPERS, helper_id
from turnwise.engine.apply import Chain
from turnwise.engine.chat_ids import may_be_one
from turnwise.persistence.audit.record import AuditRecord
from turnwise.persistence.protocol import ChatStore
from turnwise.states.calls import ToolCall
from turnwise.states.errors import ChatDeleted, ChatNotFound, ChatUnreadable
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState
from turnwise.states.triggers import Interrupt
from turnwise.states.usage import NO_USAGE, Usage

AT_REST: Final = (ChatState.waiting, ChatState.interrupted, ChatState.error)
"""The states in which a helper has ended, well or not."""
STOPPED: Final = "The chat that wanted this waits for it no longer."
_VERSION: Final = re.compile("[0-9]{1,16}")


def has_ended(helper: Facts) -> bool:
    """Return whether a helper has come to rest, and waits for nobody's answer."""
    return helper.resting and helper.state in AT_REST


def stop_working(chain: Chain) -> None:
    """Interrupt a helper, unless it rests."""
    if not chain.facts.archived and chain.facts.state not in AT_REST:
        chain.fire(Interrupt(), reason=STOPPED)


def stop_unless_it_stays(chain: Chain) -> None:
    """Interrupt a helper that nobody wants any more, unless it rests or is to work on alone."""
    if not chain.facts.profile.stays:
        stop_working(chain)


def helpers_to_stop(facts: Facts) -> list[str]:
    """Return the helpers that have nothing more to do if a chat is interrupted or edited now."""
    helpers = [helper_id(facts.chat_id, call.call_id) for call in facts.open_calls if call.stops_its_helper]
    return [*helpers, *facts.background]


def awaited_by(facts: Facts) -> frozenset[str]:
    """Return the helpers whose answers a chat waits for, or has not received yet."""
    begun = [helper_id(facts.chat_id, call.call_id) for call in facts.open_calls if call.helper is not None]
    waits = [call.arguments.get(HELPERS, ()) for call in facts.open_calls if call.helper_action == "wait"]
    return frozenset([*begun, *facts.background, *(name for names in waits for name in names if may_be_one(name))])


async def is_wanted(store: ChatStore, helper: Facts) -> bool:
    """Return whether the chat that asked for the turn of a helper still waits for it.

    That is its parent in the turn that it was made for, and whichever chat told it more in a later one. It is true of
    any other chat, and of what a person has a helper do. It is true, too, while the chat that asked was never there: it
    may be imported after its helper.

    Raises:
        StoreError: the store is out of reach.
    """
    name = _asker_of(helper)
    if helper.profile.helps is None or name is None:
        return True
    try:
        asker = await store.facts(name)
    except ChatDeleted:
        return False
    except (ChatUnreadable, ChatNotFound):
        return True
    calls = [call for call in asker.open_calls if _asks(call, helper, for_more=helper.turn.number > 1)]
    return bool(calls or helper.chat_id in asker.background) and asker.state is not ChatState.interrupted


def _asker_of(helper: Facts) -> str | None:
    """Return the chat that asked for the turn of a helper; `None` if a person did, who may also have resumed it.

    Earlier versions did not note who gave the helper its task: a turn is that of the task if it began with the helper.
    """
    turn, profile = helper.turn, helper.profile
    is_of_task = turn.number == 1 and turn.started_at == profile.created_at and turn.spent_before == NO_USAGE
    return profile.parent if is_of_task else turn.asker


def _asks(call: ToolCall, helper: Facts, *, for_more: bool) -> bool:
    """Return whether a call made a helper, or is about to tell it more."""
    if for_more:
        return call.helper_action == "message" and call.arguments.get(HELPER, helper.chat_id) == helper.chat_id
    return call.call_id == helper.profile.helps


async def is_awaited(store: ChatStore, helper: Facts) -> bool:
    """Return whether a chat above a helper waits for its answer, or has not heard it yet.

    Raises:
        StoreError: the store is out of reach.
    """
    above = helper
    for _ in range(helper.profile.depth):  # the way up has an end, whatever is stored
        if above.profile.parent is None:
            break
        try:
            above = await store.facts(above.profile.parent)
        except ChatUnreadable:
            return True
        except ChatNotFound:
            return False
        if helper.chat_id in awaited_by(above):
            return True
    return False


async def archived_helpers(store: ChatStore, facts: Facts) -> frozenset[str]:
    """Return the helpers that a chat waits for in vain, as long as they are archived.

    Raises:
        StoreError: the store is out of reach.
    """
    names = set[str]()
    for name in awaited_by(facts):
        with suppress(ChatNotFound, ChatUnreadable):
            helper = await store.facts(name)
            if helper.archived and not has_ended(helper):
                names.add(name)
    return frozenset(names)


class Answer(NamedTuple):
    """A helper's answer, as its parent's log records it."""

    at: int
    """The parent's version."""
    version: int
    """The helper's."""
    head: str


async def helpers_of(store: ChatStore, chat_id: str) -> list[Facts]:
    """Return where the helpers of a chat stand, in the order of their calls; those that were deleted are left out.

    Raises:
        ChatNotFound: there is no such chat.
    """
    await store.rest(chat_id)
    helpers: list[Facts] = []
    for name in helpers_in(await store.audit(chat_id)):
        try:
            helper = await store.facts(name)
        except (ChatNotFound, ChatUnreadable):
            continue
        if helper.profile.parent == chat_id:
            helpers.append(helper)
    return helpers


def helpers_in(records: Sequence[AuditRecord]) -> list[str]:
    """Return the ids of the helpers that a log plans, in order."""
    planned = [
        helper_id(record.chat_id, write.id)
        for record in records
        for write in record.writes
        if write.kind == "call:planned:chat"
    ]
    return [*dict.fromkeys(planned)]


def answers_in(records: Sequence[AuditRecord]) -> dict[str, list[Answer]]:
    """Return the answers of helpers that a log names, by helper, in order."""
    answers: dict[str, list[Answer]] = {}
    for record in records:
        for write in record.writes:
            name, _, spelled = write.id.rpartition(":")
            version = version_in(spelled) if write.kind == "helper" else 0
            if version and "\0" not in name:  # which no chat's id holds, and PostgreSQL takes nowhere
                answers.setdefault(name, []).append(Answer(record.version, version, write.digest))
    return answers


def version_in(text: str) -> int:
    """Return the version that a text spells; 0 if it spells none, as one that was forged may."""
    return int(text) if _VERSION.fullmatch(text) else 0


async def unheard_usage(store: ChatStore, chat_id: str, helper: Facts) -> Usage:
    """Return what a helper, and its own, have used that no answer has brought to a chat so far.

    What was used below it counts as it has heard it: those that were stopped with it say nothing any more, but they may
    be told more, and then be heard with all that they have used. The chat may have heard some of them itself.
    What a chat has used that was deleted, or cannot be read, or came back from a backup without what an answer told of,
    is not known.
    """
    logs = _Logs(store)
    own = answers_in(await logs.of(chat_id))
    if logs.are_partial:
        return NO_USAGE.marked_partial()
    told = await logs.told_by(helper.chat_id, len(await logs.of(helper.chat_id)))
    before: dict[str, int] = {}
    for name in [*told, *await _between(store, chat_id, helper)]:
        newest = max((answer.version for answer in own.get(name, ())), default=0)
        for below, version in (await logs.told_by(name, newest)).items():
            before[below] = max(version, before.get(below, 0))
    used = NO_USAGE
    for name, until in told.items():
        used += await logs.used(name, before.get(name, 0), until)
    return used.marked_partial() if logs.are_partial else used


async def _between(store: ChatStore, chat_id: str, helper: Facts) -> list[str]:
    """Return the chats between a chat and a helper below it; such a one may have told the chat of that helper."""
    chats: list[str] = []
    above = helper.profile.parent
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
        """Return what a chat has used in turns after that of a version, and not after that of another.

        A chat answers when it rests: between two answers there are whole turns.
        """
        records = await self.of(chat_id)
        self.are_partial |= len(records) < max(after, until)
        if min(until, len(records)) <= after:
            return NO_USAGE
        try:
            entries = await self._store.ledger(chat_id)
        except (ChatNotFound, ChatUnreadable):
            self.are_partial = True
            return NO_USAGE
        first = records[after - 1].turn + 1 if after else 0
        last = records[min(until, len(records)) - 1].turn
        used = NO_USAGE
        for entry in entries:
            if first <= entry.turn <= last:
                used += entry.usage
        return used


async def family_usage(store: ChatStore, chat_id: str) -> Usage:
    """Return what a chat, its helpers and theirs have used, whether anybody has heard of it or not.

    It is partial if some of them are deleted or cannot be read.
    """
    used = (await store.facts(chat_id)).usage
    for name in helpers_in(await store.audit(chat_id)):
        try:
            used += await family_usage(store, name)
        except (ChatDeleted, ChatUnreadable):
            used = used.marked_partial()
        except ChatNotFound:
            continue
    return used
