"""Checks that the actor of each record is one of the party that may fire its trigger, as far as names tell."""

from __future__ import annotations

from turnwise.persistence.audit.check_writes import LateViolation
from turnwise.persistence.audit.record import AuditRecord
from turnwise.states.names import SYSTEM, WORKER, Trigger
from turnwise.states.triggers import OCCURRENCES, Held
from turnwise.states.writes import digest_of_lease


class PartyChecker:
    """Follows who acted in the records of one chat, in order.

    Commits that do not cover the chat's own row are not judged: their version recorded what a worker began in a
    client's commit in the name of that client. Which version it was, the last record of a commit tells.
    """

    def __init__(self) -> None:
        self._suspected: LateViolation | None = None

    def follow(self, record: AuditRecord, *, token: int | None, lease: str | None) -> None:
        """Take the next record, made under the lease of that token and digest, or under none.

        Raises:
            LateViolation: an actor of its commit is of another party.
        """
        if self._suspected is not None and self._suspected.record.at != record.at:
            self._suspected = None
        problem = _wrong_party(record, token, lease) if self._suspected is None else None
        if problem is not None:
            self._suspected = LateViolation(record, problem)
        if self._suspected is not None and any(write.kind == "facts" for write in record.writes):
            raise self._suspected


def _wrong_party(record: AuditRecord, token: int | None, lease: str | None) -> str | None:
    """Return what is wrong with the actor, if anything.

    Names of workers alone begin with `worker:`, and the digest of a lease is also of its holder's name. Whoever comes
    may end a lease or a deadline, repair a chat, and settle an interrupted one that nobody holds. Where nobody was
    named, as in decisions that were made without an engine, it may be anybody.
    """
    if record.actor == SYSTEM:
        return None
    kind, by = OCCURRENCES[Trigger(record.trigger)], f"it is by {record.actor!a:.80}"
    is_worker = record.actor.startswith(WORKER)
    match kind.party:
        case "clock":
            return None
        case "lease holder" if token is not None:
            is_its = is_worker and digest_of_lease(token, record.actor.removeprefix(WORKER)) == lease
            return None if is_its else f"{by}, but token {token} was granted to another, a worker"
        case "lease holder":
            return None if is_worker or issubclass(kind, Held) else f"{by}, but only a worker may claim a chat"
        case party:
            return f"{by}, but a worker fires nothing that is for the {party}" if is_worker else None
