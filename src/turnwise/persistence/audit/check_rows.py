"""Compares the stored rows of a chat with what its audit log says."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from turnwise.persistence.audit.digests import (
    EVENT_COLUMNS,
    Aside,
    digest_of_chat_row,
    digest_of_events,
    digested_fields,
)
from turnwise.persistence.audit.expected_rows import ExpectedRow, ExpectedRows
from turnwise.persistence.audit.record import object_of
from turnwise.persistence.chat_rows import ChatRows, Place, Row
from turnwise.persistence.integrity.columns import wrong_values
from turnwise.persistence.rows import (
    CALLS,
    PARSE_ERRORS,
    PROFILES,
    FactsRow,
    columns_of_call,
    columns_of_message,
    described,
    first_due_in,
    message_of,
    micros_of,
)
from turnwise.states.errors import TurnwiseError
from turnwise.states.events import FLEETING
from turnwise.states.names import OPEN_STATUSES, ChatState
from turnwise.states.step_calls import StepCalls
from turnwise.states.values.digests import canonical, digest, salted
from turnwise.states.writes import ERASED, digest_of_call, digest_of_lease, digest_of_time


class Mismatch(NamedTuple):
    """A stored value that differs from what the log says."""

    version: int
    """The version that wrote the value."""
    place: Place
    problem: str


_Fault = tuple[tuple[str, ...], str]
"""Columns of which at least one is wrong, and the problem."""
_UNRECORDED: Final = "no audit record covers the row"
_NO_ACTION: Final = {"awaits": None, "action_of": None}
_REASON_MISSING: Final = "the reason is missing, and was not erased"


class RowComparison:
    """Compares the rows of a chat with its log."""

    def __init__(self, expected: ExpectedRows, stored: ChatRows) -> None:
        self._expected = expected
        self._stored = stored

    def mismatches(self) -> Iterator[Mismatch]:
        """Yield every difference between rows and log, in no order. Stored values never make it raise."""
        yield from self._wrong_kinds()
        yield from self._guard("audit", self._check_audit_aside())
        yield from self._guard("messages", self._rows("messages"))
        yield from self._guard("boundaries", self._boundaries())
        yield from self._guard("calls", self._rows("calls"))
        yield from self._guard("queue", self._queue())
        yield from self._guard("receipts", self._rows("receipts"))
        yield from self._guard("usage", self._rows("usage"))
        yield from self._guard("profiles", self._profile())
        yield from self._guard("leases", self._lease())
        yield from self._guard("events", self._events())
        yield from self._guard("chats", self._chat())

    def definite_mismatches(self) -> Iterator[Mismatch]:
        """Yield mismatches that remain mismatches when the log is truncated: no missing record could explain them."""
        yield from filter(self._is_definite, self.mismatches())

    def _is_definite(self, mismatch: Mismatch) -> bool:
        table, name, columns = mismatch.place.table, mismatch.place.row, mismatch.place.columns
        rows = self._stored.tables.get(table, ())
        row: Row = next((row for row in rows if row_key(table, row) == name), {})
        definite = {
            "messages": name in self._expected.rows["messages"] and not row.get("erased") and columns != ("cut",),
            "receipts": name in self._expected.rows["receipts"] and '"content_digest":""' not in str(row.get("body")),
            "usage": name in self._expected.rows["usage"],
            "boundaries": mismatch.problem != _UNRECORDED and columns != ("cut",),
            "audit": mismatch.problem != _REASON_MISSING,
            "events": name in self._expected.spans and not self._is_anything_erased(),
        }
        return definite.get(table, False)

    def _is_anything_erased(self) -> bool:
        rows = self._stored.tables
        blank = any(ERASED in str(row["body"]) for row in rows["events"])
        return blank or any(row["erased"] for row in rows["messages"])

    def _wrong_kinds(self) -> Iterator[Mismatch]:
        """Yield the columns whose value is not of the kind that turnwise stores there."""
        log, stored = self._expected, self._stored
        named = [(table, row) for table, rows in stored.tables.items() for row in rows]
        named.append(("chats", stored.chat))
        if stored.lease is not None and log.lease is not None:
            named.append(("leases", stored.lease))
        for table, row in named:
            name = row_key(table, row)
            expected = log.rows.get(table, {}).get(name)
            for column, problem in wrong_values(table, row):
                version = log.last if expected is None else expected.version
                yield Mismatch(version, Place(table, name, (column,)), problem)

    def _guard(self, table: str, mismatches: Iterator[Mismatch]) -> Iterator[Mismatch]:
        """Yield the mismatches of a table; if the comparison itself fails, yield that as a mismatch."""
        try:
            yield from mismatches
        except (*PARSE_ERRORS, TurnwiseError) as error:
            problem = f"it cannot be compared with the log: {described(error)}"
            yield Mismatch(self._expected.last, Place(table), problem)

    def _rows(self, table: str) -> Iterator[Mismatch]:
        """Yield the rows that are missing, too many, or not what the log says of them."""
        expected_rows = self._expected.rows[table]
        rows = {row_key(table, row): row for row in self._stored.tables[table]}
        for name, expected in expected_rows.items():
            if name not in rows:
                yield Mismatch(expected.version, Place(table, name), "the row is missing")
                continue
            try:
                faults = list(_FAULTS[table](expected, rows[name]))
            except (*PARSE_ERRORS, TurnwiseError) as error:
                faults = [(("body",), f"it cannot be compared with the log: {described(error)}")]
            for columns, problem in faults:
                yield Mismatch(expected.version, Place(table, name, columns), problem)
        for name in rows.keys() - expected_rows.keys():
            yield Mismatch(self._expected.last, Place(table, name), _UNRECORDED)

    def _check_audit_aside(self) -> Iterator[Mismatch]:
        for record, entry in zip(self._expected.records, self._stored.audit, strict=True):
            place = Place("audit", str(record.version), ("aside",))
            try:
                aside = Aside.load(entry.aside)
            except PARSE_ERRORS as error:
                yield Mismatch(record.version, place, f"it cannot be read: {described(error)}")
                continue
            expected = self._expected.reasons.get(record.version)
            if aside.reason is not None and (
                expected is None or salted(aside.salt, canonical(aside.reason)) != expected.digest
            ):
                yield Mismatch(record.version, place, "the reason is not the one that was given")
            elif aside.reason is None and aside.salt:
                yield Mismatch(record.version, place, "a salt is stored without a reason")
            elif aside.events and not any(write.kind == "events" for write in record.writes):
                yield Mismatch(record.version, place, "there is a salt of events, and the record covers none")
            elif aside.reason is None and expected is not None and record.version > self._expected.reasons_erased:
                yield Mismatch(record.version, place, _REASON_MISSING)

    def _boundaries(self) -> Iterator[Mismatch]:
        unmatched = {str(row["position"]): row for row in self._stored.tables["boundaries"]}
        positions = {row["id"]: row["position"] for row in self._stored.tables["messages"]}
        for expected in self._expected.boundaries:
            name = next((name for name, row in unmatched.items() if _digest_of_boundary(row) == expected.digest), None)
            if name is None:
                place = Place("boundaries", "", ("position", "carried"))
                yield Mismatch(
                    expected.version, place, f"the boundary of step {expected.id} is missing, or was changed"
                )
                continue
            row = unmatched.pop(name)
            position = row["position"]
            cuts = [cut.version for cut in self._expected.cuts if positions.get(cut.id, position + 1) <= position]
            expected.cut = min((version for version in cuts if version > expected.version), default=None)
            log_values = {"reason": expected.kind.partition(":")[2], "step": int(expected.id), "cut": expected.cut}
            for columns, problem in _differences(row, log_values, "the log"):
                yield Mismatch(expected.version, Place("boundaries", name, columns), problem)
        for name in unmatched:
            yield Mismatch(self._expected.last, Place("boundaries", name), _UNRECORDED)

    def _queue(self) -> Iterator[Mismatch]:
        log, rows = self._expected, {row["id"]: row for row in self._stored.tables["queue"]}
        order = sorted(rows, key=lambda name: rows[name]["rank"])
        if sorted(order) == sorted(log.order) and order != log.order:
            version = max(expected.version for expected in log.rows["queue"].values())
            yield Mismatch(
                version, Place("queue", "", ("rank",)), f"the order is {order}, but the log says {log.order}"
            )
        yield from self._rows("queue")

    def _profile(self) -> Iterator[Mismatch]:
        rows, expected = self._stored.tables["profiles"], self._expected.profile
        if not rows or expected is None:
            yield Mismatch(1, Place("profiles"), "the row is missing")
            return
        row = rows[0]
        if salted(row["salt"] or "", row["body"]) != expected.digest:
            place = Place("profiles", "", ("body", "salt"))
            yield Mismatch(expected.version, place, "it does not match the digest in the log")
        else:
            profile, needed = PROFILES.load(row["body"], self._stored.chat["id"]), self._calls().agent_needed
            for name, value in profile.queried.items():
                if self._stored.chat[name] != value:
                    yield Mismatch(expected.version, Place("chats", "", (name,)), f"the profile names another {name}")
            if self._stored.chat["agent"] != (needed or profile.agent):
                version, who = (
                    (self._expected.last, "open calls name") if needed else (expected.version, "profile names")
                )
                yield Mismatch(version, Place("chats", "", ("agent",)), f"the {who} another agent")

    def _lease(self) -> Iterator[Mismatch]:
        row, expected = self._stored.lease, self._expected.lease
        if expected is None:
            if row is not None:
                yield Mismatch(self._expected.last, Place("leases"), "the log has no lease for this chat")
        elif row is None:
            yield Mismatch(expected.version, Place("leases"), "the lease is missing")
        elif str(row["token"]) != expected.id:
            yield Mismatch(expected.version, Place("leases", "", ("token",)), f"the log says {expected.id}")
        elif digest_of_lease(row["token"], row["worker"]) != expected.digest:
            yield Mismatch(expected.version, Place("leases", "", ("worker",)), "the lease was given to another worker")

    def _events(self) -> Iterator[Mismatch]:
        rows = {row["seq"]: row for row in self._stored.tables["events"] if row["kind"] not in FLEETING}
        spans = {name: tuple(map(int, name.split("-"))) for name in self._expected.spans}
        numbers = sorted(seq for seq in rows if isinstance(seq, int))
        for name, expected in self._expected.spans.items():
            first, last = spans[name]
            if not self._is_published(first, last):
                yield Mismatch(expected.version, Place("events", name), "the log has more events than were published")
                continue
            spanned = numbers[bisect_left(numbers, first) : bisect_right(numbers, last)]
            yield from self._span(expected, first, last, [rows.pop(seq) for seq in spanned if seq in rows])
        for seq in rows:
            yield Mismatch(self._expected.last, Place("events", str(seq)), _UNRECORDED)

    def _is_published(self, first: int, last: int) -> bool:
        newest = self._expected.facts
        return first <= last and (newest is None or last <= int(newest.id))

    def _span(self, expected: ExpectedRow, first: int, last: int, rows: Sequence[Row]) -> Iterator[Mismatch]:
        at = self._expected.records[expected.version - 1].at
        try:
            salt = Aside.load(self._stored.audit[expected.version - 1].aside).events
        except PARSE_ERRORS:
            return  # reported with its record
        digests = digest_of_events(first, last, map(digested_fields, rows), salt=salt)
        if [one.digest for one in digests] != [expected.digest]:
            problem = f"the events are not those of the log, or `audit.aside` of version {expected.version} was changed"
            yield Mismatch(expected.version, Place("events", f"{first}-{last}", EVENT_COLUMNS), problem)
        for row in rows:
            for columns, problem in _differences(row, {"at": micros_of(at)}, "the log"):
                yield Mismatch(expected.version, Place("events", str(row["seq"]), columns), problem)

    def _chat(self) -> Iterator[Mismatch]:
        row, log = self._stored.chat, self._expected
        log_values = {"version": log.last, "head": log.records[-1].hash, "state": log.records[-1].target}
        for columns, problem in _differences(row, log_values, "the log"):
            yield Mismatch(log.last, Place("chats", "", columns), problem)
        if row["state"] == log_values["state"]:
            yield from self._check_chat_digest()
        yield from self._guard("chats", self._needs())

    def _check_chat_digest(self) -> Iterator[Mismatch]:
        row, log, expected = self._stored.chat, self._expected, self._expected.facts
        if expected is None or expected.version != log.last:
            yield Mismatch(log.last, Place("chats"), "the last record does not cover the row")
            return
        last_seq = max([int(expected.id), *(event["seq"] for event in self._stored.tables["events"])])
        if row["event_seq"] < last_seq or (self._stored.lease is None and row["event_seq"] != last_seq):
            problem = f"it holds {row['event_seq']!a:.80}, but the last event is {last_seq}"
            yield Mismatch(log.last, Place("chats", "", ("event_seq",)), problem)
        elif not _is_as_digested(row, expected):
            place = Place("chats", "", ("settled", "archived", "calls", "facts", "since", "salt"))
            yield Mismatch(log.last, place, "the chat row does not match its digest in the log")

    def _needs(self) -> Iterator[Mismatch]:
        chat, calls = self._stored.chat, self._calls()
        needs, in_action = calls.needs, chat["state"] == ChatState.requires_action
        asked = {"awaits": calls.awaited, "action_of": calls.action_of} if in_action else _NO_ACTION
        for columns, problem in _differences(chat, asked, "the open calls"):
            yield Mismatch(self._expected.last, Place("chats", "", columns), problem)
        facts = object_of(chat["facts"])
        found_by = {
            "fair_key": facts.get("declared_key", chat["owner"] or ""),
            "capped_model": facts.get("capped_model", ""),
            "wake_at": first_due_in(facts),
        }
        for columns, problem in _differences(chat, found_by, "the facts"):
            yield Mismatch(self._expected.last, Place("chats", "", columns), problem)
        if _parse_list(chat["needs"]) != [*needs]:
            problem = f"it holds {chat['needs']!a:.80}, but the open local calls need {json.dumps(needs)}"
            yield Mismatch(self._expected.last, Place("chats", "", ("needs",)), problem)

    def _calls(self) -> StepCalls:
        ids = _parse_list(self._stored.chat["calls"])
        rows = [row for row in self._stored.tables["calls"] if row["call_id"] in ids]
        return StepCalls(CALLS.load(row["body"], row["chat_id"]) for row in rows)


def _parse_list(stored: Any) -> list[Any]:
    """Return an array of a row: some stores keep it as JSON."""
    return [*(json.loads(stored) if isinstance(stored, str) else stored)]


def row_key(table: str, row: Row) -> str:
    """Return the key of a row in its chat; bytes that are no text are escaped."""
    if table == "usage":
        return f"{row['version']}/{row['number']}"
    column = _KEY_COLUMNS.get(table)
    name = row[column] if column is not None else ""
    return name.encode(errors="backslashreplace").decode() if isinstance(name, str) else f"{name!a:.80}"


def _is_as_digested(row: Row, expected: ExpectedRow) -> bool:
    calls = row["calls"] if isinstance(row["calls"], str) else json.dumps(list(row["calls"]))
    facts = FactsRow(row["id"], row["state"], row["settled"], row["archived"], row["version"], calls, row["facts"], 0)
    try:
        return digest_of_chat_row(facts, since=row["since"], salt=row["salt"] or "").digest == expected.digest
    except (*PARSE_ERRORS, TurnwiseError):
        return False


def _faults_of_message(expected: ExpectedRow, row: Row) -> Iterator[_Fault]:
    yield from _differences(row, {"added": expected.version, "cut": expected.cut}, "the log")
    if row["salt"] and expected.erased == salted("", row["body"]):
        yield ("salt",), "the message was erased, and its salt is still there"
    elif salted(row["salt"] or "", row["body"]) != expected.digest_now:
        yield ("body", "salt"), "it does not match the digest in the log"
    else:
        try:
            message = message_of(row["format"], row["body"], row["chat_id"])
        except TurnwiseError as error:
            yield ("format", "body"), str(error)
            return
        yield from _differences(row, columns_of_message(message), "the body")


def _faults_of_call(expected: ExpectedRow, row: Row) -> Iterator[_Fault]:
    try:
        call = CALLS.load(row["body"], row["chat_id"])
    except TurnwiseError as error:
        yield ("body",), str(error)
        return
    status = expected.kind.split(":")[1].replace("approved", "planned")
    if call.status != status or digest_of_call(call) != expected.digest_now:
        yield ("body",), "the call does not match its digest in the log"
    due = expected.deadline if call.status in OPEN_STATUSES else None
    if due != (None if call.deadline is None else digest_of_time(call.deadline)):
        yield ("body",), "its deadline is not the one that was set"
    yield from _differences(row, columns_of_call(call), "the body")


def _faults_of_queued(expected: ExpectedRow, row: Row) -> Iterator[_Fault]:
    if salted(row["salt"] or "", row["body"]) != expected.digest:
        yield ("body", "salt"), "it is not the message that was queued"


def _faults_of_body(expected: ExpectedRow, row: Row) -> Iterator[_Fault]:
    if salted("", row["body"]) != expected.digest_now:
        yield ("body",), "it does not match the digest in the log"


def _differences(row: Row, expected: Mapping[str, Any], source: str) -> Iterator[_Fault]:
    for column, value in expected.items():
        if row[column] != value:
            yield (column,), f"it holds {row[column]!a:.80}, but {source} says {value!a:.80}"


def _digest_of_boundary(row: Row) -> str | None:
    try:
        carried = json.loads(row["carried"]) if isinstance(row["carried"], str) else list(row["carried"])
        return digest([row["position"], carried])
    except (*PARSE_ERRORS, TurnwiseError):
        return None


_KEY_COLUMNS: Final = {
    "messages": "id",
    "boundaries": "position",
    "calls": "call_id",
    "queue": "id",
    "receipts": "client_id",
    "events": "seq",
}
_FAULTS: Final[Mapping[str, Any]] = {
    "messages": _faults_of_message,
    "calls": _faults_of_call,
    "queue": _faults_of_queued,
    "receipts": _faults_of_body,
    "usage": _faults_of_body,
}
