"""A sound log verifies, and no single tampering goes unseen - even if the whole chain is hashed anew after it."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from support.exploring import examples
from support.life import OVERFLOW, own_of
from turnwise.persistence.audit import check_transitions, check_writes
from turnwise.persistence.audit.record import (
    GENESIS,
    AuditRecord,
    WriteRecord,
    entry_of,
    export,
    from_json,
    hash_of,
    to_json,
)
from turnwise.persistence.audit.verify import Verdict, verify_export, verify_records
from turnwise.states.arguments import Cut, Erasing, HelperAnswer, Partial, Reply, Summary
from turnwise.states.calls import CallOutcome, ToolCall, ToolResult
from turnwise.states.decide import decide, legal_triggers
from turnwise.states.errors import TurnwiseError
from turnwise.states.events import ErrorInfo
from turnwise.states.facts import Facts, Limits, Profile
from turnwise.states.messages import Message, Part, TextPart, ToolCallPart
from turnwise.states.names import CallStatus, ChatState, Executor, Trigger
from turnwise.states.table import TABLE
from turnwise.states.usage import Usage

T = Trigger
unhurried = settings(deadline=None)
START = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
LIMITS = Limits(context_limit=1000, action_deadline=60)
ERROR = ErrorInfo(kind="defect", message="the stored chat broke a promise", retryable=False)


class Life:
    """Drives the pure machine as a runner would, and keeps the log a store would keep."""

    def __init__(self) -> None:
        self.facts = Facts(chat_id="chat-1", profile=Profile(created_at=START))
        self.records: list[AuditRecord] = []
        self.now = START
        self.first = ""
        """The message that the history begins with."""
        self.fire(T.create, profile=self.facts.profile)

    def fire(self, trigger: Trigger, **arguments: Any) -> None:
        self.now += timedelta(seconds=1)
        if self.facts.lease is not None:
            arguments.setdefault("token", self.facts.lease.token)
        decision = decide(self.facts, trigger, now=self.now, limits=LIMITS, **own_of(trigger, arguments))
        prev = self.records[-1].hash if self.records else GENESIS
        self.records.append(from_json(entry_of(decision, prev=prev, at=self.now, whole=True).body))
        self.facts = decision.facts
        if not self.first or trigger is T.edit_message:
            inserted = (write.id for write in decision.writes if write.kind == "message")
            self.first = next(inserted, "")

    def say(self, text: str, **arguments: Any) -> None:
        arguments = {"content_digest": text, "client_id": text, **arguments}
        self.fire(T.send_message, parts=(TextPart(text=text),), **arguments)

    def claim(self) -> None:
        self.fire(T.claimed, worker="w1")

    def answer(self, text: str, *, tokens: int | None = None, calls: tuple[ToolCall, ...] = ()) -> None:
        parts: tuple[Part, ...] = (TextPart(text=text), *map(_part, calls))
        self.fire(T.step_finished, reply=Reply(parts=parts, calls=calls, context_tokens=tokens))

    def call(self, call_id: str, **arguments: Any) -> ToolCall:
        arguments = {"executor": Executor.local, "index": 0, "step": self.facts.step.number, **arguments}
        return ToolCall(call_id=call_id, name="look", arguments={"at": call_id}, **arguments)

    def run(self, call_id: str) -> None:
        self.fire(T.call_started, call_id=call_id)
        self.finish(call_id)

    def finish(self, call_id: str) -> None:
        outcome = CallOutcome(call_id=call_id, status=CallStatus.succeeded, output=1, is_error=False)
        self.fire(T.call_finished, outcome=outcome)


def _part(call: ToolCall) -> ToolCallPart:
    return ToolCallPart(call_id=call.call_id, name=call.name, arguments=call.arguments, executor=call.executor)


def _blank(message_id: str) -> Message:
    return Message(id=message_id, role="user", parts=(), turn=1, step=0, created_at=START, position=1, erased=True)


def _lived() -> list[AuditRecord]:
    life = Life()
    _use_tools(life)
    _queue_and_interrupt(life)
    _compact(life)
    _crash(life)
    _edit_fail_and_rest(life)
    _break_and_repair(life)
    _ask_a_helper(life)
    return life.records


def _summary(text: str) -> Summary:
    new = Message(id="", role="user", parts=(TextPart(text=text),), turn=0, step=0, created_at=START)
    return Summary(messages=(new,), folded=2)


def _use_tools(life: Life) -> None:
    life.say("look around")
    life.claim()
    life.fire(T.attempt_started)
    life.fire(T.attempt_discarded, error=ERROR, delay=1.0, retry_at=life.now)
    life.fire(T.attempt_started)
    client = life.call("c3", executor=Executor.client, index=2)
    life.answer("I look", calls=(life.call("c1"), life.call("c2", index=1), client))
    life.run("c2")
    life.say("and then", client_id=None)
    life.run("c1")
    life.fire(T.tools_finished)
    life.fire(T.submit_tool_results, results=(ToolResult("c3", "seen"),))
    life.claim()
    life.fire(T.attempt_started)
    life.answer("I saw")
    life.claim()
    life.answer("Then nothing")


def _queue_and_interrupt(life: Life) -> None:
    life.say("tell me more")
    life.claim()
    life.fire(T.attempt_started)
    life.say("second")
    life.say("third")
    life.fire(T.edit_queued, queued_id=life.facts.queue[1].id, parts=(TextPart(text="3rd"),))
    life.say("at once", when_busy="interrupt")
    asked = life.call("c4")
    partial = Partial(step=1, attempt=1, parts=(TextPart(text="Mo"), _part(asked)), calls=(asked,))
    life.fire(T.settled, partial=partial)
    life.claim()
    life.fire(T.promote_queued, queued_id=life.facts.queue[1].id)
    life.fire(T.settled)
    life.claim()
    life.fire(T.interrupt, reason="enough")
    life.fire(T.released)
    life.claim()
    life.fire(T.settled)
    life.fire(T.delete_queued, queued_id=life.facts.queue[0].id)


def _compact(life: Life) -> None:
    life.fire(T.resume)
    life.claim()
    life.fire(T.attempt_started)
    life.answer("long", tokens=900)
    life.fire(T.compacted, summary=_summary("all so far"))
    life.answer("done", tokens=10)
    life.fire(T.request_compaction)
    life.claim()
    life.fire(T.compaction_failed, error=ERROR)
    life.fire(T.clear_context)


def _crash(life: Life) -> None:
    life.say("try this")
    life.claim()
    again = life.call("c6", index=1, crash="at_least_once")
    life.answer("ok", calls=(life.call("c5"), again))
    life.fire(T.call_started, call_id="c5")
    life.fire(T.call_started, call_id="c6")
    life.fire(T.lease_expired)
    life.claim()
    life.run("c6")
    life.fire(T.tools_finished)
    life.answer("tried", calls=(life.call("c7", executor=Executor.client),))
    life.now += timedelta(seconds=60)
    life.fire(T.deadline_passed)
    life.claim()


def _edit_fail_and_rest(life: Life) -> None:
    life.answer("once more", calls=(life.call("c8"),))
    cut = Cut(position=1, first_removed="m1", boundary=0, foldable=0, history_version=life.facts.history_version)
    life.fire(T.released)
    life.fire(T.edit_message, cut=cut, parts=(TextPart(text="look here"),))
    life.claim()
    life.fire(T.failed, error=ERROR)
    life.fire(T.archived)
    life.fire(T.unarchived)
    life.fire(T.renamed, title="A life")
    life.fire(T.metadata_changed, metadata={"mood": "calm"})
    life.fire(T.configured, agent="research")
    life.fire(T.message_erased, erasing=Erasing(messages=(_blank("m1"),)))
    life.fire(T.imported)


def _break_and_repair(life: Life) -> None:
    life.say("again")
    life.claim()
    life.answer("yes", calls=(life.call("c9"),))
    life.facts = replace(life.facts, stored_state="dreaming")
    life.fire(T.repaired, error=ERROR)
    life.say("still there?")
    life.claim()
    life.answer("yes")


def _ask_a_helper(life: Life) -> None:
    life.say("ask around")
    life.claim()
    life.answer("I ask", calls=(life.call("h1", executor=Executor.chat, helper="research"),))
    helper = HelperAnswer(chat_id="chat-2", version=3, head="7" * 64, usage=Usage())
    life.fire(T.submit_tool_results, results=(ToolResult("h1", "heard"),), helpers=(helper,))
    life.claim()
    life.answer("I heard")


def _overflowed() -> list[AuditRecord]:
    """Return a log in which a refused prompt is compacted, and refused and compacted once more in the same step."""
    life = Life()
    life.say("long")
    life.claim()
    life.fire(T.attempt_started)
    life.fire(T.attempt_discarded, error=OVERFLOW, delay=0.0, retry_at=life.now)
    refused = life.records[-1]
    life.fire(T.compacted, summary=_summary("short"))
    last = life.records[-1]
    return [*life.records, dataclasses.replace(refused, turn=last.turn, step=last.step, attempt=last.attempt)]


LOG = _lived()
OVERFLOWED = _overflowed()
TEXT = export("chat-1", LOG)
VERSIONS = st.integers(1, len(LOG))


def _rehashed(records: list[AuditRecord]) -> list[AuditRecord]:
    """Return the records renumbered and chained anew, as one who rewrites the whole log would."""
    chained: list[AuditRecord] = []
    for version, record in enumerate(records, start=1):
        prev = chained[-1].hash if chained else GENESIS
        moved = dataclasses.replace(record, version=version, prev=prev)
        chained.append(dataclasses.replace(moved, hash=hash_of(moved)))
    return chained


def _find(trigger: Trigger, *, last: bool = False) -> int:
    places = [place for place, record in enumerate(LOG) if record.trigger == trigger]
    return places[-1 if last else 0]


def _taking() -> int:
    """Return the first place where the queue's head enters the history, and nothing else happens to the queue."""
    return next(
        place for place, record in enumerate(LOG) if any(write.kind == "dequeue:taken" for write in record.writes)
    )


