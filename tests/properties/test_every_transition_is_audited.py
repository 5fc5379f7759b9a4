"""Every transition is in the audit log, hash-chained, and the log can be checked offline against the declared table.

Seen red: a hash that leaves out who acted; a transition that is committed without its record; a check that takes the
word of a record for the state before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from support.lives import STORES, StoredLife, Walk, lives_in
from support.logged_life import rehashed
from turnwise import verify_export
from turnwise.persistence.audit.digests import WriteRecord
from turnwise.persistence.audit.record import AuditRecord, export
from turnwise.persistence.audit.verify import verify_records, verify_stored
from turnwise.states.names import ChatState
from turnwise.states.table import TABLE, rows_of
from turnwise.states.triggers import TRIGGERS

pytestmark = pytest.mark.hypothesis
Lines = list[str]


@pytest.mark.parametrize("place", STORES)
def test_a_log_has_every_transition(place: str, request: pytest.FixtureRequest) -> None:
    """Each record matches its decision, and every change of the log is found."""
    met = lives_in(place, request).each(live, sqlite=25, postgres=6)
    least = {"sqlite": 50, "postgres": 10}[place]
    assert met["transitions"] >= 10 * least
    assert {name: met[name] for name in (*DAMAGES, "impossible") if met[name] < least} == {}


def live(walk: Walk) -> None:
    life = walk.life
    assert isinstance(life, StoredLife)
    walk.live(30)
    records = life.do(life.store.audit(life.chat_id))
    decided = [
        (one.trigger.name, one.source, one.target, one.actor, one.reason, one.facts.version) for one in life.decisions
    ]
    stored = [(one.trigger, one.source, one.target, one.actor, one.reason, one.version) for one in records]
    assert stored == decided
    assert life.do(life.store.head(life.chat_id)) == (len(records), records[-1].hash)
    assert verify_records(records).ok
    assert verify_stored(life.chat_id, life.do(life.store.rows(life.chat_id))).ok
    text = export(life.chat_id, records)
    assert verify_export(text).ok
    walk.met["transitions"] += len(records)
    for name, damage in DAMAGES.items():
        for _ in range(3):
            lines = text.splitlines()
            damage(lines, walk.random)
            assert "\n".join(lines) == text.strip() or not verify_export("\n".join(lines) + "\n").ok, name
            walk.met[name] += 1
    for _ in range(3):
        assert not verify_export(export(life.chat_id, rehashed(impossible(records, walk.random)))).ok
        walk.met["impossible"] += 1


def change(lines: Lines, random: Random) -> None:
    place = random.randrange(len(lines))
    fields = json.loads(lines[place])
    name = random.choice(sorted(fields))
    fields[name] = random.choice([7, "x", None, "waiting", "0" * 64, []])
    if json.loads(lines[place]) != fields:
        lines[place] = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def leave_out(lines: Lines, random: Random) -> None:
    del lines[random.randrange(len(lines))]


def repeat(lines: Lines, random: Random) -> None:
    place = random.randrange(len(lines))
    lines.insert(place, lines[place])


def swap(lines: Lines, random: Random) -> None:
    one, other = random.sample(range(len(lines)), 2)
    lines[one], lines[other] = lines[other], lines[one]


def cut(lines: Lines, random: Random) -> None:
    del lines[random.randrange(1, len(lines)) :]


DAMAGES: dict[str, Callable[[Lines, Random], None]] = {
    "changed": change,
    "left out": leave_out,
    "repeated": repeat,
    "swapped": swap,
    "cut": cut,
}


def impossible(records: list[AuditRecord], random: Random) -> list[AuditRecord]:
    """Return the log with an unknown target, another source, or a second result of a call."""
    forged: list[AuditRecord] = [*records]
    answers = [place for place, one in enumerate(records) if any(_is_result(write) for write in one.writes)]
    moved = [place for place, one in enumerate(records) if _other_sources(one)]
    way = random.choice(["target", "source" if moved else "target", "result" if answers else "target"])
    if way == "result":
        place = random.choice(answers)
        write = next(write for write in records[place].writes if _is_result(write))
        forged[place] = replace(records[place], writes=(*records[place].writes, write))
    elif way == "source":
        place = random.choice(moved)
        forged[place] = replace(records[place], source=random.choice(_other_sources(records[place])))
    else:
        record = records[-1]
        possible = {row.target for row in rows_of(TRIGGERS[record.trigger], record.source or "new")}
        forged[-1] = replace(record, target=random.choice([state for state in ChatState if state not in possible]))
    return forged


def _other_sources(record: AuditRecord) -> list[str]:
    """Return other sources from which the trigger leads to the same target."""
    return [
        str(row.source)
        for row in TABLE
        if (row.trigger, row.target) == (record.trigger, record.target) and row.source not in (record.source, "unknown")
    ]


def _is_result(write: WriteRecord) -> bool:
    known: Any = write.kind
    return str(known).startswith("call:") and str(known).split(":")[1] not in ("planned", "started")
