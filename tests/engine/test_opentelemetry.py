"""OpenTelemetry: attributes and parents of the spans, and one trace per turn across processes."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from support.latches import Gate
from support.life import NOW, streaming, text_parts
from turnwise import ClientTool, CompactionPolicy, Engine, RetryPolicy, Settings, ToolFailed, ToolResult, Usage, tool
from turnwise.engine.observers.observer import CompactionRun, Ended, ModelCall, ToolRun
from turnwise.engine.observers.opentelemetry import OpenTelemetryObserver
from turnwise.engine.observers.turn_spans import TurnSpan, nanoseconds
from turnwise.providers.protocol import ModelPart, ModelReply, ModelRequest
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states import triggers as t
from turnwise.states.calls import CallOutcome, ToolCall
from turnwise.states.decide import Decision
from turnwise.states.facts import TurnFacts
from turnwise.states.messages import FilePart, Message, Part, ReasoningPart, ToolCallPart, ToolResultPart
from turnwise.states.model_errors import ModelError
from turnwise.states.names import CallStatus, Executor, StopReason
from turnwise.states.triggers import Trigger
from turnwise.testing import ManualClock

TRACE = str(TurnSpan(trace_id=7, span_id=8, flags=1))
OVER = TurnFacts(
    number=3, steps=2, started_at=NOW, usage=Usage(input_tokens=5, output_tokens=6, cost=Decimal(7)), trace=TRACE
)
MADE = ToolCall(call_id="x", name="add", arguments={"n": 1}, executor=Executor.local, index=0, step=1)
DONE = CallOutcome(call_id="x", status=CallStatus.succeeded, output={"sum": 2}, is_error=False)


class Traces:
    """An observer, and the spans that it ended."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.observer = OpenTelemetryObserver(self.provider, **options)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def turns(self) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == "invoke_agent"]

    @property
    def last(self) -> ReadableSpan:
        return self.spans[-1]

    @property
    def attributes(self) -> dict[str, Any]:
        return dict(self.last.attributes or {})

    @property
    def failure(self) -> tuple[Any, bool]:
        return self.attributes.get("error.type"), self.last.status.status_code is trace.StatusCode.ERROR


@pytest.fixture
def traces() -> Iterator[Traces]:
    saved = Traces()
    yield saved
    saved.provider.shutdown()


@pytest.fixture
def open_book() -> Iterator[Traces]:
    saved = Traces(record_content=True)
    yield saved
    saved.provider.shutdown()


def message(*parts: Part) -> Message:
    return Message(id="m", role="user", parts=parts, turn=1, step=0, created_at=NOW, position=1)


def call(
    *parts: Part, provider: str = "p", system: str | None = None, parameters: Any = None, **known: Any
) -> ModelCall:
    request = ModelRequest(
        purpose="summary",
        chat_id="c",
        messages=[message(*parts)] if parts else [],
        step=4,
        attempt=2,
        system=system,
        parameters=parameters or {},
    )
    return ModelCall(provider=provider, model="m", request=request, trace=TRACE, **known)


def reply(*parts: Part, **finish: Any) -> ModelReply:
    return ModelReply(parts, ModelPart("finish", **finish))


@pytest.mark.parametrize(
    ("provider", "name"),
    [
        ("openai", "openai"),
        *(("azure", "azure.ai.openai"), ("bedrock", "aws.bedrock"), ("google", "gcp.gemini")),
        *(("google-cloud", "gcp.vertex_ai"), ("mistral", "mistral_ai"), ("xai", "x_ai")),
    ],
)
def test_provider_names_follow_the_conventions(traces: Traces, provider: str, name: str) -> None:
    traces.observer.model_called(call(provider=provider))()
    assert traces.attributes["gen_ai.provider.name"] == name


