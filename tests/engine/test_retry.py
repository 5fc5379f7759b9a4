"""Retries and timeouts: one layer, on a durable schedule; no model is abandoned too early or awaited in vain."""

import itertools
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace
from tests.engine.chats import contents

from support.clock import pass_time
from support.engines import OpenChat, OpenEngine
from support.events import assert_told_right, events_of, seen, shown
from support.latches import Gate
from support.life import BLANK, NOW
from support.runtimes import runtime_of
from support.stores import stored_at
from turnwise import Agent, ChatState, ModelError, ModelPart, ModelRequest, RetryPolicy, Settings, Usage
from turnwise.engine.jobs.attempts import Attempts, refuse_endless_attempts
from turnwise.engine.jobs.leased_chat import LeasedChat
from turnwise.engine.jobs.retries import LONGEST_TIMEOUT_S, longer
from turnwise.engine.jobs.watchdog import Watchdog
from turnwise.persistence.protocol import Committed
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.events import AttemptDiscardedEvent
from turnwise.states.facts import MOST_LOST, Facts, Lease
from turnwise.testing.clock import ManualClock

NEVER = RetryPolicy(after_output="never")
HEL = Reply("Hello", chunks=["Hel", "lo"], stall_after=1)


def retrying(**changes: object) -> Settings:
    return Settings(
        **{"coalesce": 0, "shutdown_grace": 0, "poll_interval": 10_000, "lease": 100_000, "renew_every": 10_000}
        | changes
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("retry_after", "delays"),
    [(None, [1, 2, 4, 8, 16, 32, 60, 60]), (90, [90] * 8), (10, [10, 10, 10, 10, 16, 32, 60, 60])],
)
async def test_retry_delays_double_and_respect_retry_after(
    open_chat: OpenChat, retry_after: float | None, delays: list[float]
) -> None:
    clock = ManualClock()
    down = Reply(error=ModelError("overloaded", retry_after=retry_after, status=503))
    async with open_chat([*[down] * 8, "at last"], settings=retrying(), clock=clock) as (engine, chat, _):
        await engine.send_message(chat.id, "hello")
        for number, delay in enumerate(delays, start=1):
            retry = await seen(engine, chat.id, "retry", number)
            assert (retry.attempt, retry.delay) == (number, delay)
            assert retry.retry_at == clock.now() + timedelta(seconds=delay)
            assert (retry.error.kind, retry.error.status) == ("overloaded", 503)
            await pass_time(clock, delay)
        resting = await engine.wait(chat.id)
        assert (resting.state, resting.attempt) == ("waiting", 9)
        assert contents(await engine.messages(chat.id)) == [("user", "hello"), ("assistant", "at last")]
        await assert_told_right(engine, chat.id)


async def test_next_step_starts_with_fresh_retries(open_chat: OpenChat) -> None:
    clock, work = ManualClock(), Gate()
    work.open.set()
    down = Reply(error=ModelError("network"))
    script = [down, Reply("", calls=[Call("work", {})]), down, "done"]
    async with open_chat(script, settings=retrying(), clock=clock, tools=[work.tool]) as (engine, chat, _):
        await engine.send_message(chat.id, "hello")
        for number in (1, 2):
            assert (await seen(engine, chat.id, "retry", number)).delay == 1
            await pass_time(clock, 1)
        assert (await engine.wait(chat.id)).state == "waiting"


PERMANENT = ["authentication", "quota", "bad_request", "unknown_model", "context_overflow", "content_filter"]


@pytest.mark.parametrize("kind", PERMANENT)
async def test_permanent_error_is_not_retried(open_chat: OpenChat, kind: str) -> None:
    script = [Reply("Hel", error=ModelError(kind, status=400), error_after=1)]
    async with open_chat(script, settings=retrying()) as (engine, chat, model):
        result = await engine.ask(chat.id, "hello")
        assert (result.chat.state, len(model.requests)) == ("error", 1)
        assert (result.chat.last_error.kind, result.chat.last_error.retryable) == (kind, False)
        assert contents(result.messages) == [("user", "hello"), ("assistant", "Hel")]
        await assert_told_right(engine, chat.id)


