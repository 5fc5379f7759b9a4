"""Testimony: which rows must be stored now, according to a chat's records."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from turnwise.persistence.audit.record import AuditRecord


@dataclass(slots=True)
class Said:
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
        self.messages: dict[str, Said] = {}
        self.cuts: list[Said] = []
        self.boundaries: list[Said] = []
        self.calls: dict[str, Said] = {}
        self.queue: dict[str, Said] = {}
        self.order: list[str] = []
        """The ids of the queued messages, in order."""
        self.receipts: dict[str, Said] = {}
        self.usage: dict[str, Said] = {}
        self.spans: dict[str, Said] = {}
        """The events of a commit, by first and last number."""
        self.reasons: dict[int, Said] = {}
        self.reasons_erased = 0
        self.profile: Said | None = None
        self.lease: Said | None = None
        self.facts: Said | None = None
        for record in records:
            self._hear(record)

    def _hear(self, record: AuditRecord) -> None:
        put = [write.id for write in record.writes if write.kind == "enqueue"]
        for number, write in enumerate(record.writes):
            hear = _HEAR.get(write.kind) or _HEAR.get(write.kind.partition(":")[0])
            if hear is not None:
                hear(self, Said(record.version, number, write.kind, write.id, write.digest))
        if len(put) > 1:
            self.order = put

    def hear_message(self, said: Said) -> None:
        """A message was appended."""
        self.messages[said.id] = said

    def hear_cut(self, said: Said) -> None:
        """A message and all after it left the history."""
        self.cuts.append(said)
        names = list(self.messages)
        for name in names[names.index(said.id) :]:
            if self.messages[name].cut is None:
                self.messages[name].cut = said.version

    def hear_erasure(self, said: Said) -> None:
        """Something that was said was replaced by an erasure."""
        messages = {"erase": self.messages, "erase:edits": self.messages}
        subjects = {**messages, "erase:call": self.calls, "erase:receipt": self.receipts}.get(said.kind, {})
        if said.kind == "erase:reasons":
            self.reasons_erased = said.version
        elif said.id in subjects:
            subjects[said.id].erased = said.digest

    def hear_boundary(self, said: Said) -> None:
        """The context began anew."""
        self.boundaries.append(said)

    def hear_call(self, said: Said) -> None:
        """A call was planned, or changed its status."""
        if said.id in self.calls:
            said.deadline = self.calls[said.id].deadline
        self.calls[said.id] = said

    def hear_deadline(self, said: Said) -> None:
        """A call got its deadline."""
        self.calls[said.id].deadline = said.digest

    def hear_queued(self, said: Said) -> None:
        """A message was queued or replaced."""
        if said.id not in self.order:
            self.order.append(said.id)
        self.queue[said.id] = said

    def hear_dequeued(self, said: Said) -> None:
        """A message left the queue."""
        self.queue.pop(said.id, None)
        self.order.remove(said.id)

    def hear_receipt(self, said: Said) -> None:
        """A client's message was accepted."""
        self.receipts[said.id] = said

    def hear_usage(self, said: Said) -> None:
        """The usage of a model call was recorded."""
        self.usage[f"{said.version}/{said.number}"] = said

    def hear_events(self, said: Said) -> None:
        """Events were stored, or, in a later record, changed by an erasure."""
        first = self.spans.setdefault(said.id, said)
        first.digest = said.digest

    def hear_profile(self, said: Said) -> None:
        """Labels or declarations were stored."""
        self.profile = said

    def hear_lease(self, said: Said) -> None:
        """A lease began or ended."""
        self.lease = said if said.kind == "lease" else None

    def hear_reason(self, said: Said) -> None:
        """Somebody gave a reason for an interrupt."""
        self.reasons[said.version] = said

    def hear_facts(self, said: Said) -> None:
        """The chat's own row was stored."""
        self.facts = said


def _first_bound(records: Sequence[AuditRecord]) -> int:
    """Return the first version whose records cover every row: where the first commit that covers `chats` begins."""
    bound = {record.at for record in records if any(write.kind == "facts" for write in record.writes)}
    return min((record.version for record in records if record.at in bound), default=sys.maxsize)


_HEAR: Final[dict[str, Callable[[Testimony, Said], None]]] = {
    "message": Testimony.hear_message,
    "cut": Testimony.hear_cut,
    "erase": Testimony.hear_erasure,
    "boundary": Testimony.hear_boundary,
    "call": Testimony.hear_call,
    "deadline": Testimony.hear_deadline,
    "enqueue": Testimony.hear_queued,
    "dequeue": Testimony.hear_dequeued,
    "receipt": Testimony.hear_receipt,
    "usage": Testimony.hear_usage,
    "events": Testimony.hear_events,
    "profile": Testimony.hear_profile,
    "lease": Testimony.hear_lease,
    "reason": Testimony.hear_reason,
    "facts": Testimony.hear_facts,
}
"""By the kind of write, or by the part before its first colon."""
