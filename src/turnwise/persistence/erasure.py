"""Works out which rows an erasure changes, so that none of them holds what was erased.

The audit records stay as they are. The record of the erasure states the digests of the changed rows anew.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from turnwise.persistence.audit.digests import Aside, WriteRecord, digest_of_events, digested_fields
from turnwise.persistence.audit.record import Entry, object_of
from turnwise.persistence.chat_rows import REFERRING, ChatRows, Row, blobs_named_in
from turnwise.persistence.integrity.repair import is_mark
from turnwise.persistence.rows import CALLS, MESSAGES, PARSE_ERRORS, RECEIPTS, message_of
from turnwise.states.calls import ToolCall
from turnwise.states.decide import Decision
from turnwise.states.events import FLEETING
from turnwise.states.messages import FORMAT, Message, files_in, recorded_calls, recorded_results, without_secrets
from turnwise.states.names import Audience
from turnwise.states.values.digests import derived
from turnwise.states.writes import ERASED, EraseEdits, EraseMessage, EraseText, RecordReceipt, Write, digest_of_call


class Change(msgspec.Struct, frozen=True):
    """A row to change or, without values, to delete."""

    table: str
    key: Mapping[str, Any]
    """Identifies the row in the chat."""
    values: Mapping[str, Any] = msgspec.field(default_factory=dict)


class Wipe(msgspec.Struct):
    """The changes that an erasure makes to a chat's rows, and the digests that its record states."""

    changes: list[Change] = msgspec.field(default_factory=list)
    row_digests: list[WriteRecord] = msgspec.field(default_factory=list)
    blobs: set[str] = msgspec.field(default_factory=set)
    """The digests of the blobs that what is left refers to."""


_ERASING: Final = frozenset({EraseMessage, EraseEdits, EraseText})


def erases(writes: Sequence[Write]) -> bool:
    return not _ERASING.isdisjoint(map(type, writes))


def wipe(stored: ChatRows, decision: Decision) -> Wipe:
    """Return the changes that a decision's erasures make to a chat's rows.

    Raises:
        KeyError: the chat has no such message. What else is raised, too, is of what cannot be read.
    """
    return _Wiping(stored, decision).done()


_BLANK: Final = ({"type": "text", "text": ERASED},)


