"""Observers: what they are told, that they cannot harm a chat, and that they cost nothing where nobody asks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from support.events import phases, shown
from support.latches import Gate
from turnwise import (
    Agent,
    Engine,
    FatalToolError,
    ModelCall,
    ModelError,
    Observer,
    RetryPolicy,
    Settings,
    SettingsError,
    ToolRun,
    Usage,
    tool,
)
from turnwise.engine.observers.observer import Ended
from turnwise.engine.observers.opentelemetry import OpenTelemetryObserver
from turnwise.engine.observers.prometheus import PrometheusObserver
from turnwise.providers.scripted import Call, Reply
from turnwise.states.decide import Decision
from turnwise.testing import ManualClock


class Notes(Observer):
    """Notes all it is told."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.model_calls: list[ModelCall] = []
        self.tool_runs: list[ToolRun] = []
        self.counts: list[int] = []
        self.waits: list[Mapping[str, float]] = []

    def waiting(self, seconds: Mapping[str, float]) -> None:
        self.waits.append(seconds)

    def transitioned(self, decision: Decision) -> None:
        self.decisions.append(decision)

    def running(self, chats: int) -> None:
        self.counts.append(chats)

    def model_called(self, call: ModelCall) -> Ended:
        return lambda: self.model_calls.append(call)

    def tool_started(self, run: ToolRun) -> Ended:
        return lambda: self.tool_runs.append(run)


class Broken(Observer):
    """Raises whatever it is told, at the beginning or at the end."""

    def __init__(self, *, when: str) -> None:
        self.begins = when == "end"

    def transitioned(self, decision: Decision) -> None:
        raise RuntimeError("transitioned")

    def running(self, chats: int) -> None:
        raise RuntimeError("running")

    def model_called(self, call: ModelCall) -> Ended:
        return self._tell()

    def tool_started(self, run: ToolRun) -> Ended:
        return self._tell()

    def _tell(self) -> Ended:
        if not self.begins:
            raise RuntimeError("began")
        return self._end

    def _end(self) -> None:
        raise RuntimeError("ended")