def _answer() -> int:
    """Return the place where a helper answers."""
    return next(place for place, record in enumerate(LOG) if any(write.kind == "helper" for write in record.writes))


def _forged(place: int, **changes: Any) -> Verdict:
    """Change one record, hash everything anew, and verify."""
    records = [*LOG]
    records[place] = dataclasses.replace(records[place], **changes)
    return verify_export(export("chat-1", _rehashed(records)))


def _with_write(place: int, kind: str, id_: str) -> Verdict:
    return _forged(place, writes=(*LOG[place].writes, WriteRecord(kind, id_, "0" * 64)))


def test_a_rich_life_verifies() -> None:
    assert verify_export(TEXT) == Verdict(ok=True)
    assert verify_records(LOG) == Verdict(ok=True)


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 15)), min_size=40, max_size=150))
def test_whatever_life_the_table_allows_verifies(wishes: list[tuple[int, int]]) -> None:
    """The checker demands no more than the machine promises."""
    life = Life()
    life.say("hello")
    for wish, choice in wishes:
        legal = legal_triggers(life.facts)
        with contextlib.suppress(TurnwiseError):
            life.fire(legal[wish % len(legal)], **_arguments(life, choice))
    assert verify_records(life.records) == Verdict(ok=True)


def _arguments(life: Life, choice: int) -> dict[str, Any]:
    """Return something for every argument that a trigger may take."""
    facts = life.facts
    names = {call.call_id for call in facts.calls}
    kinds = (
        (Executor.local, "at_most_once"),
        (Executor.local, "at_least_once"),
        (Executor.client, "at_most_once"),
        (Executor.chat, "at_most_once"),
    )
    planned = tuple(
        life.call(f"c{facts.version}-{index}", executor=executor, crash=crash, index=index)
        for index, (executor, crash) in enumerate(kinds)
        if choice >> index & 1
    )
    parts: tuple[Part, ...] = (TextPart(text="so"), *map(_part, planned))
    ids = [call.call_id for call in facts.open_calls] or ["none"]
    client = [call.call_id for call in facts.open_calls if call.is_client]
    delegated = [call.call_id for call in facts.open_calls if call.is_delegated]
    helper = HelperAnswer(chat_id="h", version=1, head="7" * 64, owes=choice % 4 == 1)
    queued = [item.id for item in facts.queue] or ["none"]
    call_id = ids[choice % len(ids)]
    return {
        "worker": "w",
        "profile": facts.profile,
        "parts": (TextPart(text="hi"),),
        "when_busy": "interrupt" if choice == 0 else "queue",
        "client_id": f"k{facts.version}",
        "content_digest": "d",
        "results": tuple(ToolResult(name, choice) for name in (delegated[:1] if helper else client)),
        "helpers": (helper,) if delegated and choice % 2 else (),
        "cut": Cut(position=1, first_removed=life.first, boundary=0, foldable=0, history_version=facts.history_version),
        "queued_id": queued[choice % len(queued)],
        "reply": Reply(parts=parts, calls=planned, context_tokens=choice * 200),
        "partial": Partial(step=facts.step.number, attempt=facts.step.attempt, parts=parts, calls=planned)
        if facts.step.attempt_open and names.isdisjoint(call.call_id for call in planned)
        else None,
        "call_id": call_id,
        "outcome": CallOutcome(call_id=call_id, status=CallStatus.failed, output=1, is_error=True),
        "summary": _summary("short"),
        "error": ERROR,
        "delay": 1.0,
        "retry_at": life.now,
        "title": "t",
        "metadata": {},
        "erasing": Erasing(messages=(_blank(life.first),)),
    }


