"""Which rows must be stored now, according to a chat's records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from turnwise.persistence.audit.record import AuditRecord


class ExpectedRow(msgspec.Struct):
    """One row, as the log says that it is."""

    version: int
    """The version that wrote it."""
    number: int
    """The place among the writes of that version."""
    kind: str
    id: str
    digest: str
    cut: int | None = None
    """The version that cut it out of the history."""
    erased: str | None = None
    """The digest of the text that replaced it in an erasure."""
    deadline: str | None = None
    """The digest of a client call's deadline."""

    @property
    def digest_now(self) -> str:
        return self.erased or self.digest


class ExpectedRows:
    """Collects what a chat's records say must be stored. The records have been replayed and found sound."""

    def __init__(self, records: Sequence[AuditRecord]) -> None:
        self.records = records
        self.last = records[-1].version
        tables = ("messages", "calls", "queue", "receipts", "usage")
        self.rows: dict[str, dict[str, ExpectedRow]] = {table: {} for table in tables}
        """By table and by what identifies a row in its chat."""
        self.cuts: list[ExpectedRow] = []
        self.boundaries: list[ExpectedRow] = []
        self.order: list[str] = []
        """The ids of the queued messages, in order."""
        self.spans: dict[str, ExpectedRow] = {}
        """The events of a commit, by first and last number."""
        self.reasons: dict[int, ExpectedRow] = {}
        self.reasons_erased = 0
        self.profile: ExpectedRow | None = None
        self.lease: ExpectedRow | None = None
        self.facts: ExpectedRow | None = None
        for record in records:
            for number, write in enumerate(record.writes):
                self._note(ExpectedRow(record.version, number, write.kind, write.id, write.digest))

    def _note(self, row: ExpectedRow) -> None:  # noqa: C901, PLR0912 - one case per kind of write
        calls, queue = self.rows["calls"], self.rows["queue"]
        match row.kind.partition(":")[0]:
            case "message":
                self.rows["messages"][row.id] = row
            case "cut":
                self._note_cut(row)
            case "erase":
                self._note_erasure(row)
            case "boundary":
                self.boundaries.append(row)
            case "call":
                is_asked = row.id in calls and not row.kind.startswith("call:approved")
                row.deadline = calls[row.id].deadline if is_asked else None
                calls[row.id] = row
            case "deadline":
                calls[row.id].deadline = row.digest
            case "enqueue":
                if row.id not in self.order:
                    self.order.append(row.id)
                queue[row.id] = row
            case "move":
                moved, _, before = row.id.partition(":")
                self.order.remove(moved)
                self.order.insert(self.order.index(before), moved)
            case "dequeue":
                queue.pop(row.id, None)
                self.order.remove(row.id)
            case "receipt":
                self.rows["receipts"][row.id] = row
            case "usage":
                self.rows["usage"][f"{row.version}/{row.number}"] = row
            case "events":  # in a later record: events that an erasure has changed
                self.spans.setdefault(row.id, row).digest = row.digest
            case "profile":
                self.profile = row
            case "lease":
                self.lease = row if row.kind == "lease" else None
            case "reason":
                self.reasons[row.version] = row
            case "facts":
                self.facts = row

    def _note_cut(self, row: ExpectedRow) -> None:
        self.cuts.append(row)
        messages = list(self.rows["messages"].values())
        for message in messages[[message.id for message in messages].index(row.id) :]:
            if message.cut is None:
                message.cut = row.version

    def _note_erasure(self, row: ExpectedRow) -> None:
        if row.kind == "erase:reasons":
            self.reasons_erased = row.version
        erased = self.rows.get(_ERASED.get(row.kind, ""), {}).get(row.id)
        if erased is not None:
            erased.erased = row.digest


_ERASED: Final = {"erase": "messages", "erase:edits": "messages", "erase:call": "calls", "erase:receipt": "receipts"}
"""The table of which a row was blanked, by the kind of write."""
