"""TypeScript's `fold` equals Python's: for any log and any cut, both make the same JSON."""

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from support.eventful_life import look, rich_life, rich_script
from support.events import events_of
from support.life import queued, streaming
from support.node import AskNode, folded, folding, needs_node, spelled
from turnwise import Engine, Settings
from turnwise.providers.scripted import ScriptedModel
from turnwise.states import events as e
from turnwise.states.calls import ToolCall
from turnwise.states.messages import Message, QueuedMessage, TextPart, ToolResultPart
from turnwise.states.names import ChatState, Executor, QueueChange, StopReason
from turnwise.states.transcript import Transcript, fold
from turnwise.states.usage import Usage
from turnwise.testing.clock import ManualClock
from turnwise.testing.simulation import World
from turnwise.testing.simulation.disk import SimulatedStore

pytestmark = needs_node

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
KINDS = set(e.EVENTS.values())


@pytest.fixture(scope="module")
def node() -> Iterator[AskNode]:
    with folding() as ask:
        yield ask


async def test_both_folds_agree_on_an_eventful_chat(node: AskNode) -> None:
    """A page that starts with `GET /transcript`, with every default written out, gets the same."""
    clock = ManualClock()
    settings = Settings(coalesce=0, poll_interval=0.02, shutdown_grace=0)
    model = ScriptedModel(rich_script(), context_limit=100)
    async with Engine("sqlite://", model=model, settings=settings, tools=[look], clock=clock) as engine:
        events = await events_of(engine, await rich_life(engine, clock))
    assert {type(event) for event in events} >= KINDS - {e.ErrorEvent}

    found = node(events)
    assert found == folded(events)
    assert found["wholes"] == [found["beginnings"][-1]] * (len(events) + 1)
    assert found["one_by_one"] == found["again"] == found["beginnings"][-1]
    for cut in range(len(events)):
        page = json.loads(TypeAdapter(Transcript).dump_json(fold(events[:cut])))
        found = msgspec.convert(node(events[cut:], page)["beginnings"][-1], Transcript, strict=False)
        assert found == fold(events)


