"""Observers: what they are told, that they cannot harm a chat, and that they cost nothing where nobody asks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from support.events import shown
from turnwise import (
    Agent,
    Engine,
    ModelCall,
    Observer,
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


async def test_observer_gets_every_transition_in_order(open_engine: Any, strict_model: Any) -> None:
    notes = Notes()
    async with open_engine(strict_model(adding()), tools=[add], observers=[notes]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "2 + 3?")
        audit = await engine.audit(chat.id)
    assert [decision.facts.version for decision in notes.decisions] == list(range(1, len(audit) + 1))
    assert [decision.trigger for decision in notes.decisions] == [record.trigger for record in audit]


async def test_observer_gets_model_calls_and_tool_runs(open_engine: Any, strict_model: Any) -> None:
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


async def test_interrupted_stream_is_reported_with_its_text(open_engine: Any, strict_model: Any) -> None:
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


@pytest.mark.parametrize("when", ["begin", "end"])
async def test_failing_observer_harms_nothing(
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


@pytest.mark.parametrize(
    ("module", "library"), [("prometheus", "prometheus_client"), ("opentelemetry", "opentelemetry")]
)
def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, module: str, library: str) -> None:
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


async def test_metrics_of_a_turn(open_engine: Any, strict_model: Any, metrics: CollectorRegistry) -> None:
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


async def test_labels_hold_no_chat_id_and_no_unknown_tool(
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


async def test_spans_hold_content_only_with_record_content(open_engine: Any, strict_model: Any, traces: Traces) -> None:
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


async def test_observer_gets_waiting_time_of_unserved_agents(database: Path) -> None:
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