@tool
async def add(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second


def adding() -> list[Any]:
    return [
        Reply(calls=[Call("add", {"first": 2, "second": 3}, id="c1")], usage=Usage(input_tokens=10, output_tokens=4)),
        Reply("5", usage=Usage(input_tokens=20, output_tokens=1)),
    ]


# What any observer is told


async def test_an_observer_is_told_every_transition_in_order(open_engine: Any, strict_model: Any) -> None:
    notes = Notes()
    async with open_engine(strict_model(adding()), tools=[add], observers=[notes]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "2 + 3?")
        audit = await engine.audit(chat.id)
    assert [decision.facts.version for decision in notes.decisions] == list(range(1, len(audit) + 1))
    assert [decision.trigger for decision in notes.decisions] == [record.trigger for record in audit]


async def test_an_observer_is_told_what_runs_and_what_came_of_it(open_engine: Any, strict_model: Any) -> None:
    notes = Notes()
    async with open_engine(strict_model(adding()), tools=[add], observers=[notes]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "2 + 3?")
    first, second = notes.model_calls
    assert (first.outcome, first.request.step, second.request.step) == ("succeeded", 1, 2)
    assert second.reply is not None
    assert (second.reply.text, second.first_part_after is not None) == ("5", True)
    (run,) = notes.tool_runs
    assert (run.outcome, run.call.call_id, run.known, run.seconds > 0) == ("succeeded", "c1", True, True)
    assert notes.counts == [1, 0]


async def test_an_interrupted_call_is_told_as_cancelled(open_engine: Any, strict_model: Any) -> None:
    notes, gate = Notes(), Gate()
    model = strict_model([Reply(calls=[Call("work", {})])])
    async with open_engine(model, tools=[gate.tool], observers=[notes]) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        await gate.entered.wait()
        await engine.interrupt(chat.id)
        await engine.wait(chat.id, until=["interrupted"])
    assert [run.outcome for run in notes.tool_runs] == ["cancelled"]


async def test_a_stream_that_is_interrupted_is_told_with_what_it_had_said(open_engine: Any, strict_model: Any) -> None:
    notes = Notes()
    model = strict_model([Reply("half of", stall_after=1)])
    async with open_engine(model, observers=[notes]) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        await shown(engine, chat.id, "half of")
        await engine.interrupt(chat.id)
        await engine.wait(chat.id, until=["interrupted"])
    (call,) = notes.model_calls
    assert call.reply is not None
    assert (call.outcome, call.error, call.reply.text) == ("cancelled", None, "half of")


async def test_a_tool_that_takes_too_long_is_told_as_timed_out(open_engine: Any, strict_model: Any) -> None:
    notes, gate, clock = Notes(), Gate(timeout=5), ManualClock()
    model = strict_model([Reply(calls=[Call("work", {})]), "late"])
    async with open_engine(model, tools=[gate.tool], observers=[notes], clock=clock) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        await gate.entered.wait()
        await clock.advance(6)
        await engine.wait(chat.id)
    assert [run.outcome for run in notes.tool_runs] == ["timed_out"]


async def test_a_fatal_tool_is_told_as_fatal(open_engine: Any, strict_model: Any) -> None:
    notes = Notes()

    @tool
    async def end() -> None:
        """End it."""
        raise FatalToolError("enough")

    async with open_engine(strict_model([Reply(calls=[Call("end", {})])]), tools=[end], observers=[notes]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "go")
    assert [run.outcome for run in notes.tool_runs] == ["fatal"]


@pytest.mark.parametrize("when", ["begin", "end"])
async def test_an_observer_that_raises_harms_no_chat_and_no_other_observer(
    open_engine: Any, strict_model: Any, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    notes = Notes()
    observers = [Broken(when=when), notes]
    async with open_engine(strict_model(adding()), tools=[add], observers=observers) as engine:
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "2 + 3?")).text == "5"
    assert (len(notes.model_calls), len(notes.tool_runs)) == (2, 1)
    told = [record for record in caplog.records if "context_window_unknown" not in record.message]
    assert {record.name for record in told} == {"turnwise"}
    assert all("observer=Broken" in record.message and record.exc_info for record in told)


def test_importing_turnwise_imports_no_observer_and_no_library_for_one() -> None:
    observers = [f"turnwise.engine.observers.{name}" for name in ("prometheus", "opentelemetry", "turn_spans")]
    heavy = ["prometheus_client", "opentelemetry", "mcp", *observers]
    program = f"import sys, turnwise; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("module", "library"), [("prometheus", "prometheus_client"), ("opentelemetry", "opentelemetry")]
)
def test_without_the_extra_an_observer_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, module: str, library: str
) -> None:
    name = f"turnwise.engine.observers.{module}"
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SettingsError, match=r"turnwise\[observability\]"):
        __import__(name)


# Prometheus


@pytest.fixture
def metrics() -> CollectorRegistry:
    return CollectorRegistry()


def value(metrics: CollectorRegistry, name: str, **labels: str) -> float | None:
    return metrics.get_sample_value(f"turnwise_{name}", labels)


async def test_metrics_count_steps_transitions_tokens_and_tools(
    open_engine: Any, strict_model: Any, metrics: CollectorRegistry
) -> None:
    model = strict_model(adding())
    async with open_engine(model, tools=[add], observers=[PrometheusObserver(metrics)]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "2 + 3?")
    asked = {"provider": model.provider, "model": model.name}
    assert value(metrics, "steps_total", **asked) == 2
    assert value(metrics, "prompt_messages_sum", purpose="step", **asked) == 1 + 3
    assert value(metrics, "prompt_characters_count", purpose="step", **asked) == 2
    assert (value(metrics, "prompt_characters_sum", purpose="step", **asked) or 0) > len("2 + 3?") * 2
    assert value(metrics, "transitions_total", trigger="create", source="new", target="waiting") == 1
    assert value(metrics, "transitions_total", trigger="step_finished", source="streaming", target="waiting") == 1
    assert value(metrics, "tokens_total", direction="input", **asked) == 30
    assert value(metrics, "tokens_total", direction="output", **asked) == 5
    assert value(metrics, "first_part_seconds_count", **asked) == 2
    assert value(metrics, "model_call_seconds_count", purpose="step", outcome="succeeded", **asked) == 2
    assert value(metrics, "tool_seconds_count", tool="add", outcome="succeeded") == 1
    assert value(metrics, "running_chats") == 0


