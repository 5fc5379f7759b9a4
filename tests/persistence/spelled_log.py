"""Logs written by hand, a record a line: `actor>trigger source target turn step attempt`, writes: `kind=id~digest`.

The actor is optional. The digest of a lease is the worker that gets it.
"""

from support.audit_records import record
from turnwise.persistence.audit.check_transitions import Replay
from turnwise.persistence.audit.check_writes import Violation
from turnwise.persistence.audit.digests import WriteRecord
from turnwise.persistence.audit.record import GENESIS, AuditRecord
from turnwise.states.names import SYSTEM
from turnwise.states.writes import digest_of_lease


def log_of(text: str) -> list[AuditRecord]:
    return [_record(version, line.split()) for version, line in enumerate(text.strip().splitlines(), start=1)]


def refusal_of(text: str) -> tuple[int, str] | None:
    """Replay a log; return the refused version and the reason, or nothing."""
    replay = Replay()
    try:
        for one in log_of(text):
            replay.follow(one)
    except Violation as error:
        return error.record.version, str(error)
    return None


def _record(version: int, words: list[str]) -> AuditRecord:
    fired, source, target, turn, step, attempt, *writes = words
    actor, named, trigger = fired.rpartition(">")
    return record(
        version,
        chat_id="chat",
        trigger=trigger,
        source=None if source == "-" else source,
        target=target,
        actor=actor if named else SYSTEM,
        turn=int(turn),
        step=int(step),
        attempt=int(attempt),
        writes=tuple(_write(word) for word in writes),
        prev=GENESIS,
    )


def _write(word: str) -> WriteRecord:
    kind, _, rest = word.partition("=")
    id_, _, digest = rest.partition("~")
    return WriteRecord(kind, id_, digest_of_lease(int(id_), digest) if kind == "lease" and digest else digest)