def test_the_rich_life_is_rich() -> None:
    """The tests below are worth what this log passes through."""
    assert {record.trigger for record in LOG} == {*Trigger}
    assert {record.target for record in LOG} == {*ChatState}


@pytest.mark.parametrize("length", range(1, len(LOG)))
def test_every_beginning_of_a_log_verifies(length: int) -> None:
    assert verify_records(LOG[:length]).ok


@unhurried
@given(VERSIONS, st.sampled_from([field.name for field in dataclasses.fields(AuditRecord)]), st.data())
def test_a_changed_field_is_found_where_it_stands(version: int, name: str, data: st.DataObject) -> None:
    fields = json.loads(to_json(LOG[version - 1]))
    junk = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.text()))
    fields[name] = data.draw(junk.filter(lambda value: (value, type(value)) != (fields[name], type(fields[name]))))
    lines = TEXT.splitlines()
    lines[version] = json.dumps(fields)
    assert verify_export("\n".join(lines)).position == version


@pytest.mark.parametrize("forged", ["", "he said so"])
def test_a_reason_that_no_hash_covers_is_found_where_it_stands(forged: str) -> None:
    told = [record.version for record in LOG if any(write.kind == "reason" for write in record.writes)]
    assert told
    for version in told:
        lines = TEXT.splitlines()
        lines[version] = json.dumps(json.loads(lines[version]) | {"reason": forged})
        verdict = verify_export("\n".join(lines))
        assert (verdict.position, verdict.ok) == (version, False)


