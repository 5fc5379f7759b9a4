"""Observers: their calls, the order of calls, and failures that stay isolated."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from decimal import Decimal
from pathlib import Path
from time import perf_counter
from typing import Any

import anyio
import pytest
import structlog
from prometheus_client import CollectorRegistry

from support.engines import OpenChat
from support.events import events_of, shown
from support.latches import Gate
from support.life import BLANK, ERROR, NOW, Life, compacting, local, queued, streaming, text_parts
from turnwise import Agent, CompactionPolicy, Engine, ModelError, Observer, Settings, SettingsError, Usage, tool
from turnwise.engine.observers.observer import CompactionRun, Ended, ModelCall, Observers, ToolRun
from turnwise.engine.observers.prometheus import PrometheusObserver
from turnwise.providers.protocol import ModelPart, ModelReply, ModelRequest, SentReminder
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.calls import CallOutcome, ToolCall
from turnwise.states.decide import Decision
from turnwise.states.errors import FatalToolError, InvalidArgument
from turnwise.states.messages import FilePart, Message, ReasoningPart, TextPart
from turnwise.states.names import CallStatus, Executor, StopReason
from turnwise.testing import ManualClock


class Watching(Observer):
    """Records each call with its own name, in a list that several may share; it raises where configured."""

    def __init__(self, name: str, log: list[Any], *, raises: str = "", trace: str | None = None) -> None:
        self.name, self.log, self.raises, self.trace = name, log, raises, trace

    def _note(self, what: str, *more: Any) -> None:
        self.log.append((self.name, what, *more))
        if what == self.raises:
            raise RuntimeError("planted")

    def turn_trace(self, chat_id: str) -> str | None:
        self._note("trace", chat_id)
        return self.trace

    def transitioned(self, decision: Decision) -> None:
        self._note("transitioned", decision.trigger.name)

    def running(self, chats: int) -> None:
        self._note("running", chats)

    def waiting(self, seconds: Mapping[str, float]) -> None:
        self._note("waiting", seconds)

    def _begins(self, watched: Any) -> Ended:
        self._note("begins", watched)
        return lambda: self._note("ended", watched.outcome)

    model_called = compaction_started = tool_started = _begins


def message(role: Any, *parts: Any, position: int = 0) -> Message:
    return Message(id="m", role=role, parts=parts, turn=1, step=1, created_at=NOW, position=position)


REQUEST = ModelRequest(purpose="step", chat_id="c", messages=[])
CALL = local("a")
Watch = Callable[[Observers], AbstractContextManager[Any]]
WATCHED: dict[str, Watch] = {
    "a model call": lambda watching: watching.model_call(ScriptedModel([]), REQUEST, trace="t"),
    "a compaction": lambda watching: watching.compaction(BLANK, by_strategy=False, messages=3),
    "a tool run": lambda watching: watching.tool_run("c", CALL, known=True, trace="t"),
}


def reply(stop_reason: Any) -> ModelReply:
    return ModelReply((), ModelPart("finish", stop_reason=stop_reason))


def result(status: CallStatus) -> CallOutcome:
    return CallOutcome(call_id="a", status=status, output=None, is_error=False)


def model_call(**more: Any) -> ModelCall:
    return ModelCall(provider="p", model="m", request=REQUEST, **more)


def tool_run(**more: Any) -> ToolRun:
    return ToolRun(chat_id="c", call=CALL, known=True, **more)


def compaction(**more: Any) -> CompactionRun:
    return CompactionRun(chat_id="c", step=1, attempt=1, strategy="summary", messages_before=3, **more)


@pytest.mark.parametrize(
    ("watched", "outcome"),
    [
        (model_call(), "cancelled"),
        (model_call(reply=reply(None)), "cancelled"),
        (model_call(reply=reply("end_turn")), "succeeded"),
        (model_call(reply=reply("end_turn"), error=ModelError("overloaded")), "overloaded"),
        (model_call(error=ValueError()), "internal"),
        (tool_run(), "cancelled"),
        (tool_run(result=result(CallStatus.succeeded)), "succeeded"),
        (tool_run(result=result(CallStatus.failed)), "failed"),
        (tool_run(result=result(CallStatus.timed_out)), "timed_out"),
        (tool_run(result=FatalToolError("no")), "fatal"),
        (compaction(), "cancelled"),
        (compaction(messages_after=0), "succeeded"),
        (compaction(messages_after=1, error=ModelError("timeout")), "timeout"),
        (compaction(error=ValueError()), "internal"),
    ],
)
def test_outcome_is_one_word(watched: Any, outcome: str) -> None:
    assert watched.outcome == outcome


def test_model_call_counts_characters_and_reminders() -> None:
    messages = [
        message("user", TextPart(text="four"), FilePart(media_type="text/plain", data="x" * 32), position=1),
        message("assistant", ReasoningPart(text="hm"), TextPart(text="fine"), position=2),
        message("system", TextPart(text="<reminder>")),  # only the request marks reminders
    ]
    call = model_call()
    assert (call.characters, call.reminders) == (0, 0)
    sent = (SentReminder("hurry"), SentReminder("hurry", "error"))
    call.request = ModelRequest(purpose="step", chat_id="c", messages=messages, system="seven..", reminders=sent)
    assert (call.characters, call.reminders) == (4 + 2 + 2 + 4 + 10 + 7, 2)


def test_failing_observer_hides_no_transition_from_others(caplog: pytest.LogCaptureFixture) -> None:
    log: list[Any] = []
    first, second = Watching("first", log, raises="transitioned"), Watching("second", log)
    life = Life()
    decisions = [life.create(), life.send("hello")]
    Observers((first, second)).transitioned(decisions)
    assert log == [
        ("first", "transitioned", "create"),
        ("second", "transitioned", "create"),
        ("second", "transitioned", "send_message"),
    ]
    (record,) = caplog.records
    assert "observer_failed" in record.getMessage()
    assert "Watching" in record.getMessage()


@pytest.mark.parametrize("what", WATCHED)
def test_observers_end_in_reverse_order(what: str, caplog: pytest.LogCaptureFixture) -> None:
    log: list[Any] = []
    before = perf_counter()
    watchers = (
        Watching("a", log),
        Watching("fails", log, raises="begins"),
        Observer(),
        Watching("fails later", log, raises="ended"),
        Watching("b", log),
    )
    with WATCHED[what](Observers(watchers)) as watched:
        assert [entry[:2] for entry in log] == [(name, "begins") for name in ("a", "fails", "fails later", "b")]
        assert {id(entry[2]) for entry in log} == {id(watched)}
        log.clear()
        assert watched.seconds == 0
        for _ in range(1000):
            pass
    assert [entry[:2] for entry in log] == [(name, "ended") for name in ("b", "fails later", "a")]
    assert 0 < watched.seconds <= perf_counter() - before
    assert len(caplog.records) == 2


@pytest.mark.parametrize("what", WATCHED)
async def test_failure_and_cancellation_become_outcomes(what: str) -> None:
    log: list[Any] = []
    watching = Observers((Watching("w", log),))
    noted = "cancelled" if what == "a tool run" else "overloaded"
    with pytest.raises(ModelError), WATCHED[what](watching):
        raise ModelError("overloaded")
    assert log[-1] == ("w", "ended", noted)
    with anyio.CancelScope() as scope, WATCHED[what](watching):
        scope.cancel()
        await asyncio.sleep(0)
    assert log[-1] == ("w", "ended", "cancelled")


def test_invalid_trace_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """The chat stays readable for any value that an observer returns."""
    watching = Observers((Watching("odd", [], trace=5), Watching("text", [], trace="t")))
    assert watching.turn_trace("c") == "t"
    assert [record.levelname for record in caplog.records if "observer_failed" in record.getMessage()] == ["ERROR"]


@pytest.mark.parametrize("name", [name for name in vars(Observer) if not name.startswith("_")])
def test_async_observer_is_refused(name: str) -> None:
    """It would be called and never awaited, without any error."""

    async def learn(*_: object) -> None:
        """Learn nothing."""

    waiting = type("Waiting", (Observer,), {name: learn})
    with pytest.raises(SettingsError, match=rf"^observers: Waiting\.{name} must be no coroutine"):
        Engine("sqlite://", model="demo", observers=[Observer(), waiting()])


class Notes(Observer):
    """Records everything."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.model_calls: list[ModelCall] = []
        self.tool_runs: list[ToolRun] = []
        self.counts: list[int] = []

    def transitioned(self, decision: Decision) -> None:
        self.decisions.append(decision)

    def running(self, chats: int) -> None:
        self.counts.append(chats)

    def model_called(self, call: ModelCall) -> Ended:
        return lambda: self.model_calls.append(call)

    def tool_started(self, run: ToolRun) -> Ended:
        return lambda: self.tool_runs.append(run)


