"""One turn is one trace, whoever works on it: in this process, in the next one, after a kill."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from support.latches import Gate
from turnwise import (
    ClientTool,
    CompactionInput,
    CompactionPolicy,
    CompactionResult,
    Engine,
    Message,
    ModelError,
    RetryPolicy,
    Settings,
    ToolResult,
    Usage,
    tool,
)
from turnwise.engine.observers.opentelemetry import OpenTelemetryObserver
from turnwise.engine.observers.turn_spans import TurnSpan, nanoseconds
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.testing import ManualClock

ASK = ClientTool("ask", "Ask.", {"type": "object"})


@tool
async def add(first: int, second: int) -> int:
    """Add."""
    return first + second


class Traces:
    """The spans of one process."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.observer = OpenTelemetryObserver(self.provider)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def turns(self) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == "invoke_agent"]


@pytest.fixture
def traces() -> Iterator[Traces]:
    kept = Traces()
    yield kept
    kept.provider.shutdown()


@pytest.fixture
def others() -> Iterator[Traces]:
    kept = Traces()
    yield kept
    kept.provider.shutdown()


def told(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def assert_below(turn: ReadableSpan, spans: list[ReadableSpan]) -> None:
    """Check that the spans are children of the turn's, within its time."""
    assert turn.start_time is not None
    assert turn.end_time is not None
    for span in spans:
        assert span.parent is not None
        assert (span.context.trace_id, span.parent.span_id) == (turn.context.trace_id, turn.context.span_id)


async def test_turn_is_one_trace(traces: Traces) -> None:
    replies = [
        Reply(error=ModelError("overloaded")),
        Reply(calls=[Call("add", {"first": 1, "second": 2})], usage=Usage(input_tokens=95, output_tokens=5)),
        Reply("3", usage=Usage(input_tokens=10, output_tokens=1)),
    ]
    settings = Settings(retry=RetryPolicy(first_delay=0.001), compaction=CompactionPolicy(context_limit=100))
    model = ScriptedModel(replies)
    async with Engine("sqlite://", model=model, tools=[add], settings=settings, observers=[traces.observer]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "1 + 2?")
    (turn,) = traces.turns()
    rest = [span for span in traces.spans if span is not turn]
    assert turn.parent is None
    assert [span.name for span in rest] == [
        "chat scripted",
        "chat scripted",
        "execute_tool add",
        "chat scripted",
        "compact",
        "chat scripted",
    ]
    *before, summary, compaction, after = rest
    assert_below(turn, [*before, compaction, after])
    assert_below(compaction, [summary])
    calls = [told(span) for span in rest if span.name == "chat scripted"]
    assert [call["turnwise.purpose"] for call in calls] == ["step", "step", "summary", "step"]
    assert [call.get("error.type") for call in calls] == ["overloaded", None, None, None]
    assert [call["turnwise.attempt"] for call in calls] == [1, 2, 3, 1]
    assert {span.kind for span in rest if span.name == "chat scripted"} == {trace.SpanKind.CLIENT}
    assert {(call["gen_ai.provider.name"], call["gen_ai.request.model"]) for call in calls} == {
        ("scripted", "scripted")
    }
    attributes = told(turn)
    assert attributes["gen_ai.operation.name"] == "invoke_agent"
    assert attributes["gen_ai.conversation.id"] == chat.id
    assert (attributes["turnwise.turn"], attributes["turnwise.steps"]) == (1, 2)
    assert attributes["turnwise.stop_reason"] == "end_turn"


FULL = Usage(input_tokens=95, output_tokens=5)
COMPACTION = "turnwise.compaction."


def compaction_of(traces: Traces) -> tuple[ReadableSpan, dict[str, Any], list[ReadableSpan]]:
    """Return the span of the only compaction, what it tells of it, and the spans below it."""
    (span,) = [span for span in traces.spans if span.name == "compact"]
    known = {name.removeprefix(COMPACTION): value for name, value in told(span).items() if name.startswith(COMPACTION)}
    below = [each for each in traces.spans if each.parent is not None and each.parent.span_id == span.context.span_id]
    return span, known, below


@pytest.mark.parametrize("folds", [True, False])
async def test_custom_strategy_has_a_compaction_span(traces: Traces, *, folds: bool) -> None:
    async def strategy(messages: Sequence[Message], _figures: CompactionInput) -> CompactionResult | None:
        return CompactionResult(messages=messages[-1:]) if folds else None

    settings = Settings(compaction=CompactionPolicy(context_limit=100, strategy=strategy))
    model = ScriptedModel([Reply("long", usage=FULL), "again"])
    async with Engine("sqlite://", model=model, settings=settings, observers=[traces.observer]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hi")
    span, known, below = compaction_of(traces)
    outcome = {"outcome": "succeeded", "messages_after": 1} if folds else {"outcome": "failed"}
    assert known == {"strategy": "custom", "messages_before": 2, **outcome}
    assert told(span).get("error.type") == (None if folds else "bad_request")
    assert below == []


async def test_queued_turn_has_a_trace_of_its_own(traces: Traces) -> None:
    gate = Gate()
    replies = [Reply(calls=[Call("work", {})]), "first", "second", "third"]
    async with Engine(
        "sqlite://", model=ScriptedModel(replies), tools=[gate.tool], observers=[traces.observer]
    ) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "one")
        await gate.entered.wait()
        with traces.provider.get_tracer("mine").start_as_current_span("request") as request:
            await engine.send_message(chat.id, "two")
        gate.open.set()
        await engine.wait(chat.id, until=["waiting"])
        while (await engine.get_chat(chat.id)).turn < 2 or (await engine.get_chat(chat.id)).state != "waiting":
            await engine.wait(chat.id)
    first, second = traces.turns()
    assert first.context.trace_id != second.context.trace_id
    assert second.parent is not None
    assert (second.context.trace_id, second.parent.span_id) == (
        request.get_span_context().trace_id,
        request.get_span_context().span_id,
    )
    last = [span for span in traces.spans if span.name.startswith("chat")][-1]
    assert_below(second, [last])


async def test_another_process_continues_the_trace(traces: Traces, others: Traces, tmp_path: Path) -> None:
    """The first asks the client and is closed; the second is told the answer, and ends the turn."""
    url = f"sqlite:///{tmp_path}/chats.db"
    model = ScriptedModel([Reply(calls=[Call("ask", {}, id="c1")])])
    async with Engine(url, model=model, observers=[traces.observer]) as engine:
        chat = await engine.create_chat(client_tools=[ASK])
        await engine.ask(chat.id, "go")
    assert traces.turns() == []
    async with Engine(url, model=ScriptedModel(["done"]), observers=[others.observer]) as engine:
        await engine.submit_tool_results(chat.id, [ToolResult("c1", "yes")])
        await engine.wait(chat.id)
    (turn,) = others.turns()
    assert_below(turn, [*traces.spans, *(span for span in others.spans if span is not turn)])
    assert len(traces.spans) == 1
    first = traces.spans[0]
    assert (turn.start_time or 0) <= (first.start_time or 0) < (first.end_time or 0) <= (turn.end_time or 0)


async def test_turn_span_never_ends_before_it_starts(traces: Traces) -> None:
    clock = ManualClock()

    def answer(_request: object) -> str:
        clock.step(-60)
        return "done"

    async with Engine("sqlite://", model=ScriptedModel([answer]), observers=[traces.observer], clock=clock) as engine:
        await engine.ask((await engine.create_chat()).id, "go")
    (turn,) = traces.turns()
    assert turn.start_time == turn.end_time == nanoseconds(clock.now())


KILLED = """
import anyio, os, sys
from opentelemetry.sdk.trace import TracerProvider
from turnwise import Engine, tool
from turnwise.engine.observers.opentelemetry import OpenTelemetryObserver
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.testing import ManualClock

@tool
async def work() -> str:
    "Work."
    os._exit(9)

async def main():
    model, observer = ScriptedModel([Reply(calls=[Call("work", {})])]), OpenTelemetryObserver(TracerProvider())
    async with Engine(sys.argv[1], model=model, tools=[work], observers=[observer]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "go")

anyio.run(main)
"""


async def test_killed_process_loses_no_turn_span(others: Traces, tmp_path: Path) -> None:
    """A span that was open in a dead process is nowhere; its ids are in the store."""
    url = f"sqlite:///{tmp_path}/chats.db"
    killed = await anyio.run_process([sys.executable, "-c", KILLED, url], check=False)
    assert killed.returncode == 9, killed.stderr
    async with Engine(url, model="demo", settings=Settings(run_worker=False)) as engine:
        (chat_id,) = await engine.chat_ids()
        known = TurnSpan.stored((await engine._store.facts(chat_id)).turn.trace)
    async with Engine(url, model=ScriptedModel(["done"]), observers=[others.observer]) as engine:
        await engine.wait(chat_id)
    (turn,) = others.turns()
    assert known is not None
    assert (turn.context.trace_id, turn.context.span_id) == (known.trace_id, known.span_id)
    (asked,) = (span for span in others.spans if span is not turn)
    assert_below(turn, [asked])


async def test_unsampled_turn_is_recorded_nowhere(tmp_path: Path, others: Traces) -> None:
    silent, url = Traces(sampler=ALWAYS_OFF), f"sqlite:///{tmp_path}/chats.db"
    settings = Settings(run_worker=False)
    async with Engine(url, model="demo", settings=settings, observers=[silent.observer]) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
    async with Engine(url, model=ScriptedModel(["hello"]), observers=[others.observer]) as engine:
        await engine.wait(chat.id)
    assert (silent.spans, others.spans) == ([], [])


async def test_no_observer_stores_no_trace(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/chats.db", model=ScriptedModel(["hello"])) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hi")
        facts = await engine._store.facts(chat.id)
    assert (facts.turn.trace, dict(facts.traces)) == (None, {})


@pytest.mark.parametrize("stored", ["", "00", "00-xyz-1-1", "01-1-2-3", "00-1", "another observer's"])
def test_foreign_trace_is_left_alone(stored: str) -> None:
    assert TurnSpan.stored(stored) is None


def test_trace_ids_round_trip() -> None:
    for span in (TurnSpan(1, 2, 1), TurnSpan(2**127, 2**63, 0, 7)):
        assert TurnSpan.stored(str(span)) == span


def test_times_become_nanoseconds() -> None:
    assert nanoseconds(datetime(1970, 1, 2, 0, 0, 1, 5, tzinfo=UTC)) == 86_401_000_005_000
