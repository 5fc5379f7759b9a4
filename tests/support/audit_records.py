"""Audit records with given fields, for tests that need no verifiable log."""

from datetime import UTC, datetime
from typing import Any

from turnwise.persistence.audit.record import AuditRecord

AT = datetime(2026, 1, 2, 3, 4, 5, 67_000, tzinfo=UTC)


def record(version: int, **fields: Any) -> AuditRecord:
    """Return a record of that version; other fields are those of a resting chat's transition."""
    some: dict[str, Any] = {
        "chat_id": "c",
        "trigger": "claimed",
        "source": "waiting",
        "target": "waiting",
        "actor": "client",
        "reason": None,
        "turn": 1,
        "step": 0,
        "attempt": 1,
        "writes": (),
        "at": AT,
        "prev": "",
        "hash": "",
    }
    return AuditRecord(version=version, **some | fields)