async def test_observer_gets_transitions_model_calls_and_tool_runs(strict_model: Any, open_chat: OpenChat) -> None:
    async def look() -> str:
        """Look."""
        return "seen"

    notes, model = Notes(), strict_model([Reply(calls=[Call("look", {}, id="c1")]), "5"])
    async with open_chat(model, tools=[look], observers=[notes]) as (engine, chat, _):
        await engine.ask(chat.id, "go")
        audit = await engine.audit(chat.id)
    assert [decision.facts.version for decision in notes.decisions] == list(range(1, len(audit) + 1))
    assert [decision.trigger.name for decision in notes.decisions] == [record.trigger for record in audit]
    first, second = notes.model_calls
    assert (first.outcome, first.request.step, second.request.step) == ("succeeded", 1, 2)
    assert (second.reply.text, second.first_part_after is not None) == ("5", True)
    (run,) = notes.tool_runs
    assert (run.outcome, run.call.call_id, run.known, run.seconds > 0) == ("succeeded", "c1", True, True)
    assert notes.counts == [1, 0]


async def test_interrupted_stream_is_reported_with_its_text(open_chat: OpenChat) -> None:
    notes = Notes()
    async with open_chat([Reply("half of", stall_after=1)], observers=[notes]) as (engine, chat, _):
        await engine.send_message(chat.id, "go")
        await shown(engine, chat.id, "half of")
        await engine.interrupt(chat.id)
        await engine.wait(chat.id, until=["interrupted"])
    (call,) = notes.model_calls
    assert (call.outcome, call.error, call.reply.text) == ("cancelled", None, "half of")


