"""Families: the subagents of a chat, by its facts and its log."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from turnwise.engine.agents.delegate import SUBAGENT, SUBAGENTS, subagent_id
from turnwise.engine.chat_ids import may_be_one
from turnwise.engine.transactions.chat_writer import UnitOfWork
from turnwise.persistence.audit.record import AuditRecord
from turnwise.persistence.protocol import ChatStore
from turnwise.states.calls import ToolCall
from turnwise.states.errors import ChatDeleted, ChatNotFound, ChatUnreadable
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState
from turnwise.states.triggers import Interrupt

AT_REST: Final = (ChatState.waiting, ChatState.interrupted, ChatState.error)
"""The states in which a subagent has ended, well or not."""
STOPPED: Final = "The chat that wanted this waits for it no longer."
_VERSION: Final = re.compile("[0-9]{1,16}")


def has_ended(subagent: Facts) -> bool:
    """Whether a subagent has come to rest, and waits for no answer."""
    return subagent.resting and subagent.state in AT_REST


def stop_working(unit: UnitOfWork) -> None:
    """Interrupt a subagent, unless it rests."""
    if not unit.facts.archived and unit.facts.state not in AT_REST:
        unit.fire(Interrupt(), reason=STOPPED)


def stop_unless_it_stays(unit: UnitOfWork) -> None:
    """Interrupt a subagent that is not wanted any more, unless it rests or is detached."""
    if not unit.facts.profile.detached:
        stop_working(unit)


def subagents_to_stop(facts: Facts) -> list[str]:
    """Return the subagents that have nothing more to do if a chat is interrupted or edited now."""
    subagents = [subagent_id(facts.chat_id, call.call_id) for call in facts.open_calls if call.stops_its_subagent]
    return [*subagents, *facts.background]


def awaited_by(facts: Facts) -> frozenset[str]:
    """Return the subagents whose answers a chat waits for, or has not received yet."""
    started = [subagent_id(facts.chat_id, call.call_id) for call in facts.open_calls if call.subagent is not None]
    waits = [call.arguments.get(SUBAGENTS, ()) for call in facts.open_calls if call.subagent_action == "wait"]
    return frozenset([*started, *facts.background, *(name for names in waits for name in names if may_be_one(name))])


async def is_wanted(store: ChatStore, subagent: Facts) -> bool:
    """Whether the chat that asked for the turn of a subagent still waits for it.

    That is its parent in the turn of its task, or the chat that messaged it in a later one. It is true for any other
    chat, for a turn that a person started, and while the asking chat does not exist: it may be imported later.
    """
    name = subagent.turn.asker
    if subagent.profile.parent_call is None or name is None:
        return True
    try:
        asker = await store.facts(name)
    except ChatDeleted:
        return False
    except (ChatUnreadable, ChatNotFound):
        return True
    calls = [call for call in asker.open_calls if _asks(call, subagent, for_more=subagent.turn.number > 1)]
    return bool(calls or subagent.chat_id in asker.background) and asker.state is not ChatState.interrupted


def _asks(call: ToolCall, subagent: Facts, *, for_more: bool) -> bool:
    if for_more:
        return call.subagent_action == "message" and call.arguments.get(SUBAGENT, subagent.chat_id) == subagent.chat_id
    return call.call_id == subagent.profile.parent_call


async def is_awaited(store: ChatStore, subagent: Facts) -> bool:
    """Whether a chat above a subagent waits for its answer, or has not received it yet."""
    try:
        return await is_any_above(store, subagent, lambda above: subagent.chat_id in awaited_by(above))
    except ChatUnreadable:
        return True
    except ChatNotFound:
        return False


async def is_any_above(store: ChatStore, subagent: Facts, fits: Callable[[Facts], bool]) -> bool:
    """Whether any of the chats above a subagent fits, the nearest first."""
    above, seen = subagent, {subagent.chat_id}
    while above.profile.parent_call is not None and (name := above.profile.parent) is not None and name not in seen:
        seen.add(name)  # damaged profiles may form a circle
        above = await store.facts(name)
        if fits(above):
            return True
    return False


async def top_of(store: ChatStore, subagent: Facts) -> str | None:
    """Return the topmost existing chat above a subagent; `None` for none."""
    above: list[str] = []

    def note(facts: Facts) -> bool:
        above.append(facts.chat_id)
        return False

    with suppress(ChatNotFound, ChatUnreadable):
        await is_any_above(store, subagent, note)
    return above[-1] if above else None


async def archived_subagents(store: ChatStore, facts: Facts) -> frozenset[str]:
    names = set[str]()
    for name in awaited_by(facts):
        with suppress(ChatNotFound, ChatUnreadable):
            subagent = await store.facts(name)
            if subagent.archived and not has_ended(subagent):
                names.add(name)
    return frozenset(names)


class RecordedAnswer(NamedTuple):
    """A subagent's answer, as its parent's log records it."""

    at: int
    """The parent's version."""
    version: int
    """The subagent's."""
    head: str


async def subagents_of(store: ChatStore, chat_id: str) -> list[Facts]:
    """Return the facts of a chat's subagents in the order of their calls, without deleted ones."""
    await store.rest(chat_id)
    subagents: list[Facts] = []
    for name in subagents_in(await store.audit(chat_id)):
        try:
            subagent = await store.facts(name)
        except (ChatNotFound, ChatUnreadable):
            continue
        if subagent.profile.parent == chat_id:
            subagents.append(subagent)
    return subagents


def subagents_in(records: Sequence[AuditRecord]) -> list[str]:
    """Return the ids of the subagents that a log plans, in order."""
    planned = [
        subagent_id(record.chat_id, write.id)
        for record in records
        for write in record.writes
        if write.kind == "call:planned:chat"
    ]
    return [*dict.fromkeys(planned)]


def answers_in(records: Sequence[AuditRecord]) -> dict[str, list[RecordedAnswer]]:
    """Return the answers of subagents that a log names, by subagent, in order."""
    answers: dict[str, list[RecordedAnswer]] = {}
    for record in records:
        for write in record.writes:
            name, _, spelled = write.id.rpartition(":")
            version = version_in(spelled) if write.kind == "subagent" else 0
            if version and "\0" not in name:  # PostgreSQL refuses that character
                answers.setdefault(name, []).append(RecordedAnswer(record.version, version, write.digest))
    return answers


def version_in(text: str) -> int:
    """Return the version in a text; 0 for a forged one."""
    return int(text) if _VERSION.fullmatch(text) else 0