async def test_stall_before_output_is_retried(open_chat: OpenChat) -> None:
    clock = ManualClock()
    opened = Reply(parts=[ModelPart("usage", usage=Usage(input_tokens=1))], stall_after=1)
    async with open_chat([opened, "Hello"], settings=retrying(retry=NEVER), clock=clock) as (engine, chat, model):
        await engine.send_message(chat.id, "hi")
        await pass_time(clock, 60)
        assert (await seen(engine, chat.id, "retry")).error.kind == "startup_timeout"
        await pass_time(clock, 1)
        await engine.wait(chat.id)
        assert len(model.requests) == 2
        assert contents(await engine.messages(chat.id)) == [("user", "hi"), ("assistant", "Hello")]


async def test_stall_after_output_resets_and_retries(open_chat: OpenChat) -> None:
    clock = ManualClock()
    async with open_chat([HEL, "Hello"], settings=retrying(), clock=clock) as (engine, chat, _):
        await engine.send_message(chat.id, "hi")
        await shown(engine, chat.id, "Hel")
        await pass_time(clock, 90)
        await seen(engine, chat.id, "retry")
        await pass_time(clock, 1)
        await engine.wait(chat.id)
        discarded = [event for event in await events_of(engine, chat.id) if isinstance(event, AttemptDiscardedEvent)]
        assert [event.attempt for event in discarded] == [1]
        assert contents(await engine.messages(chat.id)) == [("user", "hi"), ("assistant", "Hello")]
        await assert_told_right(engine, chat.id)


class Hangs:
    """A hook that hangs at its first call, and returns a value from then on."""

    def __init__(self, gives: Any) -> None:
        self.gives = gives
        self.called, self.cancelled = 0, anyio.Event()

    async def __call__(self, _given: Any) -> Any:
        self.called += 1
        if self.called == 1:
            try:
                await anyio.sleep_forever()
            finally:
                self.cancelled.set()
        return self.gives


