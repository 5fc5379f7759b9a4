"""Audit records: one for every transition, chained by their hashes."""

from __future__ import annotations

from typing import NamedTuple


class WriteRecord(NamedTuple):
    """What one write did, by kind, id and digest."""

    kind: str
    id: str
    digest: str


class AuditRecord:
    """placeholder"""