class _Wiping:
    def __init__(self, stored: ChatRows, decision: Decision) -> None:
        self._stored = stored
        self._salt = derived(decision.salt, decision.facts.version, "erasure")
        self._schedules = decision.facts.schedules
        self._over_before = decision.facts.step.over_before
        writes = decision.writes
        self._blanks = {write.id: write for write in writes if isinstance(write, EraseMessage | EraseEdits)}
        self._texts = {(write.what, write.id) for write in writes if isinstance(write, EraseText)}
        self._parts = {name: _to_json(write.message)["parts"] for name, write in self._blanks.items()}
        self._parts |= {name: _BLANK for what, name in self._texts if what == "queued"}
        self._wipe = Wipe()
        self._entries = {entry.version: entry for entry in stored.audit}
        self._asides: dict[int, Aside] = {}
        """The asides as they are afterwards, by version."""
        self._lost: set[str] = set()
        self._asked: set[str] = set()
        self._answered: set[str] = set()
        self._refusals: dict[str, dict[str, str]] = {}
        """By call, why it is not run now that its arguments are gone, as events say it."""
        self._steps: set[int] = set()
        self._answered_steps: set[int] | None = None
        """The steps with a message of the model's, if what attempts of other steps have shown is to go."""
        self._discarded: set[tuple[int | None, int | None]] = set()
        """Step and attempt of those that were taken back, if what they have shown is to go."""

    def done(self) -> Wipe:
        self._wipe_messages()
        if ("quarantine", "") in self._texts:
            self._note_quarantined()
        if ("quarantine", "") in self._texts or any(isinstance(write, EraseMessage) for write in self._blanks.values()):
            self._note_discarded_copies()
        self._wipe_calls()
        self._wipe_receipts()
        self._wipe_events()
        if ("reasons", "") in self._texts:
            self._wipe_reasons()
        self._change("quarantine", {})  # delete all of it: what is to be erased cannot be found in there
        self._wipe.blobs = self._blobs()
        return self._wipe

    def _blobs(self) -> set[str]:
        blobs = {file.blob for one in self._schedules for file in files_in(one.parts) if file.blob is not None}
        for table, key in REFERRING.items():
            changed = {one.key[key]: one.values.get("body", "") for one in self._wipe.changes if one.table == table}
            for row in self._stored.tables[table]:
                if table != "queue" or ("queued", row["id"]) not in self._texts:
                    blobs |= blobs_named_in(changed.get(row[key], row["body"]))
        return blobs

    def _change(self, table: str, key: Mapping[str, Any], **values: Any) -> None:
        self._wipe.changes.append(Change(table, key, values))

    def _wipe_messages(self) -> None:
        rows = {row["id"]: row for row in self._stored.tables["messages"]}
        for name, write in self._blanks.items():
            if isinstance(write, EraseMessage):
                self._note_copies(self._read_message(rows[name]))
            self._change("messages", {"id": name}, erased=True, salt=write.salt, format=FORMAT, body=write.body)

    def _note_copies(self, message: Message) -> None:
        """Note the calls and the step that repeat the content of a message to erase."""
        if message.role == "assistant" and message.audience is not Audience.model:
            self._steps.add(message.step)
        self._asked |= recorded_calls(message)
        self._answered |= recorded_results(message)

    def _note_quarantined(self) -> None:
        """Note what belonged to messages that a repair put aside: calls, parts and events may still repeat them."""
        messages = [self._read_message(row) for row in self._stored.tables["messages"]]
        readable = [message for message in messages if not is_mark(message)]
        names = {message.id for message in readable} | {row["id"] for row in self._stored.tables["queue"]}
        self._lost = self._all_message_ids() - names
        self._parts |= dict.fromkeys(self._lost - self._parts.keys(), _BLANK)
        asked_ids = {call_id for message in readable for call_id in recorded_calls(message)}
        answered_ids = {call_id for message in readable for call_id in recorded_results(message)}
        for call in self._calls():
            if call.call_id not in asked_ids:
                self._asked.add(call.call_id)
            if call.call_id not in answered_ids and not call.open:
                self._answered.add(call.call_id)

    def _note_discarded_copies(self) -> None:
        """Note the attempts that were taken back, and the steps with a message: no id leads to the other attempts."""
        messages = map(self._read_message, self._stored.tables["messages"])
        self._answered_steps = {one.step for one in messages if one.role == "assistant" and not is_mark(one)}
        rows = (row for row in self._stored.tables["events"] if row["kind"] == "attempt_discarded")
        events = [json.loads(row["body"]) for row in rows]
        self._discarded = {(event.get("step"), event.get("attempt")) for event in events}

    def _all_message_ids(self) -> set[str]:
        """Return the ids of all messages in the log or an event, except those deleted from the queue."""
        events = [json.loads(row["body"]) for row in self._stored.tables["events"] if row["kind"] == "message"]
        names = {event["message"]["id"] for event in events if "message" in event}
        deleted = set()
        for write in itertools.chain.from_iterable(map(writes_in, self._stored.audit)):
            names |= {write.id} if write.kind in {"message", "enqueue", "enqueue:steer"} else set()
            deleted |= {write.id} if write.kind == "dequeue:deleted" else set()
        return names - deleted

    def _read_message(self, row: Row) -> Message:
        return message_of(row["format"], row["body"], self._stored.chat["id"])

    def _calls(self) -> Iterator[ToolCall]:
        for row in self._stored.tables["calls"]:
            yield CALLS.load(row["body"], self._stored.chat["id"])

    def _wipe_calls(self) -> None:
        for call in self._calls():
            if not self._is_of_call_that_goes(call.call_id):
                continue
            blank = call.blanked(arguments=call.call_id in self._asked, answer=call.call_id in self._answered)
            if blank.refusal is not None:
                self._refusals[call.call_id] = {"refusal": blank.refusal}
            self._change("calls", {"call_id": call.call_id}, body=CALLS.dump(blank))
            self._wipe.row_digests.append(WriteRecord("erase:call", call.call_id, digest_of_call(blank)))

    def _is_of_call_that_goes(self, call_id: str | None) -> bool:
        return call_id in self._asked or call_id in self._answered

    def _wipe_receipts(self) -> None:
        for row in self._stored.tables["receipts"]:
            receipt = RECEIPTS.load(row["body"], self._stored.chat["id"])
            if receipt.message_id in self._parts:
                blank = RecordReceipt(receipt.client_id, "", receipt.message_id, receipt.queued, receipt.seq)
                self._change("receipts", {"client_id": receipt.client_id}, body=blank.body)
                self._wipe.row_digests.append(WriteRecord("erase:receipt", receipt.client_id, blank.digest))

    def _wipe_events(self) -> None:
        changed: dict[int, str] = {}
        for row in self._stored.tables["events"]:
            event = json.loads(row["body"])
            if row["kind"] in FLEETING:
                if self._is_of_call_that_goes(event.get("call_id")) or self._is_part_of_what_goes(row, event):
                    self._change(self._stored.parts if row["kind"] == "part" else "events", {"seq": row["seq"]})
            elif self._blank(row["kind"], event):
                changed[row["seq"]] = json.dumps(event, separators=(",", ":"), ensure_ascii=False)
                self._change("events", {"seq": row["seq"]}, body=changed[row["seq"]])
        if changed:
            self._bind_anew(changed)

    def _is_part_of_what_goes(self, row: Row, event: dict[str, Any]) -> bool:
        """Whether an event is a part of a reply that goes: it was taken back, erased, or is over without a message."""
        if row["kind"] != "part":
            return False
        part = {**event, **row}
        if (part["step"], part["attempt"]) in self._discarded:
            return True
        if self._answered_steps is None or part["step"] in self._answered_steps:
            return part["step"] in self._steps
        return (part["step"], part["attempt"]) < self._over_before

    def _blank(self, kind: str, event: dict[str, Any]) -> bool:
        """Remove from an event what is to be erased; return whether there was anything."""
        before = json.dumps(event)
        match kind:
            case "message" if event.get("message", {}).get("id") in self._blanks:
                event["message"] = _to_json(without_secrets(self._blanks[event["message"]["id"]].message))
            case "message" if event.get("message", {}).get("id") in self._lost:
                event["message"]["parts"] = []
            case "queue" if "message" in event:
                queued = event["message"]
                queued["parts"] = self._parts.get(queued["id"], queued["parts"])
            case "action_required":
                for call in event["calls"]:
                    if call["call_id"] in self._asked:
                        call.update({"arguments": {}} | self._refusals.get(call["call_id"], {}))
            case "tool_result" if event["call_id"] in self._answered and "output" in event:
                event["output"] = None
            case _ if event.get("error") and ("errors", "") in self._texts:
                event["error"]["message"] = ERASED
        return json.dumps(event) != before

    def _bind_anew(self, changed: Mapping[int, str]) -> None:
        """State the digests of the changed events again, under a new salt."""
        events = self._stored.tables["events"]
        numbers = [row["seq"] for row in events]
        for version, first, last in spans_of(self._stored):
            rows = events[bisect_left(numbers, first) : bisect_right(numbers, last)]
            if not any(row["seq"] in changed for row in rows):
                continue
            salt = derived(self._salt, "events", version)
            now = [digested_fields({**row, "body": changed.get(row["seq"], row["body"])}) for row in rows]
            self._wipe.row_digests += digest_of_events(first, last, now, salt=salt)
            self._put_aside(version, events=salt)

    def _wipe_reasons(self) -> None:
        for entry in self._stored.audit:
            if aside_in(entry).reason is not None:
                self._put_aside(entry.version, reason=None, salt="")

    def _put_aside(self, version: int, **values: Any) -> None:
        aside = (self._asides.get(version) or aside_in(self._entries[version]))._replace(**values)
        self._asides[version] = aside
        self._change("audit", {"version": version}, aside=aside.dump())


def spans_of(stored: ChatRows) -> Iterator[tuple[int, int, int]]:
    """Yield the version, first number and last number of each commit's events, as its own record states them."""
    seen = set()
    for entry in stored.audit:
        for write in writes_in(entry):
            if write.kind == "events" and write.id not in seen:
                seen.add(write.id)
                first, _, last = write.id.partition("-")
                yield entry.version, int(first), int(last)


def writes_in(entry: Entry) -> Sequence[WriteRecord]:
    """Return the writes of a stored record, without their digests.

    There are none if it cannot be read: a check reports that, and nothing can repair it.
    """
    try:
        return [WriteRecord(kind, name, "") for kind, name, *_ in object_of(entry.body)["writes"]]
    except PARSE_ERRORS:
        return ()


def aside_in(entry: Entry) -> Aside:
    """Return a record's aside; in place of one that cannot be read, one that an erasure can overwrite."""
    try:
        return Aside.load(entry.aside)
    except PARSE_ERRORS:
        return Aside(reason="")


def _to_json(message: Message) -> dict[str, Any]:
    spelled: dict[str, Any] = json.loads(MESSAGES.dump(message))
    return spelled