async def test_a_histogram_tells_values_of_its_own_size_apart(
    open_engine: Any, strict_model: Any, metrics: CollectorRegistry
) -> None:
    """Seconds up to ten minutes, the messages of a long chat, and its characters."""
    async with open_engine(strict_model(adding()), tools=[add], observers=[PrometheusObserver(metrics)]) as engine:
        await engine.ask((await engine.create_chat()).id, "2 + 3?")
    bounds: dict[str, set[float]] = {}
    for sample in (sample for family in metrics.collect() for sample in family.samples if "le" in sample.labels):
        bounds.setdefault(sample.name.removeprefix("turnwise_"), set()).add(float(sample.labels["le"]))
    seconds = (0.05, 600)
    assert {name: (min(found), sorted(found)[-2]) for name, found in bounds.items()} == {
        "prompt_messages_bucket": (1, 3000),
        "prompt_characters_bucket": (1e2, 1e7),
        "model_call_seconds_bucket": seconds,
        "first_part_seconds_bucket": seconds,
        "tool_seconds_bucket": seconds,
    }


async def test_metrics_show_how_many_chats_run(open_engine: Any, strict_model: Any, metrics: CollectorRegistry) -> None:
    gate = Gate()
    model = strict_model([Reply(calls=[Call("work", {})]), "done"])
    async with open_engine(model, tools=[gate.tool], observers=[PrometheusObserver(metrics)]) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        await gate.entered.wait()
        assert value(metrics, "running_chats") == 1
        gate.open.set()
        await engine.wait(chat.id)
    assert value(metrics, "running_chats") == 0


async def test_metrics_count_retries_by_the_kind_of_the_error(
    open_engine: Any, strict_model: Any, metrics: CollectorRegistry
) -> None:
    settings = Settings(retry=RetryPolicy(first_delay=0.001))
    model = strict_model([Reply(error=ModelError("overloaded")), Reply(error=ModelError("rate_limit")), "at last"])
    async with open_engine(model, settings=settings, observers=[PrometheusObserver(metrics)]) as engine:
        chat = await engine.create_chat()
        assert (await engine.ask(chat.id, "hi")).text == "at last"
    asked = {"provider": model.provider, "model": model.name}
    assert value(metrics, "retries_total", kind="overloaded", **asked) == 1
    assert value(metrics, "retries_total", kind="rate_limit", **asked) == 1
    assert value(metrics, "model_call_seconds_count", purpose="step", outcome="overloaded", **asked) == 1


async def test_metrics_count_compactions_and_their_model_calls(
    open_engine: Any, strict_model: Any, metrics: CollectorRegistry
) -> None:
    model = strict_model(["hello"])
    async with open_engine(model, observers=[PrometheusObserver(metrics)]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hi")
        await engine.request_compaction(chat.id)
        await engine.wait(chat.id)
        assert "finished" in await phases(engine, chat.id)
    asked = {"provider": model.provider, "model": model.name}
    assert value(metrics, "compactions_total", outcome="compacted", **asked) == 1
    assert value(metrics, "model_call_seconds_count", purpose="summary", outcome="succeeded", **asked) == 1


async def test_metrics_count_reminders(open_engine: Any, strict_model: Any, metrics: CollectorRegistry) -> None:
    model, observers = strict_model(["a", "b"]), [PrometheusObserver(metrics)]
    async with open_engine(model, reminders=[lambda _: ["be brief", "be kind"]], observers=observers) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "<reminder>mine</reminder>")
        await engine.ask(chat.id, "more")
    assert value(metrics, "reminders_total", provider=model.provider, model=model.name) == 4


