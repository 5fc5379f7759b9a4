"""Checks that the actor of each record is one of the party that may fire its trigger, as far as names tell."""

from __future__ import annotations

from turnwise.persistence.audit.record import AuditRecord
from turnwise.states.names import SYSTEM, WORKER
from turnwise.states.triggers import TRIGGERS, Held
from turnwise.states.writes import digest_of_lease


def wrong_party(record: AuditRecord, token: int | None, lease: str | None) -> str | None:
    """Return what is wrong with the actor of a record made under the lease of that token and digest, or under none.

    Names of workers alone begin with `worker:`, and the digest of a lease is also of its holder's name. Any actor
    may end a lease or a deadline, repair a chat, and settle an interrupted one without a lease. A decision without an
    actor, made without an engine, is accepted from any.
    """
    if record.actor == SYSTEM:
        return None
    kind, by = TRIGGERS[record.trigger], f"it is by {record.actor!a:.80}"
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
