"""A valid log verifies, and no single change goes unnoticed, even if the whole chain is rehashed."""

import dataclasses
import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.life import NOW, Life
from support.logged_life import LOG, TEXT, forgery, place_of, rehashed
from turnwise.persistence.audit.digests import Aside, WriteRecord
from turnwise.persistence.audit.record import (
    FORMAT,
    GENESIS,
    AuditRecord,
    Entry,
    entry_of,
    export,
    from_json,
    hash_of,
    log_of,
    object_of,
    record_in,
    to_json,
)
from turnwise.persistence.audit.verify import Verdict, verify_export, verify_records
from turnwise.states import triggers as t
from turnwise.states.decide import Decision, decide
from turnwise.states.facts import Facts, Limits, Profile
from turnwise.states.messages import TextPart
from turnwise.states.names import ChatState
from turnwise.states.table import TABLE
from turnwise.states.triggers import TRIGGERS

unhurried = settings(deadline=None)
VERSIONS = st.integers(1, len(LOG))


def _forged(place: int, **changes: Any) -> Verdict:
    """Change one record, rehash the chain, and verify."""
    return verify_export(forgery(place, **changes))


def test_a_rich_life_verifies() -> None:
    assert verify_export(TEXT) == Verdict(ok=True)
    assert verify_records(LOG) == Verdict(ok=True)


@unhurried
@given(VERSIONS, st.sampled_from([field.name for field in dataclasses.fields(AuditRecord)]), st.data())
def test_changed_field_is_found(version: int, name: str, data: st.DataObject) -> None:
    fields = json.loads(to_json(LOG[version - 1]))
    junk = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.text()))
    fields[name] = data.draw(junk.filter(lambda value: (value, type(value)) != (fields[name], type(fields[name]))))
    lines = TEXT.splitlines()
    lines[version] = json.dumps(fields)
    assert verify_export("\n".join(lines)).position == version


@pytest.mark.parametrize("forged", ["", "he said so"])
def test_uncovered_reason_is_found(forged: str) -> None:
    versions = [record.version for record in LOG if any(write.kind == "reason" for write in record.writes)]
    assert versions
    for version in versions:
        lines = TEXT.splitlines()
        lines[version] = json.dumps(json.loads(lines[version]) | {"reason": forged})
        verdict = verify_export("\n".join(lines))
        assert (verdict.position, verdict.ok) == (version, False)


@unhurried
@given(VERSIONS)
def test_dropped_record_is_found(version: int) -> None:
    lines = TEXT.splitlines()
    del lines[version]
    assert verify_export("\n".join(lines)).position == version


@unhurried
@given(VERSIONS, VERSIONS)
def test_swapped_records_are_found(one: int, other: int) -> None:
    lines = TEXT.splitlines()
    lines[one], lines[other] = lines[other], lines[one]
    assert verify_export("\n".join(lines)).position == (None if one == other else min(one, other))


@unhurried
@given(st.integers(0, len(LOG) - 1), st.booleans())
def test_cut_tail_is_found(length: int, checkpoint: bool) -> None:
    lines = TEXT.splitlines()
    forged = [*lines[: length + 1], *(lines[-1:] if checkpoint else [])]
    assert verify_export("\n".join(forged)).position == length + 1


def test_checkpoint_with_another_head_is_found() -> None:
    assert verify_export(TEXT.replace(f'"head": "{LOG[-1].hash}"', f'"head": "{GENESIS}"')).position == len(LOG)


@unhurried
@given(st.text() | st.binary().map(lambda junk: junk.decode("latin-1")))
def test_verify_never_raises_on_any_text(text: str) -> None:
    assert not verify_export(text).ok


def test_unknown_format_is_found() -> None:
    assert verify_export(TEXT.replace("turnwise-audit/1", "turnwise-audit/9")).position == 0


# Signatures


def test_signed_log_verifies_with_and_without_key() -> None:
    text = export("chat-1", LOG, key=b"secret")
    assert verify_export(text, key=b"secret").ok
    assert verify_export(text).ok


def test_key_requires_a_signature() -> None:
    verdict = verify_export(TEXT, key=b"secret")
    assert verdict.position == len(LOG) + 1
    assert "not signed" in str(verdict.problem)


def test_signature_by_another_key_is_refused() -> None:
    """A log cannot be truncated with a matching checkpoint unless the key is known."""
    assert verify_export(export("chat-1", LOG[:-1], key=b"other"), key=b"secret").position == len(LOG)


@pytest.mark.parametrize("signature", [5, "", "\u00e9", "\ud800", ["x"]])
def test_invalid_signature_is_refused(signature: object) -> None:
    lines = TEXT.splitlines()
    lines[-1] = json.dumps({**json.loads(lines[-1]), "signature": signature})
    assert not verify_export("\n".join(lines), key=b"secret").ok


