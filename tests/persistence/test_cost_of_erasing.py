"""To erase everything costs a turn the same in a long chat as in a short one, and holds up no other chat."""

from __future__ import annotations

import threading

import pytest

from support.counting import functions_called
from turnwise import Engine, Settings
from turnwise.persistence.chat_rows import ChatRows
from turnwise.persistence.conformance import plans
from turnwise.persistence.erasure import Wipe, wipe
from turnwise.persistence.postgres import chat_rows
from turnwise.persistence.postgres.store import PostgresStore
from turnwise.providers.scripted import ScriptedModel
from turnwise.states.decide import Decision


async def test_a_turn_of_a_long_chat_costs_what_one_of_a_short_one_costs(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL, whose events repeat what was said: an erasure changes them all."""
    counted: list[int] = []

    def counting(stored: ChatRows, decision: Decision) -> Wipe:
        assert threading.current_thread() is not threading.main_thread()
        wiped: list[Wipe] = []
        counted.append(functions_called(lambda: wiped.append(wipe(stored, decision))))
        return wiped[0]

    monkeypatch.setattr(chat_rows, "wipe", counting)
    store = PostgresStore(postgres_url)
    async with Engine(store, model=ScriptedModel(()), settings=Settings(run_worker=False)) as engine:
        for turns in (10, 20, 80):
            name = f"{turns} turns"
            await plans.created(store, name)
            for number in range(turns):
                await store.change(name, plans.plan(*plans.turn(f"question {number}", f"answer {number}")))
            await engine.erase(name, what=["everything"])
    short, middle, long = counted
    assert (long - middle) / 60 <= (middle - short) / 10 * 1.01
