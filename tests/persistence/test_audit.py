"""The audit record: its hash, its one line of JSON, and the export that carries a log out."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from turnwise.persistence.audit.record import (
    FORMAT,
    GENESIS,
    AuditRecord,
    WriteRecord,
    entry_of,
    export,
    from_json,
    hash_of,
    log_of,
    object_of,
    to_json,
)
from turnwise.states.decide import Decision, decide
from turnwise.states.facts import Facts, Limits, Profile
from turnwise.states.messages import TextPart
from turnwise.states.names import Trigger

AT = datetime(2026, 11, 21, 9, 30, 0, 5, tzinfo=UTC)


def _created() -> Decision:
    blank = Facts(chat_id="chat-1", profile=Profile(created_at=AT))
    profile = Profile(created_at=AT, title="A talk")
    return decide(blank, Trigger.create, now=AT, limits=Limits(), profile=profile, actor="anna")


def record_of(decision: Decision, *, prev: str, at: datetime = AT) -> AuditRecord:
    return from_json(entry_of(decision, prev=prev, at=at, whole=True).body)


def _log() -> list[AuditRecord]:
    created = _created()
    said = decide(
        created.facts,
        Trigger.send_message,
        now=AT,
        limits=Limits(),
        parts=(TextPart(text="Hello"),),
        reason="gr\u00fc\u00dfe,\u2028or hi",
    )
    first = record_of(created, prev=GENESIS)
    return [first, record_of(said, prev=first.hash)]


def test_a_store_may_keep_of_a_record_what_its_row_does_not_say() -> None:
    created = _created()
    (record,) = log_of("chat-1", [entry_of(created, prev=GENESIS, at=AT)])
    assert record == record_of(created, prev=GENESIS)


def test_a_record_says_what_was_decided() -> None:
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


def test_the_hash_is_what_the_contract_says() -> None:
    """Anyone can check a log with a JSON parser and SHA-256, without turnwise."""
    for record in _log():
        fields = json.loads(to_json(record))
        found = fields.pop("hash")
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert found == hashlib.sha256(f"{fields['prev']}\n{text}".encode()).hexdigest()


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(AuditRecord) if field.name != "hash"])
def test_the_hash_covers_every_other_field(field: str) -> None:
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


def test_a_record_survives_its_json() -> None:
    for record in _log():
        line = to_json(record)
        assert from_json(line) == record
        assert line.isascii()
        assert line.splitlines() == [line]


def test_a_time_is_spelled_in_utc() -> None:
    record_of(_created(), prev=GENESIS, at=AT + timedelta(days=1))  # the last spelling is kept, for all equal times
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
def test_what_is_no_record_is_refused_with_what_was_found(field: str, value: object, words: str) -> None:
    fields = {**json.loads(to_json(_log()[0])), field: value}
    with pytest.raises(ValueError, match=r".") as refused:
        from_json(json.dumps(fields))
    assert words in str(refused.value)


@pytest.mark.parametrize("text", ["", "null", "[]", "{", '{"a":1,"a":2}', '{"a":NaN}', "[" * 100_000])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|Expecting|nested"):
        from_json(text)


@pytest.mark.parametrize("text", ['{"a": "\\ud800"}', '{"\\uDFFF": 1}', '{"a": "\ud800"}'])
def test_half_a_character_is_refused_however_it_is_spelled(text: str) -> None:
    """No digest of it could be computed."""
    with pytest.raises(ValueError, match="surrogate"):
        object_of(text)
    assert object_of('{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


def test_an_export_is_header_records_and_checkpoint() -> None:
    log = _log()
    header, *records, checkpoint = export("chat-1", log).splitlines()
    assert json.loads(header) == {"format": FORMAT, "chat_id": "chat-1"}
    assert [from_json(line) for line in records] == log
    assert json.loads(checkpoint) == {"count": 2, "head": log[-1].hash}


def test_a_signature_is_an_hmac_over_what_the_checkpoint_closes() -> None:
    log = _log()
    checkpoint = json.loads(export("chat-1", log, key=b"secret").splitlines()[-1])
    signed = f'{{"chat_id":"chat-1","count":2,"format":"{FORMAT}","head":"{log[-1].hash}"}}'
    assert checkpoint["signature"] == hmac.new(b"secret", signed.encode(), "sha256").hexdigest()