@pytest.mark.parametrize("which", ["prepare_messages", "reminders", "system"])
async def test_hung_hook_fails_the_attempt(
    open_engine: OpenEngine, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock, model = ManualClock(), ScriptedModel(["Hello"])
    hook = Hangs("Be brief." if which == "system" else None)
    options: dict[str, Any] = {which: [hook] if which == "reminders" else hook}
    agent = Agent("default", model, **options)
    async with open_engine(None, agents=[agent], settings=retrying(), clock=clock) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        await pass_time(clock, 60)
        error = (await seen(engine, chat.id, "retry")).error
        assert error.kind == "startup_timeout"
        assert hook.cancelled.is_set()
        await pass_time(clock, 1)
        assert (await engine.wait(chat.id)).state == "waiting"
        # Not sooner: subscribers may read an event from the store before the worker has logged its commit.
        assert re.search(f"{which}.* gave nothing within 60 s", caplog.text)
    assert (hook.called, len(model.requests)) == (2, 1)


async def test_stream_without_finish_is_retried(open_chat: OpenChat) -> None:
    clock = ManualClock()
    cut = Reply(parts=[ModelPart("text_delta", text="Hel"), ModelPart("tool_call", id="c", name="work", arguments={})])
    work = Gate()
    async with open_chat([cut, "Hello"], settings=retrying(), clock=clock, tools=[work.tool]) as (engine, chat, _):
        await engine.send_message(chat.id, "hi")
        assert (await seen(engine, chat.id, "retry")).error.kind == "network"
        await pass_time(clock, 1)
        await engine.wait(chat.id)
        assert contents(await engine.messages(chat.id)) == [("user", "hi"), ("assistant", "Hello")]
        assert work.runs == [], "a call of a discarded attempt never runs"
        await assert_told_right(engine, chat.id)


async def test_model_defect_is_named_and_not_retried(open_chat: OpenChat) -> None:
    def broken(request: ModelRequest) -> Reply:
        raise RuntimeError("no such luck")

    async with open_chat([broken, "ok"], settings=retrying()) as (engine, chat, _):
        failed = (await engine.ask(chat.id, "hi")).chat
        assert (failed.state, failed.last_error.kind) == ("error", "internal")
        explained = (await engine.explain(chat.id)).last_error
        assert "step 1: RuntimeError: no such luck" in explained.detail
        await engine.resume(chat.id)
        assert (await engine.wait(chat.id, until=[ChatState.waiting])).last_error is None


@pytest.mark.parametrize("kind", ["overloaded", "context_overflow"])
async def test_discarded_attempt_usage_is_counted(open_chat: OpenChat, kind: str) -> None:
    clock = ManualClock()
    parts = [ModelPart("usage", usage=Usage(input_tokens=7))]
    script = ["one", Reply(parts=parts, error=ModelError(kind), error_after=1), "two"]
    async with open_chat(script, settings=retrying(), clock=clock) as (engine, chat, _):
        await engine.ask(chat.id, "hi")
        await engine.send_message(chat.id, "go on")
        if kind == "overloaded":
            await seen(engine, chat.id, "retry")
            await pass_time(clock, 1)
        assert (await engine.wait(chat.id)).state == "waiting"
        spent = [entry.usage.input_tokens for entry in await engine.usage(chat.id) if entry.purpose == "step"]
        assert spent == [None, 7, None]


async def test_shown_call_fragment_prevents_retry(open_chat: OpenChat) -> None:
    fragment = [
        ModelPart("tool_call_start", id="a", name="look"),
        ModelPart("tool_call_delta", id="a", arguments='{"at": "th'),
    ]
    script = [Reply(parts=fragment, error=ModelError("network"), error_after=2), "again"]
    async with open_chat(script, settings=retrying(retry=RetryPolicy(after_output="never"))) as (engine, chat, model):
        result = await engine.ask(chat.id, "hello")
        assert (result.chat.state, len(model.requests)) == ("error", 1)
        kinds = [event.kind for event in await events_of(engine, chat.id)]
        assert not {"retry", "attempt_discarded"} & set(kinds)


def commit_of(facts: Facts) -> Committed:
    return Committed(before=facts, facts=facts, decisions=(), events=(), at=NOW)


@pytest.mark.parametrize(
    ("due", "delay", "passed", "waits"),
    [
        (10, 10, 0, 10),
        (10, 10, 3, 7),
        (4, 10, 0, 4),
        (100, 10, 0, 10),
        (10, 10, 300, None),
        (-50, 10, 0, None),
        (None, 0, 0, None),
    ],
)
@pytest.mark.parametrize("step", [0, *(pytest.param(step, marks=pytest.mark.deep) for step in (-3600, 3600))])
async def test_retry_waits_until_due_and_at_most_its_delay(
    database: Path, step: float, due: float | None, delay: float, passed: float, waits: float | None
) -> None:
    """With every change of the clock, before or after this worker took over."""
    clock = ManualClock(NOW)
    at = None if due is None else NOW + timedelta(seconds=due)
    facts = replace(BLANK, lease=Lease("w", 1), step=replace(BLANK.step, retry_at=at, retry_delay=delay))
    leased = LeasedChat(runtime_of(stored_at(database, clock), clock), facts, 1)
    leased.take(commit_of(facts))
    clock.step(step)
    clock.advance(passed)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Attempts(leased).wait_for_retry)
        await anyio.wait_all_tasks_blocked()
        assert clock.next_timer == (None if waits is None else clock.now() + timedelta(seconds=waits))
        await clock.advance(waits or 0)


@pytest.mark.parametrize("lost", [MOST_LOST - 1, MOST_LOST, MOST_LOST + 1])
def test_too_many_lost_attempts_are_refused(lost: int) -> None:
    step = replace(BLANK.step, lost=lost)
    if lost < MOST_LOST:
        refuse_endless_attempts(step)
        return
    with pytest.raises(ModelError, match=f"{lost} attempts .* not tried again") as refused:
        refuse_endless_attempts(step)
    assert (refused.value.kind, refused.value.retryable) == ("server_error", False)


# The watchdog


WORD = ModelPart("text_delta", text="a")
Bites = list[ModelError]