def test_model_call_span_has_request_and_usage(traces: Traces) -> None:
    counts = {"input_tokens": 1, "output_tokens": 2, "reasoning_tokens": 3}
    usage = Usage(**counts, cache_read_tokens=4, cache_write_tokens=5, cost=Decimal("0.25"))
    metadata = {"response_model": "m-2", "response_id": "r1", "reason": "stop"}
    parameters = {
        "max_output_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 8,
        "presence_penalty": 1.5,
        "frequency_penalty": 2.5,
        "seed": 3,
    }
    asked = call(*text_parts("hello"), system="four", parameters=parameters)
    ended = traces.observer.model_called(asked)
    asked.first_part_after = 1.5
    asked.reply = reply(*text_parts("yes"), stop_reason=StopReason.end_turn, usage=usage, metadata=metadata)
    ended()
    assert traces.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "p",
        "gen_ai.request.model": "m",
        "gen_ai.conversation.id": "c",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.25,
        "gen_ai.request.top_k": 8,
        "gen_ai.request.presence_penalty": 1.5,
        "gen_ai.request.frequency_penalty": 2.5,
        "gen_ai.response.time_to_first_chunk": 1.5,
        "gen_ai.response.model": "m-2",
        "gen_ai.response.id": "r1",
        "gen_ai.response.finish_reasons": ("end_turn",),
        "gen_ai.usage.input_tokens": 1,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.reasoning.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.cache_creation.input_tokens": 5,
        "turnwise.cost": 0.25,
        "turnwise.purpose": "summary",
        "turnwise.step": 4,
        "turnwise.attempt": 2,
        "turnwise.prompt.messages": 1,
        "turnwise.prompt.characters": len("hellofour"),
    }
    assert (traces.last.name, traces.last.kind, traces.failure) == ("chat m", trace.SpanKind.CLIENT, (None, False))


def test_content_follows_the_conventions(traces: Traces, open_book: Traces) -> None:
    parts = (
        *text_parts("hi"),
        ReasoningPart(text="hm"),
        ToolCallPart(call_id="x", name="add", arguments={"n": 1}),
        ToolResultPart(call_id="x", name="add", output=[2]),
        FilePart(media_type="image/png", data="AAAA"),
    )
    written = [
        {"type": "text", "content": "hi"},
        {"type": "reasoning", "content": "hm"},
        {"type": "tool_call", "id": "x", "name": "add", "arguments": {"n": 1}},
        {"type": "tool_call_response", "id": "x", "response": [2]},
    ]
    asked = call(*parts, system="be brief", reply=reply(*parts[:2], stop_reason=StopReason.end_turn))
    for saved in (traces, open_book):
        saved.observer.model_called(asked)()
    content = {"gen_ai.input.messages", "gen_ai.system_instructions", "gen_ai.output.messages"}
    assert content.isdisjoint(traces.attributes)
    assert {name: json.loads(open_book.attributes[name]) for name in content} == {
        "gen_ai.input.messages": [{"role": "user", "parts": written}],
        "gen_ai.system_instructions": [{"type": "text", "content": "be brief"}],
        "gen_ai.output.messages": [{"role": "assistant", "parts": written[:2], "finish_reason": "end_turn"}],
    }
    open_book.observer.model_called(call(*parts))()
    assert content & set(open_book.attributes) == {"gen_ai.input.messages"}


@pytest.mark.parametrize(
    ("result", "error", "failure"),
    [
        (DONE, None, (None, False)),
        (dataclasses.replace(DONE, status=CallStatus.failed, is_error=True), OSError("disk"), ("failed", True)),
        (None, None, ("cancelled", True)),
    ],
    ids=["done", "failed", "cancelled"],
)
def test_tool_span_has_tool_and_outcome(traces: Traces, result: Any, error: Any, failure: tuple[Any, bool]) -> None:
    run = ToolRun(chat_id="c", call=MADE, known=True, trace=TRACE)
    ended = traces.observer.tool_started(run)
    run.result, run.error = result, error
    ended()
    assert (traces.last.name, traces.failure) == ("execute_tool add", failure)
    assert [event.name for event in traces.last.events] == (["exception"] if error is not None else [])
    assert {name: value for name, value in traces.attributes.items() if name != "error.type"} == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "add",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "x",
        "gen_ai.conversation.id": "c",
    }


