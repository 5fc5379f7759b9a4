"""What a turn costs, by the length of the chat."""

from __future__ import annotations

from typing import Any

import pytest

from support.counting import functions_awaited
from turnwise import Engine, Settings, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel

_FEW, _MANY = 20, 2000


@tool
async def look() -> str:
    """Look."""
    return "seen"


@pytest.mark.deep
async def test_cost_of_a_turn_does_not_grow_with_history() -> None:
    """A single function for each message of the history would be seen."""
    few, many = await _cost_behind(_FEW), await _cost_behind(_MANY)
    assert many - few < (_MANY - _FEW) / 4


async def _cost_behind(length: int) -> int:
    history = [{"role": role, "content": "Well?"} for role in ("user", "assistant") * (length // 2)]
    replies = [Reply(calls=[Call("look", {})]), "Done.", Reply(calls=[Call("look", {})]), "Done."]
    settings = Settings(poll_interval=600, lease=3600, renew_every=600)
    async with Engine("sqlite://", model=ScriptedModel(replies), tools=[look], settings=settings) as engine:
        chat = await engine.create_chat(history=history)
        await engine.ask(chat.id, "Look!")  # reads the history, once

        async def turn() -> Any:
            return await engine.ask(chat.id, "Look!")

        return await functions_awaited(turn)
