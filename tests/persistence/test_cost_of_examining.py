"""To examine a chat costs a row the same in a long chat as in a short one, and few functions."""

from __future__ import annotations

from functools import partial

import pytest

from support.counting import functions_called
from turnwise import Engine
from turnwise.engine.tools.declare import tool
from turnwise.persistence.repair.examine import examine
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.providers.scripted import Call, Reply, ScriptedModel

pytestmark = pytest.mark.anyio

A_ROW = 100
"""Functions, of Python and of C, that may be called for one row: to read it takes some 70."""


@tool
async def look() -> str:
    """Look."""
    return "seen"


async def _examined(turns: int) -> tuple[int, int]:
    """Return how many rows a chat of some turns has, and how many functions are called to examine it."""
    replies = [Reply("I look", calls=[Call("look", {})]), Reply("done")] * turns
    store = SQLiteStore(None)
    async with Engine(store, model=ScriptedModel(replies), tools=[look]) as engine:
        chat = await engine.create_chat()
        for number in range(turns):
            await engine.ask(chat.id, f"question {number}")
        rows = await store.raw_rows(chat.id)
    assert examine(chat.id, rows) == []
    return sum(map(len, rows.values())), functions_called(partial(examine, chat.id, rows))


async def test_a_row_of_a_long_chat_costs_what_one_of_a_short_one_costs() -> None:
    """Every command of an operator explains, and so examines a chat: nothing may grow with the square of its rows."""
    (few, short), (many, long) = await _examined(3), await _examined(24)
    assert many > few * 6
    assert (long - short) / (many - few) < A_ROW
    assert long / many <= short / few
