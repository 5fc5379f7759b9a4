"""Logs spelled by hand, a record a line: `trigger source target turn step attempt`, then writes: `kind=id~digest`."""

from __future__ import annotations

from datetime import UTC, datetime

from turnwise.persistence.audit.check_transitions import Replay
from turnwise.persistence.audit.check_writes import Violation
from turnwise.persistence.audit.record import GENESIS, AuditRecord, WriteRecord

AT = datetime(2026, 11, 22, tzinfo=UTC)


def log_of(text: str) -> list[AuditRecord]:
    """Return the records that a text spells."""
    return [_record(version, line.split()) for version, line in enumerate(text.strip().splitlines(), start=1)]


def refusal_of(text: str) -> tuple[int, str] | None:
    """Replay a log; return the version that was refused and why, or nothing."""
    replay = Replay()
    try:
        for record in log_of(text):
            replay.follow(record)
    except Violation as error:
        return error.record.version, str(error)
    return None


def _record(version: int, words: list[str]) -> AuditRecord:
    trigger, source, target, turn, step, attempt, *writes = words
    return AuditRecord(
        chat_id="chat",
        version=version,
        trigger=trigger,
        source=None if source == "-" else source,
        target=target,
        actor="",
        reason=None,
        turn=int(turn),
        step=int(step),
        attempt=int(attempt),
        writes=tuple(_write(word) for word in writes),
        at=AT,
        prev=GENESIS,
        hash="",
    )


def _write(word: str) -> WriteRecord:
    kind, _, rest = word.partition("=")
    id_, _, digest = rest.partition("~")
    return WriteRecord(kind, id_, digest)