@unhurried
@given(st.sampled_from([record for record in LOG if record.writes]), st.sampled_from(WriteRecord._fields), st.text())
def test_a_changed_write_is_found_where_it_stands(record: AuditRecord, name: str, junk: str) -> None:
    changed = record.writes[-1]._replace(**{name: junk})
    assume(changed != record.writes[-1])
    forged = [*LOG]
    forged[record.version - 1] = dataclasses.replace(record, writes=(*record.writes[:-1], changed))
    assert verify_records(forged).position == record.version


@unhurried
@given(VERSIONS)
def test_a_field_that_is_missing_extra_or_doubled_is_found(version: int) -> None:
    lines = TEXT.splitlines()
    line = lines[version]
    for changed in (line.replace('"actor":"system",', ""), '{"more":1,' + line[1:], '{"actor":"system",' + line[1:]):
        forged = [*lines[:version], changed, *lines[version + 1 :]]
        assert verify_export("\n".join(forged)).position == version


@unhurried
@given(VERSIONS)
def test_a_dropped_record_is_found_where_it_is_missing(version: int) -> None:
    lines = TEXT.splitlines()
    del lines[version]
    assert verify_export("\n".join(lines)).position == version


@unhurried
@given(VERSIONS)
def test_a_doubled_record_is_found_at_its_second_place(version: int) -> None:
    lines = TEXT.splitlines()
    lines.insert(version, lines[version])
    assert verify_export("\n".join(lines)).position == version + 1


@unhurried
@given(VERSIONS, VERSIONS)
def test_swapped_records_are_found_at_the_earlier_place(one: int, other: int) -> None:
    lines = TEXT.splitlines()
    lines[one], lines[other] = lines[other], lines[one]
    assert verify_export("\n".join(lines)).position == (None if one == other else min(one, other))


@unhurried
@given(st.integers(0, len(LOG) - 1), st.booleans())
def test_a_cut_tail_is_found_at_the_first_missing_version(kept: int, checkpoint: bool) -> None:  # noqa: FBT001
    lines = TEXT.splitlines()
    forged = [*lines[: kept + 1], *(lines[-1:] if checkpoint else [])]
    assert verify_export("\n".join(forged)).position == kept + 1