def test_tool_content_is_recorded_with_record_content(traces: Traces, open_book: Traces) -> None:
    """The text of a `ToolFailed` is the tool's result; the text of another error may quote the arguments."""
    errors = []
    for saved in (traces, open_book):
        run = ToolRun(chat_id="c", call=MADE, known=True, trace=TRACE)
        ended = saved.observer.tool_started(run)
        run.result, run.error = DONE, ToolFailed("DE89 is no IBAN")
        ended()
        errors.append(dict(saved.last.events[0].attributes or {}))
    assert errors[0] == {"exception.type": "turnwise.states.errors.ToolFailed"}
    assert errors[1]["exception.message"] == "DE89 is no IBAN"
    content = [json.loads(open_book.attributes[f"gen_ai.tool.call.{name}"]) for name in ("arguments", "result")]
    assert content == [{"n": 1}, {"sum": 2}]


def compaction(**known: Any) -> CompactionRun:
    return CompactionRun(chat_id="c", step=4, attempt=2, strategy="summary", messages_before=9, trace=TRACE, **known)


@pytest.mark.parametrize(
    ("known", "outcome", "failure"),
    [
        ({"messages_after": 2}, "succeeded", (None, False)),
        ({"error": ModelError("overloaded")}, "failed", ("overloaded", True)),
        ({}, "cancelled", ("cancelled", True)),
    ],
    ids=["folded", "failed", "cancelled"],
)
def test_compaction_span_has_counts_and_outcome(
    traces: Traces, known: dict[str, Any], outcome: str, failure: tuple[Any, bool]
) -> None:
    traces.observer.compaction_started(compaction(**known))()
    assert traces.failure == failure
    attributes = {name: value for name, value in traces.attributes.items() if name != "error.type"}
    assert attributes == {
        "gen_ai.conversation.id": "c",
        "turnwise.compaction.strategy": "summary",
        "turnwise.compaction.messages_before": 9,
        "turnwise.step": 4,
        "turnwise.attempt": 2,
        "turnwise.compaction.outcome": outcome,
        **({"turnwise.compaction.messages_after": 2} if "messages_after" in known else {}),
    }


def parent_of(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def test_spans_nest_below_their_turn(traces: Traces) -> None:
    tracer = traces.provider.get_tracer("mine")
    observer = traces.observer
    begins: list[Callable[[], Ended]] = [
        lambda: observer.model_called(call()),
        lambda: observer.tool_started(ToolRun(chat_id="c", call=MADE, known=True, trace=TRACE)),
        lambda: observer.compaction_started(compaction()),
    ]
    for start in begins:
        ended = start()
        tracer.start_span("mine").end()
        ended()
        tracer.start_span("later").end()
        mine, work, later = traces.spans[-3:]
        assert parent_of(work) == (7, 8)
        assert parent_of(mine) == (work.context.trace_id, work.context.span_id)
        assert parent_of(later) is None


def decided(turn: TurnFacts | None, trigger: type[Trigger] | None = None, **facts: Any) -> Decision:
    decision = streaming().reply()
    known = replace(decision.facts, **facts)
    return replace(decision, ended=turn, facts=known, trigger=trigger or decision.trigger)


@pytest.mark.parametrize(
    ("ended_by", "trigger", "reason"),
    [
        (StopReason.max_steps, None, "max_steps"),
        (None, None, "end_turn"),
        (None, t.EditMessage, "cut"),
        (StopReason.interrupted, t.EditMessage, "interrupted"),
    ],
)
def test_turn_span_has_the_stored_ids(
    traces: Traces, ended_by: StopReason | None, trigger: type[Trigger] | None, reason: str
) -> None:
    decision = decided(replace(OVER, ended_by=ended_by), trigger)
    traces.observer.transitioned(decision)
    span = traces.last
    assert (span.name, span.context.trace_id, span.context.span_id) == ("invoke_agent", 7, 8)
    assert (span.start_time, span.end_time) == (nanoseconds(NOW), nanoseconds(decision.facts.updated_at or NOW))
    assert traces.failure == (None, False)
    assert traces.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.conversation.id": "c",
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 6,
        "turnwise.cost": 7.0,
        "turnwise.turn": 3,
        "turnwise.steps": 2,
        "turnwise.stop_reason": reason,
    }


def test_failed_turn_has_error_status(traces: Traces) -> None:
    over = replace(OVER, ended_by=StopReason.error)
    error = streaming().fail().facts.last_error
    traces.observer.transitioned(decided(over, last_error=error))
    assert traces.failure == (error.kind, True)
    traces.observer.transitioned(decided(over, last_error=None))
    assert traces.failure == (None, False)
    traces.observer.transitioned(decided(replace(OVER, ended_by=None), last_error=error))
    assert traces.failure == (None, False)