async def test_observer_gets_waiting_time_of_unserved_agents(database: Path) -> None:
    """So an alarm can use it in every process."""
    store, clock = f"sqlite:///{database}", ManualClock()
    idle = Settings(run_worker=False)
    async with Engine(store, agents=[Agent("support", "demo")], settings=idle, clock=clock) as client:
        chat = await client.create_chat()
        await client.send_message(chat.id, "hi")
    clock.advance(90)
    log: list[Any] = []
    async with Engine(store, agents=[Agent("research", "demo")], observers=[Watching("w", log)], clock=clock) as other:
        with anyio.fail_after(60):
            while "waiting" not in [what for _, what, *_ in log]:  # noqa: ASYNC110 - an observer sets no event
                await anyio.sleep(0.01)
        assert (await other.get_chat(chat.id)).state == "pending"
    assert next(seconds for _, what, seconds in log if what == "waiting") == {"support": 90.0}


# Costs


DEAR = Reply("Because.", usage=(1000, 500))
"""A reply that costs $0.0105 with the model below."""
COST = Decimal("0.0105")
LOOK = Reply(calls=[Call("look", {})], usage=(1000, 500))


def sonnet(replies: Any, **options: Any) -> ScriptedModel:
    return ScriptedModel(replies, **{"name": "claude-sonnet-4-5", "provider": "anthropic"} | options)


@tool
async def look() -> str:
    """Look."""
    return "seen"


async def test_cost_of_call_turn_and_chat(open_chat: OpenChat) -> None:
    settings = Settings(title="model")
    async with open_chat(sonnet([LOOK, DEAR, DEAR], title=DEAR), tools=[look], settings=settings) as (engine, chat, _):
        first, second = await engine.ask(chat.id, "Why?"), await engine.ask(chat.id, "And?")
        while (await engine.get_chat(chat.id)).title is None:
            await anyio.lowlevel.checkpoint()
        assert (first.usage.cost, second.usage.cost) == (2 * COST, COST)
        finished = await events_of(engine, chat.id, "turn_finished")
        assert [event.usage.cost for event in finished] == [2 * COST, COST]  # type: ignore[union-attr] - of that kind
        assert [entry.usage.cost for entry in await engine.usage(chat.id)] == [COST] * 4
        answers = [message for message in await engine.messages(chat.id) if message.role == "assistant"]
        assert [message.usage and message.usage.cost for message in answers] == [COST] * 3
        usage = (await engine.get_chat(chat.id)).usage
        assert (usage.cost, usage.cost_partial) == (4 * COST, False)