def watching(*, startup: float | None = 10, idle: float | None = 4) -> tuple[ManualClock, Bites, Watchdog]:
    clock, bites = ManualClock(), Bites()
    clock.advance(100)
    return clock, bites, Watchdog(clock, bites.append, startup=startup, idle=idle)


@pytest.mark.parametrize("startup", [10, None])
@pytest.mark.parametrize("pauses", [[0], [9], [3, 3, 3, 3], [1, 3.5, 0.5, 3.9], [9, 3.9, 3.9]])
async def test_silent_reply_times_out(pauses: list[float], startup: float | None) -> None:
    clock, bites, dog = watching(startup=startup)
    for pause in pauses:
        clock.advance(pause)
        dog.note(WORD)
        assert bites == []
    clock.advance(3.9)
    assert bites == []
    clock.advance(0.1)
    (bite,) = bites
    assert (bite.kind, bite.retryable) == ("network", True)
    assert "no part for 4 s" in bite.message
    assert dog.first_part_after == pytest.approx(pauses[0])
    assert clock.next_timer is None


SAYING = [
    ModelPart("reasoning_delta", text="a"),
    ModelPart("reasoning_delta", signature="s"),
    ModelPart("text_delta", metadata={"id": "m"}),
    ModelPart("tool_call_start", id="c", name="f"),
    ModelPart("tool_call_delta", id="c", arguments="{"),
    ModelPart("tool_call", id="c", name="f", arguments={}),
    ModelPart("usage", usage=Usage(input_tokens=2)),
]
SILENT = [
    ModelPart("heartbeat"),
    ModelPart("text_delta"),
    ModelPart("reasoning_delta", signature=""),
    ModelPart("tool_call_delta", id="c"),
    ModelPart("tool_call_delta", id="c", arguments=""),
    ModelPart("usage", usage=Usage(input_tokens=1)),
]


@pytest.mark.parametrize(
    ("part", "late"),
    [*((part, False) for part in SAYING), *((part, True) for part in SILENT)],
    ids=lambda value: value.type if isinstance(value, ModelPart) else None,
)
async def test_empty_parts_do_not_reset_the_timeout(part: ModelPart, *, late: bool) -> None:
    clock, bites, dog = watching()
    dog.note(ModelPart("usage", usage=Usage(input_tokens=1)))
    dog.note(WORD)
    clock.advance(3)
    dog.note(part)
    clock.advance(3)
    assert bool(bites) is late


@pytest.mark.parametrize(
    "part", [ModelPart("usage", usage=Usage(input_tokens=2)), ModelPart("reasoning_delta", metadata={"id": "r"})]
)
async def test_empty_start_is_no_first_part(part: ModelPart) -> None:
    """The reply has not started with it: the start-up limit still applies."""
    clock, bites, dog = watching(idle=1)
    dog.note(part)
    clock.advance(9.9)
    assert bites == []
    assert dog.first_part_after is None
    clock.advance(0.1)
    assert [(bite.kind, bite.timed_out) for bite in bites] == [("startup_timeout", True)]


@pytest.mark.parametrize("received", [0, 1, 2])
async def test_stopped_watchdog_leaves_no_timer(received: int) -> None:
    clock, bites, dog = watching()
    for _ in range(received):
        clock.advance(3)
        dog.note(WORD)
    dog.stop()
    dog.stop()
    assert clock.next_timer is None
    clock.advance(1000)
    assert bites == []


def test_timeouts_double_up_to_ten_minutes() -> None:
    limits = [longer(20, failures) or 0 for failures in range(40)]
    assert limits[:6] == [20, 40, 80, 160, 320, LONGEST_TIMEOUT_S]
    assert LONGEST_TIMEOUT_S == 600
    assert set(limits[5:]) == {LONGEST_TIMEOUT_S}
    assert [longer(900, failures) for failures in (0, 1, 50)] == [900] * 3, "it was asked for"
    assert [longer(None, failures) for failures in (0, 1, 50)] == [None] * 3
    tiny = [longer(0.001, failures) or 0 for failures in range(100)]
    assert all(earlier <= later for earlier, later in itertools.pairwise(tiny))
    assert tiny[10] == pytest.approx(1.024)