# Forgeries with a rehashed chain: only the table and the invariants can reveal them


@unhurried
@given(
    VERSIONS,
    st.sampled_from([*TRIGGERS]),
    st.sampled_from([None, "new", "dreaming", *ChatState]),
    st.sampled_from([*ChatState]),
)
def test_transition_outside_the_table_is_found(
    version: int, trigger: str, source: str | None, target: ChatState
) -> None:
    rows = {(row.trigger.name, str(row.source), str(row.target)) for row in TABLE}
    place = "new" if source is None else source if source in {*ChatState} else "unknown"
    verdict = _forged(version - 1, trigger=trigger, source=source, target=target)
    if (trigger, place, target) not in rows:
        assert verdict.position == version


def test_log_begins_with_create() -> None:
    verdict = verify_records(rehashed([dataclasses.replace(LOG[place_of(t.Repaired)])]))
    assert verdict.position == 1
    assert "begins with create" in str(verdict.problem)


def test_repair_may_start_from_any_state() -> None:
    """The product repairs a chat whose stored state differs from its committed one."""
    place = place_of(t.Repaired)
    assert LOG[place].source == "dreaming"
    assert _forged(place, source=ChatState.compacting).ok


@unhurried
@given(VERSIONS)
def test_records_of_another_chat_are_found(version: int) -> None:
    """Even if the chain includes them: a log must not mix two chats."""
    records = [*LOG[: version - 1], *(dataclasses.replace(record, chat_id="chat-2") for record in LOG[version - 1 :])]
    verdict = verify_export(export("chat-1", rehashed(records)))
    assert (verdict.ok, verdict.position) == (False, version)
    assert "chat-2" in (verdict.problem or "")


# The audit record: its hash, its one line of JSON, and the export that carries a log out


AT = datetime(2026, 11, 21, 9, 30, 0, 5, tzinfo=UTC)


def _created() -> Decision:
    blank = Facts(chat_id="chat-1", profile=Profile(created_at=AT))
    profile = Profile(created_at=AT, title="A talk")
    return decide(blank, t.Create, now=AT, limits=Limits(), profile=profile, actor="anna")


def record_of(decision: Decision, *, prev: str, at: datetime = AT) -> AuditRecord:
    return record_in(entry_of(decision, prev=prev, at=at), decision.facts.chat_id, prev=prev)


def _log() -> list[AuditRecord]:
    created = _created()
    sent = decide(
        created.facts,
        t.SendMessage,
        now=AT,
        limits=Limits(),
        parts=(TextPart(text="Hello"),),
        reason="gr\u00fc\u00dfe,\u2028or hi",
    )
    first = record_of(created, prev=GENESIS)
    return [first, record_of(sent, prev=first.hash)]


def test_record_holds_the_decision() -> None:
    created = _created()
    record = record_of(created, prev=GENESIS)
    (write,) = created.writes
    assert record == AuditRecord(
        chat_id="chat-1",
        version=1,
        trigger="create",
        source=None,
        target="waiting",
        actor="anna",
        reason=None,
        turn=0,
        step=0,
        attempt=0,
        writes=(WriteRecord("profile", "", write.digest),),
        at=AT,
        prev=GENESIS,
        hash=record.hash,
    )


def test_hash_follows_the_documented_format() -> None:
    """Any JSON parser with SHA-256 can check a log, without turnwise."""
    for record in _log():
        fields = json.loads(to_json(record))
        found = fields.pop("hash")
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert found == hashlib.sha256(f"{fields['prev']}\n{text}".encode()).hexdigest()


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(AuditRecord) if field.name != "hash"])
def test_hash_covers_every_other_field(field: str) -> None:
    record = _log()[1]
    other: Any = {
        "version": 9,
        "turn": 9,
        "step": 9,
        "attempt": 9,
        "writes": (),
        "at": AT + timedelta(microseconds=1),
    }.get(field, "x")
    assert hash_of(dataclasses.replace(record, **{field: other})) != record.hash
    assert hash_of(dataclasses.replace(record, hash="x")) == record.hash


def test_record_survives_json() -> None:
    for record in _log():
        line = to_json(record)
        assert from_json(line) == record
        assert line.isascii()
        assert line.splitlines() == [line]


