"""What took time in a chat's life, as its events tell it."""

from __future__ import annotations

from support.lived import asked, stays
from turnwise import Engine, Settings
from turnwise.diagrams.lived import life_of
from turnwise.diagrams.timeline import LANES
from turnwise.states.names import ChatState

S = ChatState


def test_what_is_not_over_goes_on_until_now() -> None:
    life = life_of([*stays((S.waiting, 0), (S.executing_tools, 1)), asked("a")])
    assert life.stays[-1].until is None
    assert [one.until for one in life.activities] == [None]
    assert {kind for kinds in LANES.values() for kind in kinds} >= {one.kind for one in life.activities}


async def test_calls_of_a_history_that_was_imported_are_over() -> None:
    """No event but the message tells of their results."""
    call = {"type": "tool_call", "call_id": "a", "name": "look", "arguments": {}}
    result = {"type": "tool_result", "call_id": "a", "name": "look", "output": "there"}
    history = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "parts": [call]},
        {"role": "tool", "parts": [result]},
    ]
    async with Engine("sqlite://", model="demo", settings=Settings(run_worker=False)) as engine:
        chat = await engine.create_chat(history=history)
        life = life_of([event async for event in engine.events(chat.id, follow=False)])
    assert [(one.name, one.until is None) for one in life.activities] == [("look", False)]
