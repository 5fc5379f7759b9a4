"""Families: the helpers of a chat, and whether the logs of a chat and its helpers bear each other out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from turnwise.engine.agents.delegate import helper_id
from turnwise.engine.tasks import off_the_loop
from turnwise.persistence.audit.record import AuditRecord
from turnwise.persistence.audit.verify import Verdict, verify_stored
from turnwise.persistence.protocol import ChatStore
from turnwise.states.errors import ChatDeleted, ChatNotFound, ChatUnreadable
from turnwise.states.facts import Facts


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
    records = {record.version: record for record in await store.audit(chat_id)}
    answers = _answers_in([*records.values()])
    for name in _named([*records.values()]):
        verdict = await _helper(store, chat_id, name, records, answers.get(name))
        if not verdict.ok:
            return verdict
    return verdict


async def _helper(
    store: ChatStore,
    chat_id: str,
    name: str,
    parent: Mapping[int, AuditRecord],
    answer: tuple[int, int, str] | None,
) -> Verdict:
    """Verify a helper, and what it and its parent say of each other. `answer` is where, of what version and head."""
    at = None if answer is None else answer[0]
    try:
        problem = await _disagreement(store, chat_id, await store.facts(name), parent, answer)
    except ChatDeleted:
        return await _deleted(store, name, answer)
    except ChatNotFound:
        problem = None if answer is None else "it answered a call, and is not there"
        return Verdict(ok=True) if problem is None else _wrong(name, at, problem)
    except ChatUnreadable as error:
        problem = f"it cannot be read: {error}"
    if problem is not None:
        return _wrong(name, at, problem)
    verdict = await verify_family(store, name)
    return verdict if verdict.ok else replace(verdict, problem=f"Helper {name}: {verdict.problem}")


async def _disagreement(
    store: ChatStore,
    chat_id: str,
    helper: Facts,
    parent: Mapping[int, AuditRecord],
    answer: tuple[int, int, str] | None,
) -> str | None:
    """Return what a helper and its parent do not agree upon."""
    version, _, head = (helper.profile.helps_at or "").partition(":")
    known = parent.get(int(version)) if version.isdecimal() else None
    if helper.profile.parent != chat_id or known is None or known.hash != head:
        return "it names another parent, or this one as it never was"
    if answer is None:
        return None
    _, said, hash_ = answer
    records = await store.audit(helper.chat_id)
    if not 1 <= said <= len(records) or records[said - 1].hash != hash_:
        return f"its version {said} is not the one that answered"
    return None


async def _deleted(store: ChatStore, name: str, answer: tuple[int, int, str] | None) -> Verdict:
    left = await store.tombstone(name)
    if answer is not None and left is not None and left.records == answer[1] and left.head not in (None, answer[2]):
        return _wrong(name, answer[0], "its tombstone does not name the version that answered")
    return Verdict(ok=True)


def _wrong(name: str, position: int | None, problem: str) -> Verdict:
    return Verdict(ok=False, problem=f"Helper {name}: {problem}.", position=position)


def _named(records: Sequence[AuditRecord]) -> list[str]:
    """Return the ids of the helpers that a log plans, in order."""
    planned = [
        helper_id(record.chat_id, write.id)
        for record in records
        for write in record.writes
        if write.kind == "call:planned:chat"
    ]
    return [*dict.fromkeys(planned)]


def _answers_in(records: Sequence[AuditRecord]) -> dict[str, tuple[int, int, str]]:
    """Return the answers of helpers that a log names: the record's version, and the helper's version and head."""
    answers: dict[str, tuple[int, int, str]] = {}
    for record in records:
        for write in record.writes:
            name, _, version = write.id.rpartition(":")
            if write.kind == "helper" and version.isdecimal() and int(version) > 0:
                answers[name] = (record.version, int(version), write.digest)
    return answers