@unhurried
@given(st.integers(0, len(TEXT) - 2))
def test_a_text_cut_anywhere_is_found(length: int) -> None:
    assert not verify_export(TEXT[:length]).ok


def test_a_removed_checkpoint_is_found_after_the_last_record() -> None:
    verdict = verify_export("\n".join(TEXT.splitlines()[:-1]))
    assert verdict.position == len(LOG) + 1
    assert "checkpoint" in str(verdict.problem)


def test_a_checkpoint_with_another_head_is_found_at_the_last_record() -> None:
    assert verify_export(TEXT.replace(f'"head": "{LOG[-1].hash}"', f'"head": "{GENESIS}"')).position == len(LOG)


@unhurried
@given(st.text() | st.binary().map(lambda junk: junk.decode("latin-1")))
def test_no_text_raises(text: str) -> None:
    assert not verify_export(text).ok


@unhurried
@given(
    st.recursive(
        st.none() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.integers(0, len(LOG) + 1),
)
def test_no_line_of_json_raises(value: Any, place: int) -> None:
    lines = TEXT.splitlines()
    lines[place] = json.dumps(value)
    assert not verify_export("\n".join(lines)).ok


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"version":' + "9" * 5000 + "}",
        '{"version":NaN}',
        '{"version":1e999}',
        '"\\ud800"',
        "{}",
        "\ud800",
    ],
)
@pytest.mark.parametrize("place", [0, 3, len(LOG) + 1])
def test_no_hostile_line_raises(line: str, place: int) -> None:
    lines = TEXT.splitlines()
    lines[place] = line
    assert verify_export("\n".join(lines)).position == place


def test_a_lone_surrogate_in_a_field_is_a_finding() -> None:
    lines = TEXT.splitlines()
    lines[3] = lines[3].replace('"reason":null', '"reason":"\\ud800"')
    assert verify_export("\n".join(lines)).position == 3


def test_an_empty_log_lacks_version_one() -> None:
    assert verify_export(export("chat-1", [])).position == 1
    assert verify_records([]).position == 1


def test_the_log_of_another_chat_is_found_at_its_first_record() -> None:
    assert verify_export(export("chat-2", LOG)).position == 1


def test_another_format_is_found_at_the_header() -> None:
    assert verify_export(TEXT.replace("turnwise-audit/1", "turnwise-audit/9")).position == 0


# Signatures


def test_a_signed_log_verifies_with_its_key_and_without() -> None:
    text = export("chat-1", LOG, key=b"secret")
    assert verify_export(text, key=b"secret").ok
    assert verify_export(text).ok


def test_a_key_demands_a_signature() -> None:
    verdict = verify_export(TEXT, key=b"secret")
    assert verdict.position == len(LOG) + 1
    assert "not signed" in str(verdict.problem)


def test_a_signature_by_another_key_is_refused() -> None:
    """Without the key nobody can cut a log and write a fitting checkpoint."""
    assert verify_export(export("chat-1", LOG[:-1], key=b"other"), key=b"secret").position == len(LOG)


@pytest.mark.parametrize("signature", [5, "", "\u00e9", "\ud800", ["x"]])
def test_a_signature_of_the_wrong_kind_is_refused(signature: object) -> None:
    lines = TEXT.splitlines()
    lines[-1] = json.dumps({**json.loads(lines[-1]), "signature": signature})
    assert not verify_export("\n".join(lines), key=b"secret").ok


# Forgeries: the whole chain is hashed anew, so only the table and the invariants can tell


@unhurried
@given(
    VERSIONS,
    st.sampled_from([*Trigger]),
    st.sampled_from([None, "new", "dreaming", *ChatState]),
    st.sampled_from([*ChatState]),
)
def test_no_transition_outside_the_table_passes(
    version: int, trigger: Trigger, source: str | None, target: ChatState
) -> None:
    rows = {(str(row.trigger), str(row.source), str(row.target)) for row in TABLE}
    place = "new" if source is None else source if source in {*ChatState} else "unknown"
    verdict = _forged(version - 1, trigger=trigger, source=source, target=target)
    if (trigger, place, target) not in rows:
        assert verdict.position == version