def test_times_are_spelled_in_utc() -> None:
    record_of(_created(), prev=GENESIS, at=AT + timedelta(days=1))  # the last spelling wins, for all equal times
    elsewhere = AT.astimezone(timezone(timedelta(hours=2)))
    record = record_of(_created(), prev=GENESIS, at=elsewhere)
    assert json.loads(to_json(record))["at"] == "2026-11-21T09:30:00.000005+00:00"
    assert record.hash == record_of(_created(), prev=GENESIS, at=AT).hash


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("version", True, "version holds a truth value, where an integer belongs"),
        ("version", 1.0, "version holds a fraction"),
        ("version", -1, f"where a number from 0 to {2**53 - 1} belongs"),
        ("step", 2**53, f"step holds {2**53}, where a number from 0 to {2**53 - 1} belongs"),
        ("source", 5, "source holds an integer, where a string or null belongs"),
        ("writes", {}, "writes holds an object, where an array belongs"),
        ("writes", [[]], "a write is an array"),
        ("writes", [{"kind": "lease"}], "lacks the fields ['digest', 'id']"),
        ("writes", [{"kind": "lease", "id": 1, "digest": ""}], "id of a write holds an integer"),
        ("at", "yesterday", "isoformat"),
        ("at", "2026-11-21T09:30:00", "not spelled as ISO 8601 in UTC"),
        ("at", "2026-11-21T09:30:00Z", "not spelled as ISO 8601 in UTC"),
        ("more", 1, "has ['more'], which do not belong"),
    ],
)
def test_invalid_record_is_refused(field: str, value: object, words: str) -> None:
    fields = {**json.loads(to_json(_log()[0])), field: value}
    with pytest.raises(ValueError, match=r".") as refused:
        from_json(json.dumps(fields))
    assert words in str(refused.value)


@pytest.mark.parametrize("text", ["", "null", "[]", "{", '{"a":1,"a":2}', '{"a":NaN}', "[" * 100_000])
def test_invalid_json_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|Expecting|nested"):
        from_json(text)


@pytest.mark.parametrize("text", ['{"a": "\\ud800"}', '{"\\uDFFF": 1}', '{"a": "\ud800"}'])
def test_lone_surrogate_is_refused(text: str) -> None:
    """It has no digest."""
    with pytest.raises(ValueError, match="surrogate"):
        object_of(text)
    assert object_of('{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


def test_export_has_header_records_and_checkpoint() -> None:
    log = _log()
    header, *records, checkpoint = export("chat-1", log).splitlines()
    assert json.loads(header) == {"format": FORMAT, "chat_id": "chat-1"}
    assert [from_json(line) for line in records] == log
    assert json.loads(checkpoint) == {"count": 2, "head": log[-1].hash}


def test_signature_is_an_hmac_over_the_checkpoint() -> None:
    log = _log()
    checkpoint = json.loads(export("chat-1", log, key=b"secret").splitlines()[-1])
    signed = f'{{"chat_id":"chat-1","count":2,"format":"{FORMAT}","head":"{log[-1].hash}"}}'
    assert checkpoint["signature"] == hmac.new(b"secret", signed.encode(), "sha256").hexdigest()


def _entries() -> list[Entry]:
    """Export a life in which a client stopped a turn with a reason."""
    life = Life()
    life.create()
    life.send()
    life.fire(t.Interrupt, reason="because I say so")
    entries: list[Entry] = []
    for decision in life.decisions:
        entries.append(entry_of(decision, prev=entries[-1].hash if entries else GENESIS, at=NOW))
    return entries


def test_entry_omits_what_its_row_says() -> None:
    for entry, record in zip(_entries(), log_of("c", _entries()), strict=True):
        assert entry.hash == record.hash == hash_of(record)
        omitted = {"chat_id", "version", "prev", "hash"} | ({"reason"} if record.reason is None else set())
        assert omitted.isdisjoint(json.loads(entry.body))


def test_client_reason_is_never_exported() -> None:
    entries = _entries()
    stopped = log_of("c", entries)[-1]
    assert stopped.reason == "because I say so"
    assert "because" not in entries[-1].body
    assert "because" in str(entries[-1].aside)
    assert "because" not in to_json(stopped)
    assert hash_of(stopped) == hash_of(dataclasses.replace(stopped, reason=None)) == stopped.hash
    erased = record_in(entries[-1]._replace(aside=Aside().dump()), "c", prev=stopped.prev)
    assert (erased.reason, erased.hash) == (None, stopped.hash)


WHOLE = {"events": "0f", "reason": "because", "salt": "f0"}


@pytest.mark.parametrize("aside", [Aside(), Aside("0f", "because", "f0"), Aside("0f"), Aside(reason="grüße\n")])
def test_aside_round_trip(aside: Aside) -> None:
    assert Aside.load(aside.dump()) == aside


@pytest.mark.parametrize(
    "stored",
    [
        *("poison", "[]", "5", "null", '"text"'),
        json.dumps({**WHOLE, "more": ""}),
        *(json.dumps({**WHOLE, name: 5}) for name in WHOLE),
        *(json.dumps({**WHOLE, name: None}) for name in ("events", "salt")),
        *(5, b"{}", json.dumps(WHOLE).encode()),
    ],
)
def test_invalid_aside_is_refused(stored: Any) -> None:
    with pytest.raises(ValueError, match=r"belong|Expecting"):
        Aside.load(stored)
