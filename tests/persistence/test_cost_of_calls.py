"""To start and to finish a call costs a store the same, however many calls its step has."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from support.counting import functions_called
from support.life import NOW, Life, executing, local
from turnwise.persistence.audit.record import GENESIS
from turnwise.persistence.migrations import migrations
from turnwise.persistence.postgres.write_rows import Standing, commit_of, parameters_of
from turnwise.persistence.sqlite.migrate import migrate
from turnwise.persistence.sqlite.transactions import Transactions
from turnwise.states.calls import ToolCall
from turnwise.states.decide import Decision
from turnwise.states.facts import Facts

FEW, MANY = 500, 2000


def test_sqlite_does_the_same_for_a_call_of_many(tmp_path: Path) -> None:
    """Counted are the functions that are called to store a commit, of Python and of C."""
    few, many = (_stored_in_sqlite(tmp_path / f"{count}.db", count) for count in (FEW, MANY))
    assert many <= few


def test_postgres_does_the_same_and_is_sent_the_same_for_a_call_of_many() -> None:
    few, many = (_sent_to_postgres(count) for count in (FEW, MANY))
    assert many[0] <= few[0]
    assert many[1] <= few[1] * 1.02, "a number may have a digit more"


def _stored_in_sqlite(path: Path, count: int) -> int:
    transactions = Transactions(lambda: NOW)
    life = executing(*_calls(count))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        migrate(connection, str(path), migrations("sqlite"))
        transactions.create(connection, life.facts.chat_id, lambda *_: life.decisions)
        return sum(
            functions_called(partial(transactions.change, connection, facts.chat_id, partial(_given, decision), ()))
            for facts, decision in _moves(life)
        )


def _sent_to_postgres(count: int) -> tuple[int, int]:
    functions, sent = 0, 0
    for facts, decision in _moves(executing(*_calls(count))):
        standing = Standing(facts, GENESIS, NOW)
        functions += functions_called(partial(commit_of, standing, [decision], ()))
        sent += sum(map(len, parameters_of([commit_of(standing, [decision], ())[0]])))
    return functions, sent


def _calls(count: int) -> list[ToolCall]:
    return [local(f"c{number:04}", number) for number in range(count)]


def _moves(life: Life) -> Iterator[tuple[Facts, Decision]]:
    """Give the start and the end of one of the calls, each with the facts that it met."""
    before = life.facts
    yield before, life.start("c0250")
    before = life.facts
    yield before, life.finish("c0250")


def _given(decision: Decision, *_: object) -> list[Decision]:
    return [decision]
