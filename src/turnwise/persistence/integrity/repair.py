"""Works out the repair of a chat that cannot be read: what is left of it, and which rows to put aside.

The audit log is never changed: it is evidence. Unreadable rows are moved to the table `quarantine`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from turnwise.persistence.audit import record as audit_log
from turnwise.persistence.audit.record import GENESIS
from turnwise.persistence.chat_rows import PLAUSIBLE, Row, Rows, columns_in, last_seq_in, missing_messages, stored_in
from turnwise.persistence.integrity.examine import Found, examine
from turnwise.persistence.rows import PARSE_ERRORS, USAGE, message_of
from turnwise.persistence.stored_chat import IntegrityIssue, is_count, is_hash, partial_read, salvage
from turnwise.states.facts import CompactionFacts, Facts, HistoryFacts
from turnwise.states.message_order import in_call_order
from turnwise.states.messages import Message, TextPart
from turnwise.states.names import Audience, Tail
from turnwise.states.step_calls import StepCalls
from turnwise.states.usage import NO_USAGE

_REPLACED: Final = frozenset({"chats", "facts", "profiles"})
"""Tables whose row the repair writes anew from what is left."""
_EVIDENCE: Final = frozenset({"audit"})
_SERIAL: Final = re.compile(r"[a-z](\d{1,15})")


class PutAside(NamedTuple):
    """A row to keep in `quarantine`."""

    table: str
    row: Row
    problem: str

    @property
    def body(self) -> str:
        return json.dumps(columns_in(self.row))

    @property
    def deleted(self) -> bool:
        """Whether the row leaves its table without a replacement."""
        return self.table not in _REPLACED


class Repair(msgspec.Struct, frozen=True):
    """What a repair stores before it brings the chat to `error`."""

    facts: Facts
    """The facts that are left. Their state is one that only `repaired` leaves."""
    head: str
    aside: tuple[PutAside, ...]
    marks: tuple[Message, ...]
    """Messages that take the place of those put aside."""
    issues: tuple[IntegrityIssue, ...]


def repair_of(chat_id: str, rows: Rows, at: datetime) -> Repair:
    """Return the repair of a chat; without an issue it puts nothing aside and keeps the facts."""
    found = examine(chat_id, rows)
    issues = tuple(issue for _, issue in found)
    facts = salvage(stored_in(chat_id, rows)).facts
    aside = tuple(_aside(found))
    gone = {id(put.row) for put in aside if put.deleted}
    sound = {table: [row for row in stored if id(row) not in gone] for table, stored in rows.items()}
    end = len(rows.get("messages", ())) + PLAUSIBLE
    stood = [put.row for put in aside if put.table == "messages"]
    marks = tuple(mark for row in stood if (mark := mark_for(row, at)) is not None and mark.position <= end)
    there = {**sound, "messages": [*sound.get("messages", ()), *({"position": mark.position} for mark in marks)]}
    marks += tuple(mark_at(position, at) for position in missing_messages(there, facts.history.length) if found)
    if issues:
        whole = any(issue.column in {"chats.facts", "facts.body"} for issue in issues)
        facts = partial_read(_rebuilt(chat_id, facts, sound, marks, whole=whole), issues).facts
    versions = [row["version"] for row in rows.get("audit", ()) if is_count(row["version"])]
    version, last_seq = max(versions, default=facts.version), max(facts.last_seq, last_seq_in(rows))
    return Repair(
        facts=replace(facts, version=version, last_seq=last_seq),
        head=_head(rows),
        aside=aside,
        marks=marks,
        issues=issues,
    )


def _aside(found: Iterable[Found]) -> Iterable[PutAside]:
    rows: dict[int, PutAside] = {}
    for row, issue in found:
        table = issue.column.partition(".")[0]
        if table not in _EVIDENCE and row:
            origin = "chats" if "event_seq" in row else table  # a missing row is an issue of `chats`
            rows.setdefault(id(row), PutAside(origin, row, f"{issue.column}: {issue.problem}"))
    return rows.values()


def _head(rows: Rows) -> str:
    """Return the hash of the last record: from the log, if it can be read."""
    log = [row for row in rows.get("audit", ()) if is_count(row["version"])]
    last = max(log, key=lambda row: int(row["version"]), default=None)
    stored = rows["chats"][0]["head"]
    try:
        if last is not None:
            hash_ = last["hash"].hex() if last.get("hash") else audit_log.from_json(last["body"]).hash
            return hash_ if is_hash(hash_) else GENESIS
    except PARSE_ERRORS:
        pass
    return stored if is_hash(stored) else GENESIS


def _rebuilt(chat_id: str, facts: Facts, rows: Rows, marks: Sequence[Message], *, whole: bool) -> Facts:
    """Return the facts corrected by the other tables, so that no number is given twice."""
    stored = rows.get("messages", ())
    messages = [*(message_of(row["format"], row["body"], chat_id) for row in stored), *marks]
    cut = {row["position"] for row in stored if row["cut"] is not None}
    uncut = sorted(
        (message for message in messages if message.position not in cut), key=lambda message: message.position
    )
    logged = _read_log(rows)
    ids = [message.id for message in messages] + [queued.id for queued in facts.queue] + logged.ids
    serials = [int(serial[1]) for id_ in ids if (serial := _SERIAL.fullmatch(id_))]
    length = max((message.position for message in messages), default=0)
    boundary, carried = _boundary(rows)
    seen = [
        message
        for message in uncut
        if message.audience is not Audience.user and (message.position > boundary or message.position in carried)
    ]
    history = replace(facts.history, length=length)
    if whole:
        summaries = sum(message.audience is Audience.model and message.position > boundary for message in seen)
        history = HistoryFacts(length, _tail(in_call_order(seen)), boundary, len(seen) - summaries)
        ledger = (USAGE.load(row["body"], chat_id) for row in rows.get("usage", ()))
        steps_compacted = [row["step"] for row in rows.get("boundaries", ()) if row["reason"] == "compaction"]
        facts = replace(
            facts,
            usage=sum((entry.usage for entry in ledger), NO_USAGE),
            compaction=CompactionFacts(
                next_tokens=None, step=max(steps_compacted, default=-1), count=len(steps_compacted)
            ),
        )
    steps = filter(is_count, [*(message.step for message in messages), *logged.steps])
    turns = filter(is_count, [message.turn for message in messages])
    known_calls = {row["call_id"] for row in rows.get("calls", ())}
    known_queued = {row["id"] for row in rows.get("queue", ())}
    return replace(
        facts,
        history=history,
        serial=max([facts.serial, *serials]),
        fence=max([facts.fence, facts.lease.token if facts.lease else 0, *logged.tokens]),
        turn=replace(facts.turn, number=max([facts.turn.number, *turns])),
        step=replace(facts.step, number=max([facts.step.number, *steps])),
        calls=StepCalls(call for call in facts.calls if call.call_id in known_calls),
        queue=tuple(queued for queued in facts.queue if queued.id in known_queued),
    )


def _boundary(rows: Rows) -> tuple[int, Sequence[int]]:
    uncut = [row for row in rows.get("boundaries", ()) if row["cut"] is None]
    newest = max(uncut, key=lambda row: int(row["position"]), default=None)
    if newest is None:
        return 0, ()
    carried = newest["carried"]
    return newest["position"], json.loads(carried) if isinstance(carried, str) else carried


class _Logged(NamedTuple):
    """The numbers in the log: none may be given again."""

    steps: list[int]
    tokens: list[int]
    """The tokens of leases."""
    ids: list[str]
    """The numbers in the ids of messages that entered the history or the queue."""


def _read_log(rows: Rows) -> _Logged:
    logged = _Logged([], [], [])
    for row in rows.get("audit", ()):
        try:
            record = json.loads(row["body"])
            writes = [(str(kind), name) for kind, name, *_ in record["writes"]]
            tokens = [int(id_) for kind, id_ in writes if kind.startswith("lease")]
            step = record["step"]
        except PARSE_ERRORS:
            continue
        logged.steps.append(step)
        logged.tokens.extend(filter(is_count, tokens))
        logged.ids.extend(str(id_) for kind, id_ in writes if kind in ("message", "enqueue", "enqueue:steer"))
    return logged


def _tail(seen: Sequence[Message]) -> Tail:
    if not seen:
        return Tail.empty
    if seen[-1].role != "assistant":
        return Tail.awaits_answer
    return Tail.partial if seen[-1].partial else Tail.answered


MARK: Final = "[This message could not be read. A repair has put it aside.]"


def is_mark(message: Message) -> bool:
    return message.synthetic and message.text == MARK


def mark_for(row: Mapping[str, Any], at: datetime) -> Message | None:
    """Return the mark for a message that was put aside; `None` for one without a place.

    A tool result needs its content: what stands for it is what stands for a missing message.
    """
    if not is_count(row["position"]):
        return None
    return mark_at(row["position"], at) if row["role"] == "tool" else _mark(row, at)


def mark_at(position: int, at: datetime) -> Message:
    """Return the mark for a missing message: the user sees it, the model does not."""
    return _mark({"position": position, "id": None, "role": "system", "turn": 0, "step": 0, "audience": "user"}, at)


def _mark(row: Mapping[str, Any], at: datetime) -> Message:
    position, role, audience = row["position"], row["role"], row["audience"]
    return Message(
        id=row["id"] if isinstance(row["id"], str) else f"unreadable-{position}",
        role=role if role in ("system", "assistant") else "user",
        parts=(TextPart(text=MARK),),
        turn=row["turn"] if is_count(row["turn"]) else 0,
        step=row["step"] if is_count(row["step"]) else 0,
        created_at=at,
        position=position,
        audience=Audience(audience) if audience in set(Audience) else Audience.everyone,
        synthetic=True,
    )
