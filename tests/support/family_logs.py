"""Logs that name answers of helpers, made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from support.audit_records import record
from support.life import NOW
from turnwise.persistence.audit.record import AuditRecord, WriteRecord
from turnwise.states.facts import Facts, Profile


def log_of(turns: Sequence[int], answers: Mapping[int, Sequence[str]]) -> list[AuditRecord]:
    """Return a log: the turn of each record, and by its version which helper answered there, with its version.

    Something is used by the last record of each turn.
    """
    following = [*turns[1:], None]
    return [
        record(
            version,
            turn=turn,
            writes=(
                *([WriteRecord("usage", "step:1:1", "-")] if turn != following[version - 1] else []),
                *(WriteRecord("helper", name, "-") for name in answers.get(version, ())),
            ),
        )
        for version, turn in enumerate(turns, 1)
    ]


def helper(chat_id: str, parent: str) -> Facts:
    """Return what is asked of a helper: its id, and whose it is."""
    return Facts(
        chat_id=chat_id, profile=Profile(created_at=NOW, parent=parent, helps="call"), since=NOW, updated_at=NOW
    )