@pytest.mark.deep
async def test_both_folds_agree_on_simulated_worlds(node: AskNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed workers, pruned parts, erased messages, subagents: combinations that handwritten logs lack."""
    logs: dict[tuple[int, str], list[e.Event]] = {}
    read_events = SimulatedStore.events

    async def keep(self: SimulatedStore, chat_id: str, *, after: int, limit: int) -> list[e.Event]:
        events = await read_events(self, chat_id, after=after, limit=limit)
        if after == 0 and len(events) >= len(logs.get((seed, chat_id), ())):  # later ones are pruned
            logs[seed, chat_id] = events
        return events

    monkeypatch.setattr(SimulatedStore, "events", keep)
    logging.disable(logging.CRITICAL)
    for seed in range(28):
        assert await World(seed).run() == []
    logging.disable(logging.NOTSET)

    assert {type(event) for log in logs.values() for event in log} == KINDS
    for (seed, chat_id), log in logs.items():
        found = node(log)
        assert found == folded(log), f"seed {seed}, {chat_id}"
        assert found["wholes"] == [found["beginnings"][-1]] * (len(log) + 1)


IDS, STEPS = st.sampled_from(["m1", "m2", "m3", "__proto__"]), st.integers(1, 2)
TEXTS = st.sampled_from(["", "a", "é", "\u2028", "😀", "null"])
CALLS = st.builds(
    ToolCall,
    call_id=st.sampled_from("abc"),
    name=st.just("look"),
    arguments=st.just({}),
    executor=st.sampled_from(Executor),
    index=st.integers(0, 2),
    step=STEPS,
)
ERRORS = st.builds(e.ErrorInfo, kind=TEXTS, message=TEXTS, retryable=st.booleans())
SPOKEN = st.builds(TextPart, text=TEXTS)
RESULTS = st.builds(ToolResultPart, call_id=TEXTS, name=TEXTS, output=st.sampled_from([None, 0, "x", {"a": [0.5]}]))
MESSAGES = st.builds(
    Message,
    id=IDS,
    role=st.sampled_from(["user", "assistant", "tool", "tool", "tool"]),
    parts=st.tuples(SPOKEN | RESULTS),
    turn=st.just(1),
    step=STEPS,
    created_at=st.just(NOW),
    call_index=st.none() | st.integers(0, 2),
)
DELTAS = st.builds(e.PartDelta, type=st.sampled_from(["text", "reasoning", "tool_call"]), delta=st.none() | TEXTS)
QUEUED = st.builds(QueuedMessage, id=IDS, parts=st.tuples(SPOKEN), accepted_at=st.just(NOW))
TOOL_RESULT: Any = {"index": st.just(0), "name": TEXTS, "output": st.just(1), "outcome": st.just("succeeded")}
EVENTS = st.one_of(
    st.builds(e.StatusEvent, state=st.sampled_from(ChatState)),
    st.builds(e.MessageEvent, message=MESSAGES),
    st.builds(e.PartEvent, step=STEPS, attempt=STEPS, index=st.sampled_from([0, 1, 2, 10]), part=DELTAS),
    st.builds(e.PartEvent, step=STEPS, attempt=STEPS, index=st.sampled_from([0, 1, 2, 10]), part=DELTAS),
    st.builds(e.AttemptDiscardedEvent, step=STEPS, attempt=STEPS, reason=TEXTS),
    st.builds(e.HistoryResetEvent, first_removed=IDS),
    QUEUED.map(lambda queued: e.QueueEvent(change="added", ids=(queued.id,), message=queued)),
    st.builds(
        e.QueueEvent,
        change=st.sampled_from(get_args(QueueChange)),
        ids=st.lists(IDS, max_size=2, unique=True).map(tuple),
        message=st.none() | QUEUED,
        before=st.none() | IDS,
    ),
    st.builds(e.ActionRequiredEvent, calls=st.lists(CALLS, max_size=3).map(tuple)),
    st.builds(e.ToolResultEvent, step=STEPS, call_id=st.sampled_from("abc"), **TOOL_RESULT),
    st.builds(e.TurnFinishedEvent, turn=STEPS, stop_reason=st.sampled_from(StopReason), usage=st.just(Usage())),
    st.builds(e.ErrorEvent, error=ERRORS),
)


@given(drawn=st.lists(EVENTS, max_size=14), steps=st.lists(st.integers(0, 2), min_size=14, max_size=14))
def test_both_folds_agree_on_any_events(node: AskNode, drawn: list[Any], steps: list[int]) -> None:
    """Even events that no engine sends, and numbers with gaps and repetitions."""
    seq, events = 1, []
    for event, step in zip(drawn, steps, strict=False):
        seq += step
        events.append(msgspec.structs.replace(event, seq=seq, chat_id="c", at=NOW))

    assert node(events) == folded(events)


def test_unknown_event_kinds_change_nothing(node: AskNode) -> None:
    life = queued(streaming(), "one")
    newer = [
        {"kind": kind, "seq": len(life.events) + place, "chat_id": "c", "state": "waiting", "queue": []}
        for place, kind in enumerate(("weather", "constructor", "__proto__", "toString"), 1)
    ]
    found = node(newer, spelled(fold(life.events)))["beginnings"]

    assert found[-1] == found[0] | {"last_seq": len(life.events) + len(newer)}


@pytest.mark.parametrize("wrong", [None, 7, {"kind": "status"}, {"kind": "status", "seq": "1"}])
def test_non_event_is_refused(node: AskNode, wrong: Any) -> None:
    answer = node([wrong])
    assert answer == {"error": f"TypeError: events must be events, with a kind and a seq; one was {_json(wrong)}"}


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
