"""To start and to finish a call costs a store the same, however many calls its step has."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from support.counting import functions_called
from support.life import NOW, Life, executing, local
from support.sqlite_chats import Chats, at_once
from turnwise.persistence.audit.record import GENESIS
from turnwise.persistence.commit import Standing
from turnwise.persistence.postgres.write_rows import parameters_of, prepared
from turnwise.states.calls import ToolCall
from turnwise.states.decide import Decision
from turnwise.states.facts import Facts

FEW, MANY = 500, 2000


def test_sqlite_does_the_same_for_a_call_of_many() -> None:
    """Counted are the functions that are called to store a commit, of Python and of C."""
    few, many = (_stored_in_sqlite(count) for count in (FEW, MANY))
    assert many <= few


def test_postgres_does_the_same_and_is_sent_the_same_for_a_call_of_many() -> None:
    few, many = (_sent_to_postgres(count) for count in (FEW, MANY))
    assert many[0] <= few[0]
    assert many[1] <= few[1] * 1.02, "a number may have a digit more"


def _stored_in_sqlite(count: int) -> int:
    life = executing(*_calls(count))
    with Chats.in_memory() as chats:
        chats.create(life.facts.chat_id, lambda *_: life.decisions)
        return sum(
            functions_called(partial(_change, chats, facts.chat_id, decision)) for facts, decision in _moves(life)
        )


def _change(chats: Chats, chat_id: str, decision: Decision) -> None:
    assert at_once(chats.optimistic.change(chat_id, lambda *_: [decision], ())) is not None


def _sent_to_postgres(count: int) -> tuple[int, int]:
    functions, sent = 0, 0
    for facts, decision in _moves(executing(*_calls(count))):
        standing = Standing(facts, GENESIS, NOW)
        functions += functions_called(partial(prepared, standing, (decision,), ()))
        sent += sum(map(len, parameters_of([prepared(standing, (decision,), ())])))
    return functions, sent


def _calls(count: int) -> list[ToolCall]:
    return [local(f"c{number:04}", number) for number in range(count)]


def _moves(life: Life) -> Iterator[tuple[Facts, Decision]]:
    """Give the start and the end of one of the calls, each with the facts that it met."""
    before = life.facts
    yield before, life.start("c0250")
    before = life.facts
    yield before, life.finish("c0250")
