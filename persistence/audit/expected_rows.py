"""Testimony: which rows must be stored now, according to a chat's records."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from turnwise.persistence.audit.record import AuditRecord


class Said(msgspec.Struct):
    """What the log says about one row."""

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


class Testimony:
    """Collects what a chat's records say must be stored. The records have been replayed and found sound."""

    def __init__(self, records: Sequence[AuditRecord]) -> None:
        self.records = records
        self.last = records[-1].version
        self.bound_since = _first_bound(records)
        """The first version whose records cover every row; older versions of turnwise covered fewer."""
        tables = ("messages", "calls", "queue", "receipts", "usage")
        self.rows: dict[str, dict[str, Said]] = {table: {} for table in tables}
        """By table and by what identifies a row in its chat."""
        self.cuts: list[Said] = []
        self.boundaries: list[Said] = []
        self.order: list[str] = []
        """The ids of the queued messages, in order."""
        self.spans: dict[str, Said] = {}
        """The events of a commit, by first and last number."""
        self.reasons: dict[int, Said] = {}
        self.reasons_erased = 0
        self.profile: Said | None = None
        self.lease: Said | None = None
        self.facts: Said | None = None
        for record in records:
            for number, write in enumerate(record.writes):
                self._hear(Said(record.version, number, write.kind, write.id, write.digest))
            put = [write.id for write in record.writes if write.kind == "enqueue"]
            if len(put) > 1:
                self.order = put

    def _hear(self, said: Said) -> None:  # noqa: C901, PLR0912 - one case per kind of write
        calls, queue = self.rows["calls"], self.rows["queue"]
        match said.kind.partition(":")[0]:
            case "message":
                self.rows["messages"][said.id] = said
            case "cut":
                self._hear_cut(said)
            case "erase":
                self._hear_erasure(said)
            case "boundary":
                self.boundaries.append(said)
            case "call":
                said.deadline = calls[said.id].deadline if said.id in calls else None
                calls[said.id] = said
            case "deadline":
                calls[said.id].deadline = said.digest
            case "enqueue":
                if said.id not in self.order:
                    self.order.append(said.id)
                queue[said.id] = said
            case "dequeue":
                queue.pop(said.id, None)
                self.order.remove(said.id)
            case "receipt":
                self.rows["receipts"][said.id] = said
            case "usage":
                self.rows["usage"][f"{said.version}/{said.number}"] = said
            case "events":  # in a later record: events that an erasure has changed
                self.spans.setdefault(said.id, said).digest = said.digest
            case "profile":
                self.profile = said
            case "lease":
                self.lease = said if said.kind == "lease" else None
            case "reason":
                self.reasons[said.version] = said
            case "facts":
                self.facts = said

    def _hear_cut(self, said: Said) -> None:
        """Note that a message and all after it left the history."""
        self.cuts.append(said)
        messages = list(self.rows["messages"].values())
        for message in messages[[message.id for message in messages].index(said.id) :]:
            if message.cut is None:
                message.cut = said.version

    def _hear_erasure(self, said: Said) -> None:
        """Note that something that was said was replaced by an erasure; records of before say of what differently."""
        if said.kind == "erase:reasons":
            self.reasons_erased = said.version
        erased = self.rows.get(_ERASED.get(said.kind, ""), {}).get(said.id)
        if erased is not None and said.version >= self.bound_since:
            erased.erased = said.digest


def _first_bound(records: Sequence[AuditRecord]) -> int:
    """Return the first version whose records cover every row: where the first commit that covers `chats` begins."""
    bound = {record.at for record in records if any(write.kind == "facts" for write in record.writes)}
    return min((record.version for record in records if record.at in bound), default=sys.maxsize)


_ERASED: Final = {"erase": "messages", "erase:edits": "messages", "erase:call": "calls", "erase:receipt": "receipts"}
"""The table of which a row was blanked, by the kind of write."""
