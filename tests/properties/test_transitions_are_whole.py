"""A transition is complete or did not happen: a commit that fails at any row leaves every row unchanged.

A tripwire in the database fails any statement that touches one table. Seen red: a commit without those of its events
that could not be stored; a transaction that is committed although its job has failed; a message that is skipped if its
row is refused.
"""

from __future__ import annotations

from typing import Any

import pytest

from support.lives import SLOW_STORES, NotClaimed, StoredLife, Walk, lives_in
from support.sql_by_hand import by_hand
from turnwise.states.errors import StoreError
from turnwise.testing.simulation.checks import problems_of

pytestmark = pytest.mark.hypothesis
TABLES = ("chats", "messages", "calls", "queue", "usage", "audit", "events", "boundaries")
"""Tables that a transition writes: state, messages, calls, queue, usage, audit record, events and boundaries."""
# A broken constraint would mark the chat as damaged.
IN_SQLITE = """CREATE TRIGGER {table}_{act} BEFORE {act} ON {table}
WHEN EXISTS (SELECT 1 FROM tripwire WHERE place = '{table}') BEGIN SELECT abs(-9223372036854775808); END"""
IN_POSTGRES = """CREATE FUNCTION trip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
IF EXISTS (SELECT 1 FROM tripwire WHERE place = TG_TABLE_NAME) THEN RAISE EXCEPTION 'integer overflow'; END IF;
IF TG_OP = 'DELETE' THEN RETURN OLD; END IF; RETURN NEW; END $$"""


@pytest.mark.parametrize("place", SLOW_STORES)
def test_a_failed_commit_leaves_nothing(place: str, request: pytest.FixtureRequest) -> None:
    lives = lives_in(place, request)
    armed = False

    def live(walk: Walk) -> None:
        nonlocal armed
        assert isinstance(walk.life, StoredLife)
        if not armed:
            lay_tripwires(walk.life)
            armed = True
        for _ in range(25):
            trip(walk, walk.life)
        assert walk.life.do(problems_of(walk.life.store, walk.life.chat_id)) == []

    met = lives.each(live, sqlite=9, postgres=3, tools=("local", "client"), max_steps=None)
    least = {"sqlite": 3, "postgres": 0}[place]
    assert {table: met[table] for table in TABLES[:-1] if met[table] < least} == {}
    assert met["failed"] >= {"sqlite": 50, "postgres": 15}[place]


def lay_tripwires(life: StoredLife) -> None:
    by_sql(life, "CREATE TABLE tripwire (place text)")
    if life.database.url.startswith("sqlite"):
        for table in TABLES:
            for act in ("INSERT", "UPDATE", "DELETE"):
                by_sql(life, IN_SQLITE.format(table=table, act=act))
    else:
        by_sql(life, IN_POSTGRES)
        for table in TABLES:
            acts = "BEFORE INSERT OR UPDATE OR DELETE"
            by_sql(life, f"CREATE TRIGGER trip {acts} ON {table} FOR EACH ROW EXECUTE FUNCTION trip()")


def trip(walk: Walk, life: StoredLife) -> None:
    """Fail the next transition if it touches a table; then perform a real one."""
    table = walk.random.choice(TABLES)
    life.by = walk.random.randrange(2)
    before, facts = everything(life), life.facts
    by_sql(life, f"INSERT INTO tripwire VALUES ('{table}')")  # noqa: S608 - a name of our own
    try:
        walk.meddle() if walk.chance(0.3) else walk.go_on()
    except StoreError as error:
        if not isinstance(error, NotClaimed) and "integer overflow" not in str(error):
            raise
        by_sql(life, "DELETE FROM tripwire")
        assert everything(life) == before
        assert [life.do(process.store.facts(life.chat_id)) for process in life.database.processes] == [facts] * 2
        walk.met[table] += 1
        walk.met["failed"] += 1
        walk.go_on()
    else:
        by_sql(life, "DELETE FROM tripwire")


def everything(life: StoredLife) -> Any:
    return life.rows(), life.do(life.store.lease_expiry(life.chat_id))


def by_sql(life: StoredLife, sql: str) -> None:
    life.do(by_hand(life.database.url, sql))
