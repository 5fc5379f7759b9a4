"""What a store keeps of a record, and what of it a client can have erased."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import pytest
from msgspec.structs import replace

from support.life import NOW, Life
from turnwise.persistence.audit.asides import Aside
from turnwise.persistence.audit.record import (
    GENESIS,
    AuditRecord,
    Entry,
    entry_of,
    from_json,
    hash_of,
    log_of,
    record_in,
    to_json,
)
from turnwise.states.names import Trigger


def _entries(*, whole: bool = False) -> list[Entry]:
    """Keep a life of which a client stopped a turn, and said why."""
    life = Life()
    life.create()
    life.send()
    life.fire(Trigger.interrupt, reason="because I say so")
    entries: list[Entry] = []
    for decision in life.decisions:
        entries.append(entry_of(decision, prev=entries[-1].hash if entries else GENESIS, at=NOW, whole=whole))
    return entries


def test_the_first_record_follows_a_hash_of_zeros() -> None:
    assert len(GENESIS) == len(hashlib.sha256().hexdigest())
    assert set(GENESIS) == {"0"}
    assert log_of("c", _entries())[0].prev == GENESIS


def test_each_record_follows_the_one_before() -> None:
    log = log_of("c", _entries())
    assert [record.prev for record in log[1:]] == [record.hash for record in log[:-1]]
    assert [record.hash for record in log] == [entry.hash for entry in _entries()] == [hash_of(one) for one in log]
    assert [record.version for record in log] == [1, 2, 3]


def test_a_store_keeps_of_a_record_what_its_row_does_not_say_unless_it_asks_for_the_whole() -> None:
    short, whole = _entries(), _entries(whole=True)
    for one, other in zip(short, whole, strict=True):
        assert one.hash == other.hash
        assert json.loads(one.body).keys() == json.loads(other.body).keys() - {"chat_id", "version", "prev", "hash"}
        assert from_json(other.body) == dataclasses.replace(
            record_in(one, "c", prev=from_json(other.body).prev), reason=None
        )


def test_a_reason_is_beside_the_record_and_in_no_export_of_it() -> None:
    entries = _entries()
    stopped = log_of("c", entries)[-1]
    assert stopped.reason == "because I say so"
    assert "because" not in entries[-1].body
    assert "because" in str(entries[-1].aside)
    assert "because" not in to_json(stopped)
    assert hash_of(stopped) == hash_of(dataclasses.replace(stopped, reason=None)) == stopped.hash
    erased = record_in(entries[-1]._replace(aside=Aside().dump()), "c", prev=stopped.prev)
    assert (erased.reason, erased.hash) == (None, stopped.hash)


def test_turnwise_own_words_stand_in_the_record() -> None:
    log = log_of("c", _entries())
    told = dataclasses.replace(log[1], reason="the worker stopped")
    assert json.loads(to_json(told))["reason"] == "the worker stopped"
    assert hash_of(told) != log[1].hash


@pytest.mark.parametrize("actor", ["gr\u00fc\u00dfe", "\u2028", "plain", "\U0001f600"])
def test_a_record_is_one_line_of_canonical_ascii(actor: str) -> None:
    record: AuditRecord = dataclasses.replace(log_of("c", _entries())[1], actor=actor)
    line = to_json(record)
    assert line.isascii()
    fields = json.loads(line)
    assert [*fields] == sorted(fields)
    assert ", " not in line.replace(actor, "")
    assert from_json(line) == record


def test_a_number_that_is_out_of_all_bounds_has_a_hash_too() -> None:
    """A forged record is refused by its hash, not by an error of whoever computes it."""
    forged = dataclasses.replace(log_of("c", _entries())[1], version=2**80)
    assert len(hash_of(forged)) == len(GENESIS)


def test_a_reason_without_a_write_of_its_own_is_turnwises_and_one_among_other_writes_is_not() -> None:
    life = Life()
    created, said = life.create(), life.send()
    stopped = life.fire(Trigger.interrupt, reason="because I say so")
    bare = entry_of(replace(said, writes=(), reason="the worker stopped"), prev=GENESIS, at=NOW)
    assert json.loads(bare.body)["reason"] == "the worker stopped"
    assert "chat_id" not in json.loads(bare.body)
    (record,) = log_of("c", [bare])
    assert json.loads(to_json(record))["reason"] == "the worker stopped"
    many = replace(stopped, writes=(*created.writes, *stopped.writes))
    entry = entry_of(many, prev=GENESIS, at=NOW)
    assert json.loads(entry.body)["reason"] is None
    assert json.loads(to_json(record_in(entry, "c", prev=GENESIS)))["reason"] is None