async def test_no_label_is_a_chat_or_a_name_that_the_model_made_up(
    open_engine: Any, strict_model: Any, metrics: CollectorRegistry
) -> None:
    model = strict_model([Reply(calls=[Call("made_up_name", {})]), "oh"])
    async with open_engine(model, tools=[add], observers=[PrometheusObserver(metrics)]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "go")
    told = {label for metric in metrics.collect() for sample in metric.samples for label in sample.labels.values()}
    assert told.isdisjoint({chat.id, "made_up_name"})
    assert value(metrics, "tool_seconds_count", tool="unknown", outcome="failed") == 1


# OpenTelemetry


class Traces:
    """Keeps the spans that ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def everything(self) -> str:
        """Return all that the spans say, without times and ids, whose digits could be anything."""
        spans = self._exporter.get_finished_spans()
        told = [[span.name, attributes(span), span.status.description] for span in spans]
        events = [[event.name, dict(event.attributes or {})] for span in spans for event in span.events]
        return json.dumps(told + events)


@pytest.fixture
def traces() -> Iterator[Traces]:
    kept = Traces()
    yield kept
    kept.provider.shutdown()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_spans_speak_the_words_of_the_conventions(open_engine: Any, strict_model: Any, traces: Traces) -> None:
    model = strict_model(adding())
    observer = OpenTelemetryObserver(traces.provider)
    settings = Settings(parameters={"temperature": 0.5, "max_output_tokens": 100})
    async with open_engine(model, tools=[add], settings=settings, observers=[observer]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "2 + 3?")
    first, second = traces.named(f"chat {model.name}")
    told = attributes(first)
    assert told.pop("gen_ai.response.time_to_first_chunk") >= 0
    assert told == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": model.provider,
        "gen_ai.request.model": model.name,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 100,
        "gen_ai.conversation.id": chat.id,
        "gen_ai.response.finish_reasons": attributes(first)["gen_ai.response.finish_reasons"],
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 4,
        "turnwise.purpose": "step",
        "turnwise.step": 1,
        "turnwise.attempt": 1,
        "turnwise.prompt.messages": 1,
        "turnwise.prompt.characters": len("2 + 3?"),
    }
    assert (first.kind, second.status.status_code) == (trace.SpanKind.CLIENT, trace.StatusCode.UNSET)
    (run,) = traces.named("execute_tool add")
    assert attributes(run) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "add",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.conversation.id": chat.id,
    }


async def test_a_span_tells_how_many_reminders_stood_in_its_prompt(
    open_engine: Any, strict_model: Any, traces: Traces
) -> None:
    model, observer = strict_model(["fine"]), OpenTelemetryObserver(traces.provider)
    reminders = [lambda _: ["be brief", "be kind"]]
    async with open_engine(model, observers=[observer], reminders=reminders) as engine:
        await engine.ask((await engine.create_chat()).id, "hi")
    (span,) = traces.named(f"chat {model.name}")
    assert (attributes(span)["turnwise.prompt.reminders"], attributes(span)["turnwise.prompt.messages"]) == (2, 3)


async def test_what_a_tool_traces_is_a_child_of_its_span(open_engine: Any, strict_model: Any, traces: Traces) -> None:
    @tool
    async def look() -> str:
        """Look it up."""
        with traces.provider.get_tracer("mine").start_as_current_span("lookup"):
            return "found"

    model = strict_model([Reply(calls=[Call("look", {})]), "done"])
    async with open_engine(model, tools=[look], observers=[OpenTelemetryObserver(traces.provider)]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "go")
    (inner,), (outer,) = traces.named("lookup"), traces.named("execute_tool look")
    assert inner.parent is not None
    assert inner.parent.span_id == outer.context.span_id


async def test_a_failure_is_named_in_its_span(open_engine: Any, strict_model: Any, traces: Traces) -> None:
    model = strict_model([Reply(error=ModelError("authentication", message="the key of Jane is wrong"))])
    async with open_engine(model, observers=[OpenTelemetryObserver(traces.provider)]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hi")
    (span,) = traces.named(f"chat {model.name}")
    assert attributes(span)["error.type"] == "authentication"
    assert span.status.status_code is trace.StatusCode.ERROR
    assert "Jane" not in traces.everything()


async def test_content_is_recorded_only_if_asked_for(open_engine: Any, strict_model: Any, traces: Traces) -> None:
    async def everything(*, record_content: bool) -> str:
        kept = Traces()
        observer = OpenTelemetryObserver(kept.provider, record_content=record_content)
        script = [Reply(calls=[Call("add", {"first": 7000001, "second": 1000006}, id="c1")]), "the-answer"]
        async with open_engine(strict_model(script), tools=[add], observers=[observer]) as engine:
            chat = await engine.create_chat(system="the-system")
            await engine.ask(chat.id, "the-question")
        return kept.everything()

    secrets = ["the-system", "the-question", "the-answer", "7000001", "1000006", "8000007"]
    silent, open_book = await everything(record_content=False), await everything(record_content=True)
    assert [secret for secret in secrets if secret in silent] == []
    assert [secret for secret in secrets if secret not in open_book] == []


async def test_recorded_messages_have_the_form_of_the_conventions(
    open_engine: Any, strict_model: Any, traces: Traces
) -> None:
    model = strict_model(adding())
    observer = OpenTelemetryObserver(traces.provider, record_content=True)
    async with open_engine(model, tools=[add], observers=[observer]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "2 + 3?")
    told = attributes(traces.named(f"chat {model.name}")[1])
    call = {"type": "tool_call", "id": "c1", "name": "add", "arguments": {"first": 2, "second": 3}}
    assert json.loads(told["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "2 + 3?"}]},
        {"role": "assistant", "parts": [call]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": 5}]},
    ]
    (said,) = json.loads(told["gen_ai.output.messages"])
    assert said["parts"] == [{"type": "text", "content": "5"}]


async def test_what_a_tool_raises_is_recorded_in_its_span(open_engine: Any, strict_model: Any, traces: Traces) -> None:
    @tool
    async def fail() -> str:
        """Fail."""
        raise ValueError("bad luck")

    model = strict_model([Reply(calls=[Call("fail", {})]), "I see"])
    settings = Settings(describe_error=lambda error: "it failed")
    observers = [OpenTelemetryObserver(traces.provider, record_content=content) for content in (True, False)]
    async with open_engine(model, tools=[fail], settings=settings, observers=observers) as engine:
        await engine.ask((await engine.create_chat()).id, "go")
    spans = [span.events for span in traces.named("execute_tool fail")]
    without, with_content = sorted(spans, key=lambda events: "exception.stacktrace" in events[0].attributes)
    assert [event.attributes["exception.type"] for event in (*with_content, *without)] == ["ValueError"] * 2
    assert "bad luck" in with_content[0].attributes["exception.stacktrace"]
    assert "bad luck" not in str(without[0].attributes)


async def test_a_chat_whose_agent_nobody_runs_is_told_of_by_how_long_it_waits(database: Path) -> None:
    """So an alarm can be set on it, whichever process looks."""
    store, clock = f"sqlite:///{database}", ManualClock()
    idle = Settings(run_worker=False)
    async with Engine(store, agents=[Agent("support", "demo")], settings=idle, clock=clock) as client:
        chat = await client.create_chat()
        await client.send_message(chat.id, "hi")
    clock.advance(90)
    notes = Notes()
    async with Engine(store, agents=[Agent("research", "demo")], observers=[notes], clock=clock) as other:
        with anyio.fail_after(60):
            while not notes.waits:  # noqa: ASYNC110 - an observer tells nobody
                await anyio.sleep(0.01)
        assert (await other.get_chat(chat.id)).state == "pending"
    assert notes.waits[0] == {"support": 90.0}