async def test_compaction_cost_is_included(open_chat: OpenChat) -> None:
    cheap = ScriptedModel([], summary=Reply("Short.", usage=(1000, 100)), name="gpt-5", provider="openai")
    policy = CompactionPolicy(after_final_step="rest", context_limit=1000, model=cheap)
    async with open_chat(sonnet(DEAR), settings=Settings(compaction=policy)) as (engine, chat, _):
        await engine.ask(chat.id, "Why?")
        usage = (await engine.get_chat(chat.id)).usage
        assert (usage.cost, usage.compaction.cost) == (COST + Decimal("0.00225"), Decimal("0.00225"))
        (compaction,) = await engine.compactions(chat.id)
        assert compaction.usage.cost == Decimal("0.00225")


async def test_budget_without_prices_warns_once(caplog: pytest.LogCaptureFixture, open_chat: OpenChat) -> None:
    model = ScriptedModel([LOOK, DEAR, DEAR], context_limit=100_000)
    async with open_chat(model, tools=[look], settings=Settings(turn_cost=0.001)) as (engine, chat, _):
        for _ in range(2):
            assert (await engine.ask(chat.id, "Look!")).stop_reason == "end_turn"
    (line,) = [record.getMessage() for record in caplog.records if "cost_unknown" in record.getMessage()]
    assert "turn_tokens" in line


# Metrics


ASKED = {"provider": "p", "model": "m"}
NONE = {"provider": "none", "model": "none"}


