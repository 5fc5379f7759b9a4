"""The durations in a chat's life, computed from its events."""

from datetime import timedelta

import pytest
from tests.diagrams.lived import COMPACTIONS, after, broken, discarded, failed, phase, replied, stays

from turnwise import Engine, Event, Settings
from turnwise.diagrams.durations import duration
from turnwise.diagrams.life import life_of
from turnwise.states.names import ChatState

S = ChatState


async def test_imported_calls_are_over_even_after_erasure() -> None:
    """Only the message has their results."""
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
        await engine.erase(chat.id, messages=["m1", "m2"])
        erased = life_of([event async for event in engine.events(chat.id, follow=False)])
    assert [(one.name, one.until is None) for one in life.activities] == [("look", False)]
    assert (erased.activities, erased.message_times) == (life.activities, life.message_times), "nothing begins anew"


@pytest.mark.parametrize("name", COMPACTIONS)
def test_compaction_lasts_until_its_end_or_a_state_change(name: str) -> None:
    events, compactions = COMPACTIONS[name]
    activities = [one for one in life_of(events).activities if "compaction" in one.kind]
    times = [(one.kind, one.since.at, one.until and one.until.at) for one in activities]
    assert times == [(kind, after(a), None if z is None else after(z)) for kind, a, z in compactions]


BEGUN = stays((S.waiting, 0), (S.streaming, 10))
BACK = stays((S.streaming, 0), (S.waiting, 14))[1:]
LOST = stays((S.streaming, 10), (S.pending, 20), (S.streaming, 30))[1:]
ROOM = stays((S.streaming, 0), (S.compacting, 12), (S.streaming, 20))[1:]
FAILED, KEPT = "failed attempt", "attempt"
LIVES: dict[str, tuple[list[Event], list[tuple[str, str, float, float | None]]]] = {
    "an answer after a failure": (
        [*failed(1, 1, 11), replied(1, 14), *BACK],
        [(FAILED, "step 1, attempt 1", 10, 11), (KEPT, "step 1, attempt 2", 12, 14)],
    ),
    "a stop while it waits for the next one": (
        [*failed(1, 1, 11, delay=60), *BACK],
        [(FAILED, "step 1, attempt 1", 10, 11)],
    ),
    "an error with a partial reply": (
        [replied(1, 12, partial=True), *broken(12)],
        [(FAILED, "step 1, attempt 1", 10, 12)],
    ),
    "a worker that was lost": (
        [*LOST, discarded(1, 1, 30), replied(1, 34), *stays((S.streaming, 0), (S.waiting, 34))[1:]],
        [(FAILED, "step 1, attempt 1", 10, 20), (KEPT, "step 1, attempt 2", 30, 34)],
    ),
    "a stop with a partial reply": (
        [*stays((S.streaming, 0), (S.interrupted, 12))[1:], replied(1, 13, partial=True)],
        [(KEPT, "step 1, attempt 1", 10, 12)],
    ),
    "room was made for it": (
        [discarded(1, 1, 12), *ROOM[:1], phase("started", 12), *ROOM[1:], replied(1, 24)],
        [(FAILED, "step 1, attempt 1", 10, 12), (KEPT, "step 1, attempt 3", 20, 24)],
    ),
}
"""Continuations of a life after its first attempt has started, and the resulting attempts."""


@pytest.mark.parametrize("name", LIVES)
def test_each_attempt_has_its_number_and_end(name: str) -> None:
    """From events that are never pruned: name, end, and both times."""
    more, attempts = LIVES[name]
    reported = [one for one in life_of([*BEGUN, *more]).activities if "attempt" in one.kind]
    times = [(one.kind, one.name, one.since.at, one.until and one.until.at) for one in reported]
    assert times == [(kind, words, after(a), None if z is None else after(z)) for kind, words, a, z in attempts]


# Durations


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (0.25, "0.25 s"), (9.94, "9.9 s"), (12.4, "12 s"), (60, "1 min"), (61, "1 min 1 s"), (3600, "1 h"),
     (5460, "1 h 31 min"), (86_400, "1 d"), (183_600, "2 d 3 h"), (-1, "0 s"), (59.9, "60 s")],
)  # fmt: skip
def test_duration_has_two_units(seconds: float, words: str) -> None:
    assert duration(timedelta(seconds=seconds)) == words