@pytest.mark.parametrize("other", ChatState)
def test_a_forged_target_is_found(other: ChatState) -> None:
    """Where the table has no such row, at the record itself; else where the life cannot go on from there."""
    rows = {(row.trigger, row.source, row.target) for row in TABLE}
    for record in LOG[:-1]:
        if record.target == other:
            continue
        verdict = _forged(record.version - 1, target=other)
        place = record.source if record.source in {*ChatState} else "new" if record.source is None else "unknown"
        if (record.trigger, place, other) in rows:
            assert verdict.position in (record.version, record.version + 1), record
        else:
            assert verdict.position == record.version, record
            assert "the table leads to" in str(verdict.problem)


@unhurried
@given(VERSIONS, st.sampled_from(["turn", "step", "attempt"]), st.sampled_from([-1, 2, 10**30]))
def test_a_jump_of_turn_step_or_attempt_is_found(version: int, name: str, by: int) -> None:
    record = LOG[version - 1]
    verdict = _forged(version - 1, **{name: getattr(record, name) + by})
    assert not verdict.ok
    assert verdict.position in (version, version + 1)


def test_a_requested_compaction_that_begins_no_step_is_found() -> None:
    """Only a claim may go on with a step or begin one; the forger must not be able to move the beginning there."""
    asked = next(record for record in LOG if record.trigger == "request_compaction")
    assert not _forged(asked.version - 1, step=asked.step - 1).ok


def test_a_log_begins_with_create() -> None:
    verdict = verify_records(_rehashed([dataclasses.replace(LOG[_find(T.repaired)])]))
    assert verdict.position == 1
    assert "begins with create" in str(verdict.problem)


