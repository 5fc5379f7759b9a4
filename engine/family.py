"""Families: the helpers of a chat, and whether the logs of a chat and its helpers bear each other out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from turnwise.engine.agents.delegate import helper_id
from turnwise.engine.apply import Chain
from turnwise.engine.tasks import off_the_loop
from turnwise.persistence.audit.record import AuditRecord
from turnwise.persistence.audit.verify import Verdict, verify_stored
from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.tombstone import Tombstone
from turnwise.states.errors import ChatDeleted, ChatNotFound, ChatUnreadable
from turnwise.states.facts import Facts
from turnwise.states.names import ChatState
from turnwise.states.triggers import Interrupt

AT_REST: Final = (ChatState.waiting, ChatState.interrupted, ChatState.error)
"""The states in which a helper has ended, well or not."""
STOPPED: Final = "The chat that wanted this waits for it no longer."


def stop_working(chain: Chain) -> None:
    """Interrupt a helper, unless it rests."""
    if not chain.facts.archived and chain.facts.state not in AT_REST:
        chain.fire(Interrupt(), reason=STOPPED)


class _Answer(NamedTuple):
    """What a parent's log says of the answer of a helper."""

    at: int
    """The parent's version."""
    version: int
    """The helper's."""
    head: str


class _Parent(NamedTuple):
    """A chat with helpers, as its log tells it."""

    chat_id: str
    records: Mapping[int, AuditRecord]
    """By version."""
    answers: Mapping[str, _Answer]
    """By the helper's id."""


async def helpers_of(store: ChatStore, chat_id: str) -> list[Facts]:
    """Return where the helpers of a chat stand, in the order of their calls; those that were deleted are left out."""
    found: list[Facts] = []
    for name in _named(await store.audit(chat_id)):
        try:
            helper = await store.facts(name)
        except (ChatNotFound, ChatUnreadable):
            continue
        if helper.profile.parent == chat_id:
            found.append(helper)
    return found


async def verify_family(store: ChatStore, chat_id: str) -> Verdict:
    """Verify a chat, its helpers and theirs, and that each log names the others as they were."""
    rows = await store.rows(chat_id)
    verdict = await off_the_loop(lambda: verify_stored(chat_id, rows))
    if not verdict.ok:
        return verdict
    records = await store.audit(chat_id)
    parent = _Parent(chat_id, {record.version: record for record in records}, _answers_in(records))
    for name in _named(records):
        verdict = await _helper(store, parent, name)
        if not verdict.ok:
            return verdict
    return verdict


async def _helper(store: ChatStore, parent: _Parent, name: str) -> Verdict:
    """Verify a helper, and what it and its parent say of each other."""
    answer = parent.answers.get(name)
    try:
        problem = await _disagreement(store, parent, await store.facts(name))
    except ChatDeleted:
        problem = None if answer is None else _misremembered(answer, await store.tombstone(name))
        return _verdict(name, answer, problem)
    except ChatNotFound:
        return _verdict(name, answer, None if answer is None else "it answered a call, and is not there")
    except ChatUnreadable as error:
        problem = f"it cannot be read: {error}"
    if problem is not None:
        return _verdict(name, answer, problem)
    verdict = await verify_family(store, name)
    return verdict if verdict.ok else replace(verdict, problem=f"Helper {name}: {verdict.problem}")


async def _disagreement(store: ChatStore, parent: _Parent, helper: Facts) -> str | None:
    """Return what a helper and its parent do not agree upon."""
    version, _, head = (helper.profile.helps_at or "").partition(":")
    known = parent.records.get(int(version)) if version.isdecimal() else None
    if helper.profile.parent != parent.chat_id or known is None or known.hash != head:
        return "it names another parent, or this one as it never was"
    answer = parent.answers.get(helper.chat_id)
    if answer is None:
        return None
    records = await store.audit(helper.chat_id)
    if not 1 <= answer.version <= len(records) or records[answer.version - 1].hash != answer.head:
        return f"its version {answer.version} is not the one that answered"
    return None


def _misremembered(answer: _Answer, left: Tombstone | None) -> str | None:
    """Return what the tombstone of a helper says otherwise than the log of its parent."""
    if left is not None and left.records == answer.version and left.head not in (None, answer.head):
        return "its tombstone does not name the version that answered"
    return None


def _verdict(name: str, answer: _Answer | None, problem: str | None) -> Verdict:
    if problem is None:
        return Verdict(ok=True)
    return Verdict(ok=False, problem=f"Helper {name}: {problem}.", position=None if answer is None else answer.at)


def _named(records: Sequence[AuditRecord]) -> list[str]:
    """Return the ids of the helpers that a log plans, in order."""
    planned = [
        helper_id(record.chat_id, write.id)
        for record in records
        for write in record.writes
        if write.kind == "call:planned:chat"
    ]
    return [*dict.fromkeys(planned)]


def _answers_in(records: Sequence[AuditRecord]) -> dict[str, _Answer]:
    """Return the answers of helpers that a log names, by helper."""
    answers: dict[str, _Answer] = {}
    for record in records:
        for write in record.writes:
            name, _, version = write.id.rpartition(":")
            if write.kind == "helper" and version.isdecimal() and int(version) > 0:
                answers[name] = _Answer(record.version, int(version), write.digest)
    return answers