class Watched:
    """An observer, and the metrics in its registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.observer = PrometheusObserver(self.registry)

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"turnwise_{name}", labels)


@pytest.fixture
def metrics() -> Watched:
    return Watched()


def spoken(text: str, role: Any = "user") -> Message:
    position = 0 if role == "system" else 1
    return Message(id="", role=role, parts=text_parts(text), turn=1, step=0, created_at=NOW, position=position)


def call(*messages: Message, chat_id: str = "c", purpose: Any = "step", **known: Any) -> ModelCall:
    reminders = (SentReminder("hurry", "warning"),)
    request = ModelRequest(purpose=purpose, chat_id=chat_id, messages=list(messages), reminders=reminders)
    return ModelCall(provider="p", model="m", request=request, **known)


def replied(usage: Usage | None, stop_reason: StopReason | None = StopReason.end_turn) -> ModelReply:
    return ModelReply((), ModelPart("finish", stop_reason=stop_reason, usage=usage))


def test_prompt_is_measured_when_it_is_sent(metrics: Watched) -> None:
    asked = call(spoken("hello"), spoken("<reminder>brief</reminder>", "system"), spoken("you"))
    ended = metrics.observer.model_called(asked)
    assert metrics("prompt_messages_sum", purpose="step", **ASKED) == 3
    assert metrics("prompt_characters_sum", purpose="step", **ASKED) == asked.characters
    assert metrics("reminders_total", producer="hurry", severity="warning", **ASKED) == 1
    assert metrics("model_call_seconds_count", purpose="step", outcome="succeeded", **ASKED) is None
    asked.seconds, asked.first_part_after = 4.0, 0.25
    asked.reply = replied(Usage(input_tokens=10, output_tokens=3, cost=Decimal("0.25")))
    ended()
    assert metrics("model_call_seconds_sum", purpose="step", outcome="succeeded", **ASKED) == 4
    assert metrics("first_part_seconds_sum", **ASKED) == 0.25
    assert metrics("tokens_total", direction="input", **ASKED) == 10
    assert metrics("tokens_total", direction="output", **ASKED) == 3
    assert metrics("cost_dollars_total", **ASKED) == 0.25


def test_first_failures_are_an_increase(metrics: Watched) -> None:
    """Prometheus sees no increase in the first value of a series, so failures start at 0."""
    for trigger, source in (("failed", "streaming"), ("failed", "pending"), ("compaction_failed", "compacting")):
        assert metrics("transitions_total", trigger=trigger, source=source, target="error") == 0


def test_unknown_tool_has_no_label_of_its_own(metrics: Watched) -> None:
    call = ToolCall(call_id="c", name="add", arguments={}, executor=Executor.local, index=0, step=1)
    done = CallOutcome(call_id="c", status=CallStatus.succeeded, output=1, is_error=False)
    for known, result in ((True, done), (True, None), (False, done), (True, FatalToolError("x"))):
        run = ToolRun(chat_id="c", call=call, known=known)
        ended = metrics.observer.tool_started(run)
        run.result, run.seconds = result, 2.0
        ended()
    for name, outcome in (("add", "succeeded"), ("add", "cancelled"), ("unknown", "succeeded"), ("add", "fatal")):
        assert metrics("tool_seconds_count", tool=name, outcome=outcome) == 1
        assert metrics("tool_seconds_sum", tool=name, outcome=outcome) == 2


def test_running_chats_is_a_gauge(metrics: Watched) -> None:
    for running in (3, 1):
        metrics.observer.running(running)
        assert metrics("running_chats") == running


def test_waiting_seconds_fall_back_to_zero(metrics: Watched) -> None:
    metrics.observer.waiting({"support": 7.5, "research": 2})
    metrics.observer.waiting({"support": 9.5})
    assert metrics("waiting_seconds", agent="support") == 9.5
    assert metrics("waiting_seconds", agent="research") == 0


def test_steps_and_retries_are_counted_by_model(metrics: Watched) -> None:
    retried = streaming()
    metrics.observer.model_called(call(spoken("hi")))
    metrics.observer.transitioned(retried.discard())
    assert metrics("retries_total", kind="overloaded", **ASKED) == 1
    assert metrics("transitions_total", trigger="attempt_discarded", source="streaming", target="streaming") == 1
    finished = streaming().reply()
    metrics.observer.transitioned(finished)
    assert metrics("steps_total", **ASKED) == 1
    metrics.observer.transitioned(finished)  # the chat was at rest, and is forgotten
    assert (metrics("steps_total", **ASKED), metrics("steps_total", **NONE)) == (1, 1)
    assert metrics("transitions_total", trigger="step_finished", source="streaming", target="waiting") == 2


@pytest.mark.parametrize(("outcome", "kind"), [("finished", None), ("failed", ERROR.kind)])
def test_steps_are_timed_and_failures_counted(metrics: Watched, outcome: str, kind: str | None) -> None:
    """From the first attempt on, with all retries."""
    life = queued(streaming())
    for decision in life.decisions:
        metrics.observer.transitioned(decision)
    metrics.observer.model_called(call(spoken("hi"), chat_id=life.facts.chat_id))
    life.wait(3)
    for decision in (life.discard(), life.attempt(), life.reply() if kind is None else life.fail()):
        metrics.observer.transitioned(decision)
    assert metrics("step_seconds_count", outcome=outcome, **ASKED) == 1
    assert metrics("step_seconds_sum", outcome=outcome, **ASKED) == 3
    assert metrics("failed_steps_total", kind=ERROR.kind, **ASKED) == (None if kind is None else 1)


@pytest.mark.parametrize("outcome", ["compacted", "declined", "failed"])
def test_compactions_are_counted_by_outcome(metrics: Watched, outcome: str) -> None:
    life = compacting()
    decision = life.compact() if outcome == "compacted" else life.fail_to_compact(declined=outcome == "declined")
    metrics.observer.transitioned(decision)
    assert metrics("compactions_total", outcome=outcome, **NONE) == 1
    assert [metrics("steps_total", **NONE), metrics("retries_total", kind="overloaded", **NONE)] == [None, None]


def test_each_observer_needs_its_own_registry(metrics: Watched) -> None:
    with pytest.raises(InvalidArgument, match=r"^registry: must have no metrics of turnwise yet, give each observer a"):
        PrometheusObserver(metrics.registry)
    other = Watched()
    other.observer.running(1)
    assert metrics("running_chats") == 0


# The log


async def test_every_transition_is_logged() -> None:
    with structlog.testing.capture_logs() as logs:
        async with Engine("sqlite://", model=ScriptedModel(["hello"])) as engine:
            chat = await engine.create_chat()
            await engine.ask(chat.id, "hi")
    lines = [
        (log["event"], log["version"], log["state"])
        for log in logs
        if log.get("chat_id") == chat.id and "version" in log
    ]
    assert lines[:2] == [("create", 1, "waiting"), ("send_message", 2, "pending")]
    assert lines[-1] == ("step_finished", 4, "waiting")


async def test_every_line_names_chat_state_and_worker() -> None:
    """Also lines from deep inside a job, where the chat is no argument."""

    @tool
    async def add(first: int, second: int) -> int:
        """Add."""
        return first + second

    gate = Gate()
    calls = [Call("add", '{"first": 1, "second": 2 '), Call("work", {})]
    with structlog.testing.capture_logs() as logs:
        async with Engine("sqlite://", model=ScriptedModel([Reply(calls=calls)]), tools=[add, gate.tool]) as engine:
            chat = await engine.create_chat()
            await engine.send_message(chat.id, "go")
            await gate.entered.wait()
            await engine.interrupt(chat.id)
            await engine.wait(chat.id, until=["interrupted"])
    assert {"arguments_repaired", "tool_run", "step_streamed", "settled"} <= {log["event"] for log in logs}
    assert [(log["step"], log["calls"]) for log in logs if log["event"] == "step_streamed"] == [(1, 2)]
    assert ("add", False) in [(log["tool"], log["timed_out"]) for log in logs if log["event"] == "tool_run"]
    assert [log for log in logs if not _is_found(log, chat.id)] == []


async def test_provider_message_forges_no_log_line(caplog: pytest.LogCaptureFixture) -> None:
    """Nor does it send control characters to a terminal."""
    error = ModelError("quota", message="no\nfailed chat_id=c1 \u202e\x1b[2J")
    async with Engine("sqlite://", model=ScriptedModel([Reply(error=error)])) as engine:
        await engine.ask((await engine.create_chat()).id, "hi")
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.isprintable()
    assert r"no\nfailed chat_id=c1 \u202e\x1b[2J" in line


FORGED = "no\nfailed chat_id=c1 \u202e\x1b[2J\r\x85failed"


async def test_tool_error_forges_no_log_line(caplog: pytest.LogCaptureFixture) -> None:
    """A failing tool often quotes the model's arguments."""

    @tool
    async def quotes() -> None:
        """Quote."""
        error = ValueError("x")
        error.add_note(FORGED)
        raise ExceptionGroup(FORGED, [error, KeyError("y")]) from KeyError(FORGED)

    model = ScriptedModel([Reply(calls=[Call("quotes", {})]), "I see."])
    async with Engine("sqlite://", model=model, tools=[quotes]) as engine:
        await engine.ask((await engine.create_chat()).id, "hi")
    (record,) = (record for record in caplog.records if record.exc_info)
    first, *lines = logging.Formatter().format(record).split("\n")
    assert first.startswith("tool_failed ")
    assert [line for line in lines if "  File " in line], "it is still a traceback"
    assert [line for line in (first, *lines) if not line.isprintable()] == []
    assert [line for line in lines if not line.startswith("  ")] == []
    assert any(r"failed chat_id=c1 \u202e\x1b[2J\r" in line for line in lines)