FORGERIES: dict[str, tuple[Callable[[], Verdict], int, str]] = {
    "a second boundary in one compaction": (
        lambda: _with_write(_find(T.compacted), "boundary:compaction", str(LOG[_find(T.compacted) - 1].step)),
        _find(T.compacted),
        "2 writes boundary:compaction",
    ),
    "a boundary outside a compaction": (
        lambda: _with_write(_find(T.step_finished), "boundary:compaction", "1"),
        _find(T.step_finished),
        "belongs to another trigger",
    ),
    "a second result of a call": (
        lambda: _with_write(_find(T.tools_finished), "call:succeeded", "c1"),
        _find(T.tools_finished),
        "has its result already",
    ),
    "a result without its message": (
        lambda: _with_write(_find(T.call_started), "call:failed", "c1"),
        _find(T.call_started),
        "without the message",
    ),
    "a result of a call never planned": (
        lambda: _with_write(_find(T.tools_finished), "call:succeeded", "c99"),
        _find(T.tools_finished),
        "never planned",
    ),
    "a start of a call that has its result": (
        lambda: _forged(_find(T.call_started, last=True), writes=(WriteRecord("call:started", "c1", "0" * 64),)),
        _find(T.call_started, last=True),
        "has its result already",
    ),
    "a start of a client's call": (
        lambda: _forged(_find(T.call_started), writes=(WriteRecord("call:started", "c3", "0" * 64),)),
        _find(T.call_started),
        "answered by the client",
    ),
    "an answer of a helper that nobody is": (
        lambda: _forged(_answer(), writes=tuple(write for write in LOG[_answer()].writes if write.kind != "helper")),
        _answer(),
        "the client answers call 'h1'",
    ),
    "a helper that answers nothing": (
        lambda: _with_write(_find(T.call_started), "helper", "h:3"),
        _find(T.call_started),
        "who answers one call",
    ),
    "a start with other arguments": (
        lambda: _forged(_find(T.call_started), writes=(WriteRecord("call:started", "c2", "0" * 64),)),
        _find(T.call_started),
        "other arguments",
    ),
    "a call planned twice": (
        lambda: _with_write(_find(T.call_started), "call:planned:at_most_once", "c1"),
        _find(T.call_started),
        "planned already",
    ),
    "a call planned after its result": (
        lambda: _with_write(_find(T.submit_tool_results), "call:planned:client", "c1"),
        _find(T.submit_tool_results),
        "nothing comes after",
    ),
    "a lease token used twice": (
        lambda: _forged(_find(T.claimed, last=True), writes=(WriteRecord("lease", "1", "0" * 64),)),
        _find(T.claimed, last=True),
        "tokens only rise",
    ),
    "a token that is no number": (
        lambda: _forged(_find(T.claimed), writes=(WriteRecord("lease", "9" * 5000, "0" * 64),)),
        _find(T.claimed),
        "tokens only rise",
    ),
    "a second lease beside a live one": (
        lambda: _with_write(_find(T.attempt_started), "lease", "77"),
        _find(T.attempt_started),
        "at most one live lease",
    ),
    "an end of a lease nobody holds": (
        lambda: _with_write(_find(T.send_message), "lease:dropped", "1"),
        _find(T.send_message),
        "the live one is None",
    ),
    "work without a lease": (
        lambda: _forged(_find(T.claimed), writes=()),
        _find(T.claimed),
        "demands a live lease",
    ),
    "rest with a lease": (
        lambda: _forged(_find(T.failed), writes=()),
        _find(T.failed),
        "allows no lease",
    ),
    "a message id given twice": (
        lambda: _with_write(_find(T.send_message), "message", "m1"),
        _find(T.send_message),
        "given once",
    ),
    "a message taken past the head of the queue": (
        lambda: _with_write(_find(T.claimed), "dequeue:taken", "m1"),
        _find(T.claimed),
        "not the head",
    ),
    "a deletion of what does not wait": (
        lambda: _with_write(_find(T.claimed), "dequeue:deleted", "m1"),
        _find(T.claimed),
        "does not wait",
    ),
    "a queued message that was said": (
        lambda: _with_write(_find(T.claimed), "enqueue", "m1"),
        _find(T.claimed),
        "cannot be queued",
    ),
    "a client's message accepted twice": (
        lambda: _with_write(_find(T.send_message, last=True), "receipt", "look around"),
        _find(T.send_message, last=True),
        "accepted once",
    ),
    "an edit of a message that is gone": (
        lambda: _forged(
            _find(T.edit_message),
            writes=(WriteRecord("cut", "m999", "0" * 64), *LOG[_find(T.edit_message)].writes[1:]),
        ),
        _find(T.edit_message),
        "not in it",
    ),
    "a write of an unknown kind": (
        lambda: _with_write(_find(T.claimed), "graffiti", "m1"),
        _find(T.claimed),
        "no write of kind",
    ),
    "an erasure of what was never said": (
        lambda: _forged(_find(T.message_erased), writes=(WriteRecord("erase", "m999", "0" * 64),)),
        _find(T.message_erased),
        "never in the history",
    ),
    "a boundary of another step": (
        lambda: _forged(_find(T.clear_context), writes=(WriteRecord("boundary:clear", "1", "0" * 64),)),
        _find(T.clear_context),
        "names step '1'",
    ),
    "a queued message that never entered the history": (
        lambda: _forged(
            _taking(), writes=tuple(write for write in LOG[_taking()].writes if write.kind == "dequeue:taken")
        ),
        _taking(),
        "did not enter the history",
    ),
    "a queue in a new order that forgets a message": (
        lambda: _forged(_find(T.promote_queued), writes=()),
        _find(T.promote_queued) + 1,
        "not the head of the queue",
    ),
    "a turn begun in the middle of a step": (
        lambda: _forged(_find(T.attempt_started), turn=2),
        _find(T.attempt_started),
        "turn, step and attempt",
    ),
    "a transition of an archived chat": (
        lambda: verify_records(_rehashed([*LOG[: _find(T.archived) + 1], *LOG[_find(T.unarchived) + 1 :]])),
        _find(T.archived) + 1,
        "archived",
    ),
    "an answered client call left open": (
        lambda: _forged(_find(T.submit_tool_results), writes=()),
        _find(T.submit_tool_results),
        "the client call 'c3' has no result",
    ),
    "a local call left open": (
        lambda: verify_records(_rehashed([*LOG[: _find(T.tools_finished) - 2], *LOG[_find(T.tools_finished) :]])),
        _find(T.tools_finished) - 2,
        "the local call 'c1' has no result",
    ),
    "a started call not given up after a crash": (
        lambda: _forged(_find(T.lease_expired), writes=LOG[_find(T.lease_expired)].writes[-1:]),
        _find(T.lease_expired),
        "must end `unknown`",
    ),
    "an at-most-once call started again": (
        lambda: verify_records(
            _rehashed(
                [*LOG[: _find(T.call_started) + 1], LOG[_find(T.call_started)], *LOG[_find(T.call_started) + 1 :]]
            )
        ),
        _find(T.call_started) + 1,
        "at most once",
    ),
    "an approval of a call that nobody was asked about": (
        lambda: _with_write(_find(T.call_started), "call:approved:at_most_once", "c1"),
        _find(T.call_started),
        "did not wait for the client",
    ),
    "a deadline for a local call": (
        lambda: _with_write(_find(T.call_started), "deadline", "c1"),
        _find(T.call_started),
        "but is not the client's",
    ),
    "an erasure of what never waited": (
        lambda: _forged(_find(T.message_erased), writes=(WriteRecord("erase:queued", "m999", "0" * 64),)),
        _find(T.message_erased),
        "never waited",
    ),
    "an erasure that erases nothing": (
        lambda: _forged(_find(T.message_erased), writes=(WriteRecord("facts", "", "0" * 64),)),
        _find(T.message_erased),
        "it erases nothing",
    ),
    "an erasure that does something else, too": (
        lambda: _with_write(_find(T.message_erased), "usage", "1"),
        _find(T.message_erased),
        "a write usage belongs to another trigger",
    ),
    "a queue in a new order that names another message": (
        lambda: _forged(
            _find(T.promote_queued),
            writes=tuple(
                WriteRecord("enqueue", "m1", write.digest) if write.kind == "enqueue" else write
                for write in LOG[_find(T.promote_queued)].writes
            ),
        ),
        _find(T.promote_queued),
        "names not exactly the messages that wait",
    ),
    "a trigger that there is not": (
        lambda: _forged(_find(T.renamed), trigger="sing"),
        _find(T.renamed),
        "knows no such trigger",
    ),
    "a rest with a message that waits": (
        lambda: _with_write(_find(T.clear_context), "enqueue", "m500"),
        _find(T.clear_context),
        "waiting promises an empty queue",
    ),
    "a second compaction of a step": (lambda: verify_records(_rehashed(OVERFLOWED)), 6, "had its compaction"),
}


