"""Verifies an audit log: its form, its chain, and every transition against the table and the states' invariants.

In a store it also checks that the stored rows are what the log says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

from msgspec.structs import replace
from pydantic import InstanceOf

from turnwise.persistence.audit import record as audit_log
from turnwise.persistence.audit.check_rows import RowComparison
from turnwise.persistence.audit.check_transitions import Replay
from turnwise.persistence.audit.check_writes import Violation
from turnwise.persistence.audit.checkpoints import Contradiction, Published, published
from turnwise.persistence.audit.expected_rows import ExpectedRows
from turnwise.persistence.audit.signing import PublicKeys
from turnwise.persistence.chat_rows import ChatRows
from turnwise.persistence.rows import PARSE_ERRORS
from turnwise.persistence.stored_chat import is_count
from turnwise.states.errors import TurnwiseError
from turnwise.states.values.checked import checked
from turnwise.states.values.values import Value


class Verdict(Value, frozen=True, repr_omit_defaults=True):
    """The result of a check. The check stops at the first problem."""

    ok: bool
    """Whether the log is sound."""
    problem: str | None = None
    """What was found and what should be there, as a sentence; `None` if the log is sound."""
    position: int | None = None
    """The version of the first record that is bad or missing.

    0 for a bad header; one past the last record for a bad checkpoint. `None` if the log is sound. With `family=True` it
    is a version of the subagent that `problem` names first, or of its parent.
    """
    covered: int | None = None
    """The last version that published checkpoints confirm; `None` if none were asked for."""
    place: str | None = None
    """The stored value that is not what the log says: `table[row].column`. `None` if the log itself is wrong."""


@checked
def verify_export(
    text: Annotated[str, InstanceOf],
    *,
    key: bytes | None = None,
    public_key: bytes | None = None,
    checkpoints: Annotated[str, InstanceOf] | None = None,
) -> Verdict:
    """Check an exported log. No content of the text raises an error.

    Without a signature, a log that was shortened and got a new checkpoint passes the check.

    Args:
        text: the log.
        key: the log must be signed with it.
        public_key: Ed25519 keys as PEM. The log must be signed with one of them, unless `checkpoints` are given.
        checkpoints: lines that `Checkpoints` has published; they must be signed with one of the public keys, and the
            log must be the one that they confirm.

    Raises:
        SettingsError: there is no usable public key.
    """
    elsewhere = None if checkpoints is None else published(checkpoints, public_key)
    keys = None if public_key is None else PublicKeys(public_key)
    header, *lines = audit_log.lines_of(text) or [""]
    try:
        walk = _Walk(_read_chat_id(header))
    except ValueError as error:
        return Verdict(ok=False, problem=f"The header is not one of a log: {error}.", position=0)
    checkpoint = lines.pop() if lines and _is_checkpoint(lines[-1]) else None
    verdict = walk.along(map(audit_log.from_json, lines))
    if not verdict.ok:
        return verdict
    if checkpoint is None:
        return walk.stopped("The log has no checkpoint at its end: its tail is cut off")
    verdict = _check_end(walk, checkpoint, _SignedBy(key, keys, elsewhere is not None))
    return walk.compared(elsewhere) if verdict.ok else verdict


def verify_records(records: Iterable[audit_log.AuditRecord]) -> Verdict:
    """Check the records of one chat, from its first on. Only a checkpoint can show that the last ones are missing."""
    listed = list(records)
    walk = _Walk(listed[0].chat_id if listed else "")
    return walk.along(listed)


def verify_stored(chat_id: str, stored: ChatRows, elsewhere: Published | None = None) -> Verdict:
    """Check a chat's log in the store, then every row against the log, then the log against what was published.

    Stored values never make it raise.
    """
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
    comparison = RowComparison(ExpectedRows(sound), replace(stored, audit=stored.audit[: len(sound)]))
    mismatches = list(comparison.mismatches() if verdict.ok else comparison.definite_mismatches())
    if not mismatches:
        return walk.compared(elsewhere) if verdict.ok else verdict
    version, place, problem = min(mismatches, key=lambda mismatch: mismatch.version)
    name = str(place.renamed(stored.names))
    return Verdict(ok=False, problem=f"{name}, of version {version}: {problem}.", position=version, place=name)


def verify_published(chat_id: str, hashes: Sequence[str], elsewhere: Published) -> Verdict:
    """Check a sound log, given the hashes of its records in order, against the checkpoints that were published."""
    try:
        return Verdict(ok=True, covered=elsewhere.cover(chat_id, hashes))
    except Contradiction as error:
        return Verdict(ok=False, problem=str(error), position=error.position)


class _Walk:
    """Checks the records of a chat one after another, and keeps the last hash of the chain."""

    def __init__(self, chat_id: str) -> None:
        self.chat_id = chat_id
        self.count = 0
        self.head = audit_log.GENESIS
        self.hashes: list[str] = []
        self._replay = Replay()

    def along(self, records: Iterable[audit_log.AuditRecord]) -> Verdict:
        try:
            for record in records:
                self._take(record)
        except Violation as violation:
            return self.stopped(str(violation))
        except (*PARSE_ERRORS, TurnwiseError) as error:
            return self.stopped(f"Version {self.count + 1} cannot be read: {error}")
        if not self.count:
            return self.stopped("The log holds no record, and every chat begins with version 1")
        return Verdict(ok=True)

    def stopped(self, problem: str) -> Verdict:
        return Verdict(ok=False, problem=f"{problem}.", position=self.count + 1)

    def compared(self, elsewhere: Published | None) -> Verdict:
        return Verdict(ok=True) if elsewhere is None else verify_published(self.chat_id, self.hashes, elsewhere)

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
        self.hashes.append(record.hash)


def _read_chat_id(header: str) -> str:
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


def _check_end(walk: _Walk, checkpoint: str, signed_by: _SignedBy) -> Verdict:
    fields = audit_log.object_of(checkpoint)
    problem = _fault_of_checkpoint(fields)
    if problem is not None:
        return walk.stopped(f"The checkpoint must hold count and head, and at most signatures: {problem}")
    count, head = fields["count"], fields["head"]
    if count != walk.count:
        problem = f"The checkpoint counts {count} records, but the log holds {walk.count}."
        return Verdict(ok=False, problem=problem, position=min(max(count, 0), walk.count) + 1)
    if head != walk.head:
        problem = f"The checkpoint names the head {head!a:.80}, but the last record's hash is {walk.head}."
        return Verdict(ok=False, problem=problem, position=walk.count)
    content = audit_log.signed_content(walk.chat_id, count, head)
    unsigned = _not_by_key(fields, content, signed_by.key) or _not_by_pair(fields, content, signed_by)
    return Verdict(ok=True) if unsigned is None else walk.stopped(unsigned)


def _fault_of_checkpoint(fields: Mapping[str, Any]) -> str | None:
    """Return which field of a checkpoint has not the form of docs/audit-format.md; `None` if all have it."""
    for name in ("count", "head"):
        if name not in fields:
            return f"it has no field {name}"
    for name, value in fields.items():
        if name == "count":
            if type(value) is not int or not 0 <= value <= audit_log.MOST:
                return f"the field count must hold a number from 0 to {audit_log.MOST}"
        elif name not in _DIGITS:
            return f"it has a field {name!a:.40}"
        elif not isinstance(value, str) or re.fullmatch(rf"[0-9a-f]{{{_DIGITS[name]}}}", value) is None:
            return f"the field {name} must hold {_DIGITS[name]} digits from 0 to f"
    return None


def _not_by_key(fields: Mapping[str, Any], content: bytes, key: bytes | None) -> str | None:
    signature = fields.get("signature")
    if key is None or signature == audit_log.mac_of(content, key=key):
        return None
    if signature is not None:
        return "The checkpoint's signature was not made with this key over this log"
    if "ed25519" in fields:
        return "The checkpoint is signed with Ed25519, not with a secret key: check it by --public-key, public_key="
    return "The checkpoint is not signed, but a key was given"


def _not_by_pair(fields: Mapping[str, Any], content: bytes, signed_by: _SignedBy) -> str | None:
    keys = signed_by.keys
    if keys is None or (signed_by.elsewhere and fields.get("key_id") not in list(keys.ids)):
        return None
    if "ed25519" not in fields:
        if fields.get("signature") is not None:
            return "The checkpoint has no Ed25519 signature: it is signed with a secret key; check it by --key, key="
        return "The checkpoint has no Ed25519 signature, but a public key was given"
    if not keys.bear_out(content, fields["ed25519"]):
        return "The checkpoint's Ed25519 signature was not made over this log with the key of this public key"
    return None


class _SignedBy(NamedTuple):
    """Who must have signed a log."""

    key: bytes | None
    keys: PublicKeys | None
    elsewhere: bool
    """Whether published checkpoints vouch for it, so that it need not be signed itself."""


_DIGITS: Final = {"head": 64, "signature": 64, "key_id": 16, "ed25519": 128}
"""How many hex digits the fields of a checkpoint hold, beside `count`."""
