"""Both encodings are right for any log, from any of its events on."""

import functools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import anyio
import pytest
from tests.service.protocols.front_ends import agui_messages, ui_message

from support.eventful_life import look, rich_life, rich_script
from support.exploring import few
from turnwise import CompactionPolicy, Engine, Event, Settings, fold
from turnwise.providers.scripted import ScriptedModel
from turnwise.service import AGUIEncoder, encode_agui, encode_ai_sdk
from turnwise.states.events import HistoryResetEvent, MessageEvent, PartEvent, TurnFinishedEvent
from turnwise.states.messages import Message, ReasoningPart
from turnwise.testing.clock import ManualClock
from turnwise.testing.simulation import World

SEEDS = few(range(23), plain=3)


class _Chronicler(World):
    """A world that records the events of its chats."""

    logs: list[list[Event]]

    async def _inspect(self) -> None:
        store = self._nodes[0].store
        self.logs = [await store.events(chat_id, after=0, limit=1_000_000) for chat_id in self._clients.chats]


@functools.cache
def simulated(seed: int) -> list[list[Event]]:
    """Return the logs of the first world, of many, that has a whole turn."""
    for drawn in range(100 * seed, 100 * seed + 100):
        world = _Chronicler(drawn)
        assert anyio.run(world.run) == []
        if any(whole_turns(log) for log in world.logs):
            return world.logs
    raise AssertionError("no world has a whole turn")


@functools.cache
def eventful() -> list[Event]:
    async def lived() -> list[Event]:
        clock = ManualClock()
        settings = Settings(coalesce=0, compaction=CompactionPolicy(context_limit=100))
        model = ScriptedModel(rich_script())
        async with Engine("sqlite://", model=model, tools=[look], settings=settings, clock=clock) as engine:
            chat_id = await rich_life(engine, clock)
            return [event async for event in engine.events(chat_id, follow=False)]

    return anyio.run(lived)


def logs(seed: int | None) -> list[list[Event]]:
    return [eventful()] if seed is None else simulated(seed)


def turns_of(log: Sequence[Event]) -> list[list[Event]]:
    turns: list[list[Event]] = []
    is_running = False
    for event in log:
        starts = isinstance(event, MessageEvent) and event.message.role == "user" and not event.message.imported
        if starts and not is_running:
            turns.append([])
            is_running = True
        if is_running:
            turns[-1].append(event)
        is_running = is_running and not isinstance(event, TurnFinishedEvent)
    return turns


def whole_turns(log: Sequence[Event]) -> list[list[Event]]:
    """Return the turns of whose answers nothing was reset or erased."""
    return [
        turn
        for turn in turns_of(log)
        if not any(isinstance(event, HistoryResetEvent) or is_erased(event) for event in turn)
    ]


def stored_messages(turn: Sequence[Event]) -> list[Message]:
    cuts = [place for place, event in enumerate(turn) if isinstance(event, HistoryResetEvent)]
    return [one for one in fold(turn[cuts[-1] + 1 if cuts else 0 :]).messages if not one.erased]


@pytest.mark.parametrize("seed", [None, *SEEDS])
def test_stream_is_valid_from_any_event(seed: int | None) -> None:
    for log in logs(seed):
        for place in range(len(log)):
            ui_message(encode_ai_sdk(log[place:], version=6), version=6)
            ui_message(encode_ai_sdk(log[place:], version=7), version=7)
            agui_messages(encode_agui(log[place:], thread_id="t", run_id="r"))


@pytest.mark.parametrize("pruned", ["nothing", "all parts", "all but two parts"])
@pytest.mark.parametrize("seed", [None, *SEEDS])
def test_whole_turn_leaves_the_stored_messages(seed: int | None, pruned: str) -> None:
    """Discarded attempts, repaired calls and pruned parts leave nothing, where the protocol can retract."""
    compared = 0
    for log in logs(seed):
        for turn in whole_turns(log):
            remaining = left_of(turn, pruned)
            answers = [message for message in stored_messages(turn) if message.role == "assistant" and message.parts]
            texts = [message.text for message in answers]
            parts_kept = (part for message in answers for part in message.parts)
            thoughts = [part.text for part in parts_kept if isinstance(part, ReasoningPart) and part.text]
            calls = [(call.call_id, call.arguments) for message in answers for call in message.calls]
            parts = ui_message(encode_ai_sdk(remaining, version=7), version=7)
            by_step = steps_of(parts)
            assert [text for text, _ in by_step if text] == [text for text in texts if text]
            in_order = by_id if is_cut(remaining) else list
            assert in_order(call for _, sent_calls in by_step for call in sent_calls) == in_order(calls)
            had: list[dict[str, Any]] = []
            for anew in (False, True):
                encoder = AGUIEncoder("t", "r", history=had)
                encoded = (one for event in remaining for one in encoder.encode(event))
                had = agui_messages([*encoder.begin(anew=anew), *encoded, *encoder.end()], had)
                assert contents(had, "assistant") == [text for text in texts if text]
                assert contents(had, "reasoning") == thoughts
                sent_calls = (arguments_of(call) for message in had for call in message.get("toolCalls", ()))
                assert in_order(sent_calls) == in_order(calls)
            compared += 1
    assert compared


def is_erased(event: Event) -> bool:
    return isinstance(event, MessageEvent) and event.message.role == "assistant" and event.message.erased


def contents(messages: Sequence[dict[str, Any]], role: str) -> list[str]:
    return [message["content"] for message in messages if message["role"] == role and message["content"]]


def is_cut(events: Sequence[Event]) -> bool:
    """Return whether only the first parts of a reply were pruned: late ones cannot be inserted before the others."""
    first: dict[tuple[int, int], int] = {}
    for event in events:
        if isinstance(event, PartEvent):
            first.setdefault((event.step, event.attempt), event.index)
    return any(first.values())


def by_id(calls: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return sorted(calls, key=lambda call: call[0])


def left_of(turn: Sequence[Event], pruned: str) -> list[Event]:
    """Return a reader's view of a turn whose parts were pruned before or during the read."""
    seen = Counter[tuple[int, int]]()
    left = []
    for event in turn:
        if isinstance(event, PartEvent):
            seen[event.step, event.attempt] += 1
            if pruned == "all parts" or (pruned != "nothing" and seen[event.step, event.attempt] > 2):
                continue
        left.append(event)
    return left


def steps_of(parts: Sequence[dict[str, Any]]) -> list[tuple[str, list[tuple[str, Any]]]]:
    steps: list[tuple[str, list[tuple[str, Any]]]] = []
    for part in parts:
        if part["type"] == "step-start":
            steps.append(("", []))
        elif part["type"] == "text":
            steps[-1] = (steps[-1][0] + part["text"], steps[-1][1])
        elif part["type"] == "tool":
            steps[-1][1].append((part["id"], part["input"]))
    return steps


def arguments_of(call: dict[str, Any]) -> tuple[str, Any]:
    return call["id"], json.loads(call["function"]["arguments"])