@pytest.mark.parametrize("turn", [None, replace(OVER, trace=None), replace(OVER, trace="mine")])
def test_no_trace_makes_no_span(traces: Traces, turn: TurnFacts | None) -> None:
    traces.observer.transitioned(decided(turn))
    unsampled = str(TurnSpan(trace_id=7, span_id=8, flags=0))
    traces.observer.transitioned(decided(replace(OVER, trace=unsampled)))
    assert traces.spans == []


def test_new_turn_gets_ids_unless_nothing_records(traces: Traces) -> None:
    new = TurnSpan.stored(traces.observer.turn_trace("c"))
    assert new.parent_id is None
    assert OpenTelemetryObserver(trace.NoOpTracerProvider()).turn_trace("c") is None


ASK = ClientTool("ask", "Ask.", {"type": "object"})


@tool
async def add(first: int, second: int) -> int:
    """Add."""
    return first + second


def assert_below(turn: ReadableSpan, spans: list[ReadableSpan]) -> None:
    """Check that the spans are children of the turn's, within its time."""
    assert turn.start_time is not None
    assert turn.end_time is not None
    for span in spans:
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
    call = "chat scripted"
    assert [span.name for span in rest] == [call, call, "execute_tool add", call, "compact", call]
    *before, summary, compaction, after = rest
    assert_below(turn, [*before, compaction, after])
    assert_below(compaction, [summary])
    calls = [dict(span.attributes or {}) for span in rest if span.name == "chat scripted"]
    assert [call["turnwise.purpose"] for call in calls] == ["step", "step", "summary", "step"]
    assert [call.get("error.type") for call in calls] == ["overloaded", None, None, None]
    assert [call["turnwise.attempt"] for call in calls] == [1, 2, 3, 1]
    attributes = dict(turn.attributes or {})
    assert (attributes["turnwise.turn"], attributes["turnwise.steps"]) == (1, 2)
    assert attributes["turnwise.stop_reason"] == "end_turn"


async def test_queued_turn_has_a_trace_of_its_own(traces: Traces) -> None:
    gate = Gate()
    replies = [Reply(calls=[Call("work", {})]), "first", "second", "third"]
    model = ScriptedModel(replies)
    async with Engine("sqlite://", model=model, tools=[gate.tool], observers=[traces.observer]) as engine:
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
    asked = request.get_span_context()
    assert (second.context.trace_id, second.parent.span_id) == (asked.trace_id, asked.span_id)
    last = [span for span in traces.spans if span.name.startswith("chat")][-1]
    assert_below(second, [last])


async def test_another_process_continues_the_trace(traces: Traces, open_book: Traces, tmp_path: Path) -> None:
    """The first process calls the client and closes; the second one gets the answer and ends the turn."""
    url = f"sqlite:///{tmp_path}/chats.db"
    model = ScriptedModel([Reply(calls=[Call("ask", {}, id="c1")])])
    async with Engine(url, model=model, observers=[traces.observer]) as engine:
        chat = await engine.create_chat(client_tools=[ASK])
        await engine.ask(chat.id, "go")
    assert traces.turns() == []
    async with Engine(url, model=ScriptedModel(["done"]), observers=[open_book.observer]) as engine:
        await engine.submit_tool_results(chat.id, [ToolResult("c1", "yes")])
        await engine.wait(chat.id)
    (turn,) = open_book.turns()
    assert_below(turn, [*traces.spans, *(span for span in open_book.spans if span is not turn)])
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


@pytest.mark.parametrize("stored", ["", "00", "00-xyz-1-1", "01-1-2-3", "00-1", "another observer's"])
def test_foreign_trace_is_left_alone(stored: str) -> None:
    assert TurnSpan.stored(stored) is None


def test_trace_ids_round_trip() -> None:
    for span in (TurnSpan(1, 2, 1), TurnSpan(2**127, 2**63, 0, 7)):
        assert TurnSpan.stored(str(span)) == span


def test_times_become_nanoseconds() -> None:
    assert nanoseconds(datetime(1970, 1, 2, 0, 0, 1, 5, tzinfo=UTC)) == 86_401_000_005_000
