"""The cost of storing a step does not depend on the chat's length; old messages are not rewritten.

Seen red: facts that remember every transition; a commit that writes every message of the chat again; a record that
names every message of the chat.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from support.life import USAGE, local
from support.lives import SLOW_STORES, StoredLife, Walk, lives_in
from support.sql_by_hand import by_hand
from turnwise.states.names import ChatState

pytestmark = pytest.mark.hypothesis
EARLY, LATE = range(2, 6), range(42, 46)


@pytest.mark.parametrize("place", SLOW_STORES)
def test_a_turn_writes_as_much_late_as_early(place: str, request: pytest.FixtureRequest) -> None:
    """Turns of one drawn shape write equally many bytes to the write-ahead log."""
    met = lives_in(place, request).each(live, sqlite=2, postgres=1, max_steps=None, queue_limit=3)
    assert met["turns"] >= 40 * {"sqlite": 2, "postgres": 1}[place]
    assert met["times as long"] >= 10


def live(walk: Walk) -> None:
    life, shape = walk.life, [walk.random.choice([0, 1, 3]) for _ in range(walk.random.randint(1, 2))]
    assert isinstance(life, StoredLife)
    lengths: list[int] = []
    written: dict[int, int] = {}
    stored: dict[int, int] = {}
    for number in range(LATE.stop):
        measured = number in (*EARLY, *LATE)
        before = (start_of(life), size_of(life.rows())) if measured else (0, 0)
        turn(life, shape)
        if measured:
            written[number], stored[number] = end_of(life) - before[0], size_of(life.rows()) - before[1]
        lengths.append(life.facts.history.length)
        walk.met["turns"] += 1
    for costs, more in ((written, 1.25), (stored, 1.1)):
        early, late = (statistics.median(costs[turn] for turn in turns) for turns in (EARLY, LATE))
        assert 0 < late <= more * early
    walk.met["times as long"] = max(walk.met["times as long"], lengths[LATE.start] // lengths[EARLY.start])


def turn(life: StoredLife, shape: list[int]) -> None:
    life.send("x" * 200)
    life.claim()
    for number, count in enumerate([*shape, 0]):
        name = f"c{life.facts.turn.number}-{number}"
        calls = [local(f"{name}-{index}", index) for index in range(count)]
        life.reply(*calls, text="y" * 200, usage=USAGE, tokens=10, window=1000)
        if life.facts.state is ChatState.executing_tools:
            life.run_tools()
        if life.facts.state is ChatState.waiting:
            return


def start_of(life: StoredLife) -> int:
    """Return the position of the write-ahead log; SQLite's is reset."""
    if life.database.url.startswith("sqlite"):
        life.do(by_hand(life.database.url, "PRAGMA wal_checkpoint(TRUNCATE)"))
    return end_of(life)


def end_of(life: StoredLife) -> int:
    url = life.database.url
    if url.startswith("sqlite"):
        return Path(url.removeprefix("sqlite:///") + "-wal").stat().st_size
    ((position,),) = life.do(by_hand(url, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))
    return int(position)


def size_of(rows: Any) -> int:
    return sum(len(repr(value)) for table in rows.values() for row in table for value in row.values())