def _is_found(log: Any, chat_id: str) -> bool:
    holds = log["state"] in ("streaming", "executing_tools")
    return bool(log["chat_id"] == chat_id and log["version"] and (not holds or log["worker"]))


class Away(logging.Handler):
    """Ships lines to a server that is down."""

    def emit(self, record: logging.LogRecord) -> None:
        raise ConnectionError(f"no server for {record.getMessage()[:4]}")


@pytest.fixture
def failing_log() -> Iterator[None]:
    """Make the application's own log handler raise."""
    log, handler = logging.getLogger("turnwise"), Away()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    yield
    log.removeHandler(handler)
    log.setLevel(level)


@pytest.mark.usefixtures("failing_log")
async def test_failing_log_handler_stops_no_chat(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor does it delay subscribers after a commit."""

    @tool
    async def fail() -> None:
        """Fail."""
        raise ValueError("planted")

    model = ScriptedModel([Reply(calls=[Call("fail", {})]), "done"])
    async with Engine("sqlite://", model=model, tools=[fail]) as engine:
        chat = await engine.create_chat()
        kinds = [event.kind async for event in engine.stream(chat.id, "go")]
        assert kinds[-1] == "turn_finished"
        assert (await engine.get_chat(chat.id)).state == "waiting"
    assert "ConnectionError: no server for" in capsys.readouterr().err


def test_logging_imports_nothing() -> None:
    """The first line may come from any thread during another import, and must not meet a partly imported module."""
    code = """
import sys, turnwise
from turnwise.logger import logger
before = set(sys.modules)
logger.warning("first")
assert set(sys.modules) == before, set(sys.modules) - before
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stderr == "first\n"
