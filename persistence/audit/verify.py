"""Verifies an audit log: its form, its chain, and every transition against the table and the states' promises.

In a store it also checks that the stored rows are what the log says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated

from turnwise.persistence.audit import record as audit_log
from turnwise.persistence.audit.check_rows import Evidence
from turnwise.persistence.audit.check_transitions import Replay
from turnwise.persistence.audit.check_writes import LateViolation, Violation
from turnwise.persistence.audit.expected_rows import Testimony
from turnwise.persistence.chat_rows import ChatRows
from turnwise.persistence.rows import GARBLED
from turnwise.persistence.stored_chat import is_count
from turnwise.states.checked import checked
from turnwise.states.errors import TurnwiseError
from turnwise.states.shapes import RAW


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check. The check stops at the first problem."""

    ok: bool
    problem: str | None = None
    """What was found and what should be there, as a sentence; `None` if the log is sound."""
    position: int | None = None
    """The version of the first record that is bad or missing.

    0 for a bad header; one past the last record for a bad checkpoint. `None` if the log is sound.
    """
    place: str | None = field(default=None, repr=False)
    """The stored value that is not what the log says: `table[row].column`. `None` if the log itself is wrong."""


@checked
def verify_export(text: Annotated[str, RAW], *, key: bytes | None = None) -> Verdict:
    """Check an exported log. Never raises, whatever the text holds.

    With a `key` the log must be signed with it. Without one the signature is ignored, and a log that was cut and given
    a new checkpoint passes for a whole one.
    """
    header, *lines = [line for line in text.split("\n") if line.strip(" \t\r")] or [""]
    try:
        walk = _Walk(_chat_of(header))
    except ValueError as error:
        return Verdict(ok=False, problem=f"The header is not one of a log: {error}.", position=0)
    checkpoint = lines.pop() if lines and _is_checkpoint(lines[-1]) else None
    verdict = walk.along(map(audit_log.from_json, lines))
    if not verdict.ok:
        return verdict
    if checkpoint is None:
        return walk.stopped("The log has no checkpoint at its end: its tail is cut off")
    return _check_end(walk, checkpoint, key)


def verify_records(records: Iterable[audit_log.AuditRecord]) -> Verdict:
    """Check the records of one chat, from its first on. Only a checkpoint can show that the last ones are missing."""
    known = list(records)
    walk = _Walk(known[0].chat_id if known else "")
    return walk.along(known)


def verify_stored(chat_id: str, stored: ChatRows) -> Verdict:
    """Check a chat's log in the store, then every row against the log. Never raises, whatever is stored."""
    walk, records = _Walk(chat_id), list[audit_log.AuditRecord]()

    def read() -> Iterator[audit_log.AuditRecord]:
        for entry in stored.audit:
            record = audit_log.record_in(entry._replace(aside=None), chat_id, prev=walk.head)
            if record.version != entry.version:
                raise Violation(record, f"the row says that it is version {entry.version!a:.40}")
            records.append(record)
            yield record

    verdict, version = walk.along(read()), stored.chat["version"]
    if verdict.ok and (not is_count(version) or version > walk.count):
        verdict = walk.stopped(f"The log ends at version {walk.count}, but the chat stands at {version!a:.40}")
        verdict = replace(verdict, place="chats.version")
    sound = records[: walk.count]
    if not sound:
        return verdict
    evidence = Evidence(Testimony(sound), replace(stored, audit=stored.audit[: len(sound)]))
    found = list(evidence.findings() if verdict.ok else evidence.lasting())
    if not found:
        return verdict
    version, place, problem = min(found, key=lambda finding: finding.version)
    name = str(place.renamed(stored.names))
    return Verdict(ok=False, problem=f"{name}, of version {version}: {problem}.", position=version, place=name)


class _Walk:
    """Checks the records of a chat one after another, and keeps the last hash of the chain."""

    def __init__(self, chat_id: str) -> None:
        self.chat_id = chat_id
        self.count = 0
        self.head = audit_log.GENESIS
        self._replay = Replay()

    def along(self, records: Iterable[audit_log.AuditRecord]) -> Verdict:
        """Check the records, up to the first that is wrong."""
        try:
            for record in records:
                self._take(record)
            self._replay.end()
        except Violation as violation:
            if isinstance(violation, LateViolation):
                self.count = violation.record.version - 1
            return self.stopped(str(violation))
        except (*GARBLED, TurnwiseError) as error:
            return self.stopped(f"Version {self.count + 1} cannot be read: {error}")
        if not self.count:
            return self.stopped("The log holds no record, and every chat begins with version 1")
        return Verdict(ok=True)

    def stopped(self, problem: str) -> Verdict:
        """Return the verdict that the next record is wrong or missing."""
        return Verdict(ok=False, problem=f"{problem}.", position=self.count + 1)

    def _take(self, record: audit_log.AuditRecord) -> None:
        if record.version != self.count + 1:
            raise Violation(record, f"version {self.count + 1} belongs here, for versions rise by one")
        if record.chat_id != self.chat_id:
            raise Violation(record, f"it is of chat {record.chat_id!a:.80}, but the log of {self.chat_id!a:.80}")
        if record.prev != self.head:
            raise Violation(record, f"prev is {record.prev!a:.80}, but the hash before it is {self.head}")
        if record.hash != audit_log.hash_of(record):
            raise Violation(record, f"hash is {record.hash!a:.80}, which is not the hash of its content")
        self._replay.follow(record)
        self.count += 1
        self.head = record.hash


def _chat_of(header: str) -> str:
    fields = audit_log.object_of(header)
    chat_id = fields.get("chat_id")
    if set(fields) != {"format", "chat_id"} or not isinstance(chat_id, str):
        raise ValueError("it must hold the fields chat_id, a string, and format, and no other")
    if fields["format"] != audit_log.FORMAT:
        raise ValueError(f"its format is not {audit_log.FORMAT}")
    return chat_id


def _is_checkpoint(line: str) -> bool:
    try:
        return "count" in audit_log.object_of(line)
    except ValueError:
        return False


def _check_end(walk: _Walk, checkpoint: str, key: bytes | None) -> Verdict:
    fields = audit_log.object_of(checkpoint)
    count, head, signature = fields.get("count"), fields.get("head"), fields.get("signature")
    if not set(fields) <= {"count", "head", "signature"} or type(count) is not int or type(head) is not str:
        return walk.stopped("The checkpoint must hold count, an integer, head, a string, and at most a signature")
    if count != walk.count:
        problem = f"The checkpoint counts {count} records, but the log holds {walk.count}."
        return Verdict(ok=False, problem=problem, position=min(max(count, 0), walk.count) + 1)
    if head != walk.head:
        problem = f"The checkpoint names the head {head!a:.80}, but the last record's hash is {walk.head}."
        return Verdict(ok=False, problem=problem, position=walk.count)
    if key is not None and signature is None:
        return walk.stopped("The checkpoint is not signed, but a key was given")
    if key is not None and signature != audit_log.signature_of(walk.chat_id, count, head, key=key):
        return walk.stopped("The checkpoint's signature was not made with this key over this log")
    return Verdict(ok=True)
