"""What `stream`, `ask` and `transcript` promise, broken on purpose: the simulated readers find it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from turnwise.engine import engine
from turnwise.engine.engine import Engine
from turnwise.engine.follow.turns import TurnReader
from turnwise.engine.results import SendReceipt
from turnwise.states.events import Event, MessageEvent, ToolResultEvent
from turnwise.testing.simulation import Mischief, World

Patch = pytest.MonkeyPatch
WORLDS = 300


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def go_on_with_the_next_turn(patch: Patch) -> None:
    patch.setattr(TurnReader, "_ends_with", lambda reader, _event: reader.message_state == "removed")


def begin_with_any_message(patch: Patch) -> None:
    def await_turn(reader: TurnReader, event: Event) -> None:
        if isinstance(event, MessageEvent):
            reader.turn, reader.message_state = event.message.turn, "taken"

    patch.setattr(TurnReader, "_await_turn", await_turn)


def change_what_is_followed(change: Callable[[Event], list[Event]]) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        begin = TurnReader.__init__

        async def changed(following: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
            async with aclosing(following) as events:
                async for event in events:
                    for told in change(event):
                        yield told

        def begin_changed(reader: TurnReader, following: AsyncGenerator[Event, None], receipt: SendReceipt) -> None:
            begin(reader, changed(following), receipt)

        patch.setattr(TurnReader, "__init__", begin_changed)

    return plant


def tell_messages_twice(event: Event) -> list[Event]:
    return [event, event] if isinstance(event, MessageEvent) else [event]


def leave_out_results(event: Event) -> list[Event]:
    return [] if isinstance(event, ToolResultEvent) else [event]


def end_before_the_rest(patch: Patch) -> None:
    ends_with = TurnReader._ends_with
    patch.setattr(
        TurnReader, "_ends_with", lambda self, event: ends_with(self, event) or isinstance(event, ToolResultEvent)
    )


def wait_on_at_rest(patch: Patch) -> None:
    def turn(self: Engine, receipt: SendReceipt, **_at_once: bool) -> TurnReader:
        return TurnReader(self.events(receipt.chat.id, after=receipt.seq), receipt)

    patch.setattr(Engine, "_turn", turn)


def answer_whatever_waits(patch: Patch) -> None:
    result = engine.turn_result
    patch.setattr(engine, "turn_result", lambda *given: dataclasses.replace(result(*given), message_state="taken"))


def answer_without_the_question(patch: Patch) -> None:
    result = engine.turn_result

    def without(*given: Any) -> Any:
        whole = result(*given)
        return dataclasses.replace(whole, messages=whole.messages[1:])

    patch.setattr(engine, "turn_result", without)


def change_transcripts(change: Callable[[Any], None]) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        transcript_of = engine.transcript_of

        def changed(snapshot: Any) -> Any:
            transcript = transcript_of(snapshot)
            change(transcript)
            return transcript

        patch.setattr(engine, "transcript_of", changed)

    return plant


def number_too_low(transcript: Any) -> None:
    transcript.last_seq = max(transcript.last_seq - 1, 0)


def forget_what_is_live(transcript: Any) -> None:
    transcript.live.clear()


FAULTS: dict[str, tuple[Callable[[Patch], None], str, int]] = {
    "stream: the next turn, too": (go_on_with_the_next_turn, "told the events", 23),
    "stream: another message's turn": (begin_with_any_message, "told the events", 39),
    "stream: an event twice": (change_what_is_followed(tell_messages_twice), "told the events", 3),
    "stream: an event is missing": (change_what_is_followed(leave_out_results), "told the events", 21),
    "stream: no more before the rest": (end_before_the_rest, "did not rest", 61),
    "stream: no end at rest": (wait_on_at_rest, "and the chat rests", 372),
    "ask: a message that waits has its turn": (answer_whatever_waits, "was answered by taken", 128),
    "ask: another turn than its own": (begin_with_any_message, "was answered by", 31),
    "ask: what was asked is missing": (answer_without_the_question, "was answered by", 8),
    "transcript: the number before": (change_transcripts(number_too_low), "a transcript", 2),
    "transcript: nothing of the reply under way": (change_transcripts(forget_what_is_live), "a transcript", 124),
}
"""How each promise is broken, what then is found, and a seed near which it showed before."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", FAULTS)
async def test_the_readers_find(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, words, first = FAULTS[fault]
    plant(monkeypatch)
    found: list[str] = []
    for seed in range(first, first + WORLDS):
        found = await World(seed, mischief=Mischief(seed, often=0)).run()
        if any(words in problem for problem in found):
            return
    pytest.fail(f"{WORLDS} worlds did not find it; the last one found {found}")