def test_every_reason_to_refuse_a_log_has_its_forgery() -> None:
    """The words of each refusal, as the source spells them, must be those of a forgery below, or of a test above."""
    source = "".join(inspect.getsource(module) for module in (check_transitions, check_writes))
    wanted = re.findall(r'_refuse\(\s*f?"([^"]*)"', source)
    problems = [str(forge().problem) for forge, _, _ in FORGERIES.values()]
    claims = [place for place, record in enumerate(LOG) if record.trigger == T.claimed]
    stays = {place: {"step": LOG[place - 1].step, "attempt": LOG[place - 1].attempt} for place in claims}
    problems += [
        str(_forged(_find(T.attempt_started), source=ChatState.waiting).problem),
        str(_forged(0, trigger=T.send_message).problem),
        str(_forged(_find(T.renamed), target=ChatState.pending).problem),
        str(_forged(_find(T.renamed), trigger=T.step_finished).problem),
        *(str(_forged(at, target=ChatState.executing_tools, **stays[at]).problem) for at in claims),
        *(str(_forged(at, target=ChatState.requires_action, writes=(), **stays[at]).problem) for at in claims),
    ]
    unseen = [
        words
        for words in wanted
        if not any(all(plain in problem for plain in re.split(r"\{[^}]*\}", words)) for problem in problems)
    ]
    assert len(wanted) > 40
    assert unseen == []


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_found_and_named(name: str) -> None:
    forge, place, words = FORGERIES[name]
    verdict = forge()
    assert verdict.position == place + 1
    assert words in str(verdict.problem)
    assert f"Version {place + 1}, " in str(verdict.problem)


def test_a_repair_may_start_from_a_state_the_log_never_led_to() -> None:
    """A repair is what turnwise does when the stored state is not what was committed."""
    place = _find(T.repaired)
    assert LOG[place].source == "dreaming"
    assert _forged(place, source=ChatState.compacting).ok


def test_a_record_read_back_verifies_like_the_one_written() -> None:
    assert verify_records([from_json(to_json(record)) for record in LOG]).ok


@unhurried
@given(VERSIONS)
def test_records_of_another_chat_are_no_part_of_a_log(version: int) -> None:
    """Even if they are chained to it: a life may not be told half of one chat and half of another."""
    records = [*LOG[: version - 1], *(dataclasses.replace(record, chat_id="chat-2") for record in LOG[version - 1 :])]
    verdict = verify_export(export("chat-1", _rehashed(records)))
    assert (verdict.ok, verdict.position) == (False, version)
    assert "chat-2" in (verdict.problem or "")
