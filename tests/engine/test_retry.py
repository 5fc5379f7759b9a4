"""Retry and timeouts: one layer, on a durable schedule, and no model is given up too early or waited for in vain."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.chats import said
from support.clock import due_in, pass_time
from support.engines import MakeModel, OpenEngine
from support.events import assert_told_right, events_of, seen, shown
from support.latches import Gate
from support.stores import HeldParts, stored_at
from turnwise import Agent, ChatState, ModelError, ModelPart, ModelRequest, RetryPolicy, Settings, Usage
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.events import AttemptDiscardedEvent
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
    open_engine: OpenEngine, strict_model: MakeModel, retry_after: float | None, delays: list[float]
) -> None:
    clock = ManualClock()
    down = Reply(error=ModelError("overloaded", retry_after=retry_after, status=503))
    model = strict_model([*[down] * 8, "at last"])
    async with open_engine(model, settings=retrying(), clock=clock) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hello")
        for number, delay in enumerate(delays, start=1):
            retry = await seen(engine, chat.id, "retry", number)
            assert (retry.attempt, retry.delay) == (number, delay)
            assert retry.retry_at == clock.now() + timedelta(seconds=delay)
            assert (retry.error.kind, retry.error.status) == ("overloaded", 503)
            await pass_time(clock, delay)
        rested = await engine.wait(chat.id)
        assert (rested.state, rested.attempt) == ("waiting", 9)
        assert said(await engine.messages(chat.id)) == [("user", "hello"), ("assistant", "at last")]
        await assert_told_right(engine, chat.id)


async def test_configure_during_back_off_affects_next_attempt(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    clock = ManualClock()
    model = strict_model([Reply(error=ModelError("overloaded")), "at last"])
    async with open_engine(model, settings=retrying(), clock=clock) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hello")
        await seen(engine, chat.id, "retry")
        await due_in(clock, 1)
        await engine.configure(chat.id, parameters={"temperature": 0.25})
        await pass_time(clock, 1)
        await engine.wait(chat.id)
    assert [dict(request.parameters) for request in model.requests] == [{}, {"temperature": 0.25}]


async def test_last_failed_attempt_ends_in_error(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    clock = ManualClock()
    model = strict_model(Reply(error=ModelError("rate_limit")))
    settings = retrying(retry=RetryPolicy(attempts=3))
    async with open_engine(model, settings=settings, clock=clock) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hello")
        for number, delay in ((1, 1), (2, 2)):
            await seen(engine, chat.id, "retry", number)
            await pass_time(clock, delay)
        rested = await engine.wait(chat.id)
        assert (rested.state, rested.stop_reason, len(model.requests)) == ("error", "error", 3)
        assert rested.last_error is not None
        assert (rested.last_error.kind, rested.last_error.attempt) == ("rate_limit", 3)


async def test_next_step_starts_with_fresh_retries(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    clock, work = ManualClock(), Gate()
    work.open.set()
    down = Reply(error=ModelError("network"))
    model = strict_model([down, Reply("", calls=[Call("work", {})]), down, "done"])
    async with open_engine(model, settings=retrying(), clock=clock, tools=[work.tool]) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hello")
        for number in (1, 2):
            assert (await seen(engine, chat.id, "retry", number)).delay == 1
            await pass_time(clock, 1)
        assert (await engine.wait(chat.id)).state == "waiting"


@pytest.mark.parametrize(
    "kind", ["authentication", "quota", "bad_request", "unknown_model", "context_overflow", "content_filter"]
)
async def test_permanent_error_is_not_retried(open_engine: OpenEngine, strict_model: MakeModel, kind: str) -> None:
    model = strict_model([Reply("Hel", error=ModelError(kind, status=400), error_after=1)])
    async with open_engine(model, settings=retrying()) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "hello")
        assert (result.chat.state, len(model.requests)) == ("error", 1)
        assert result.chat.last_error is not None
        assert (result.chat.last_error.kind, result.chat.last_error.retryable) == (kind, False)
        assert said(result.messages) == [("user", "hello"), ("assistant", "Hel")]
        await assert_told_right(engine, chat.id)


@pytest.mark.parametrize("kind", ["rate_limit", "overloaded", "server_error", "network", "startup_timeout", "stall"])
async def test_transient_error_is_retried(open_engine: OpenEngine, strict_model: MakeModel, kind: str) -> None:
    clock = ManualClock()
    model = strict_model([Reply(error=ModelError(kind)), "ok"])
    async with open_engine(model, settings=retrying(), clock=clock) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hello")
        await seen(engine, chat.id, "retry")
        await pass_time(clock, 1)
        assert (await engine.wait(chat.id)).state == "waiting"


async def test_startup_timeout_grows_with_each_attempt(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    clock = ManualClock()
    model = strict_model([*[Reply(stall_after=0)] * 6, "Hello"])
    async with open_engine(model, settings=retrying(), clock=clock) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        for number, limit in enumerate((60, 120, 240, 480, 600, 600), start=1):
            await seen(engine, chat.id, "status", state="streaming")
            await pass_time(clock, limit)
            retry = await seen(engine, chat.id, "retry", number)
            assert (retry.error.kind, retry.attempt, retry.delay) == ("startup_timeout", number, 2 ** (number - 1))
            await pass_time(clock, retry.delay)
        assert (await engine.wait(chat.id)).state == "waiting"
        assert said(await engine.messages(chat.id)) == [("user", "hi"), ("assistant", "Hello")]
        await assert_told_right(engine, chat.id)


async def test_stall_before_output_is_retried(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    clock = ManualClock()
    opened = Reply(parts=[ModelPart("usage", usage=Usage(input_tokens=1))], stall_after=1)
    model = strict_model([opened, "Hello"])
    async with open_engine(model, settings=retrying(retry=NEVER), clock=clock) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        await pass_time(clock, 90)
        assert (await seen(engine, chat.id, "retry")).error.kind == "network"
        await pass_time(clock, 1)
        await engine.wait(chat.id)
        assert len(model.requests) == 2
        assert said(await engine.messages(chat.id)) == [("user", "hi"), ("assistant", "Hello")]


async def test_stall_after_output_resets_and_retries(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    clock = ManualClock()
    model = strict_model([HEL, "Hello"])
    async with open_engine(model, settings=retrying(), clock=clock) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        await shown(engine, chat.id, "Hel")
        await pass_time(clock, 90)
        await seen(engine, chat.id, "retry")
        await pass_time(clock, 1)
        await engine.wait(chat.id)
        discarded = [event for event in await events_of(engine, chat.id) if isinstance(event, AttemptDiscardedEvent)]
        assert [event.attempt for event in discarded] == [1]
        assert said(await engine.messages(chat.id)) == [("user", "hi"), ("assistant", "Hello")]
        await assert_told_right(engine, chat.id)


async def test_stall_after_output_may_end_in_error(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    clock = ManualClock()
    model = strict_model([HEL])
    async with open_engine(model, settings=retrying(retry=NEVER), clock=clock) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        await shown(engine, chat.id, "Hel")
        await pass_time(clock, 90)
        rested = await engine.wait(chat.id)
        assert rested.last_error is not None
        assert (rested.state, rested.last_error.kind, len(model.requests)) == ("error", "network", 1)
        history = await engine.messages(chat.id)
        assert said(history) == [("user", "hi"), ("assistant", "Hel")]
        assert history[1].partial
        await assert_told_right(engine, chat.id)


class Hangs:
    """A hook that does not return when it is first called, and gives what it was told to from then on."""

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


@pytest.mark.parametrize("which", ["prepare_messages", "reminders", "system prompt"])
async def test_hung_hook_fails_the_attempt(open_engine: OpenEngine, which: str) -> None:
    clock, hook, model = (
        ManualClock(),
        Hangs("Be brief." if which == "system prompt" else None),
        ScriptedModel(["Hello"]),
    )
    system = hook if which == "system prompt" else None
    prepare = hook if which == "prepare_messages" else None
    reminders = [hook] if which == "reminders" else []
    agent = Agent("default", model, system=system, prepare_messages=prepare, reminders=reminders)
    async with open_engine(None, agents=[agent], settings=retrying(), clock=clock) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        await pass_time(clock, 60)
        error = (await seen(engine, chat.id, "retry")).error
        assert error.kind == "startup_timeout"
        assert f"{which} gave nothing within 60 s" in error.message
        assert hook.cancelled.is_set()
        await pass_time(clock, 1)
        assert (await engine.wait(chat.id)).state == "waiting"
    assert (hook.called, len(model.requests)) == (2, 1)


async def test_heartbeats_are_not_output(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    clock = ManualClock()
    model = strict_model([Reply(parts=[ModelPart("heartbeat")] * 3, stall_after=3), "Hello"])
    async with open_engine(model, settings=retrying(), clock=clock) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        await pass_time(clock, 60)
        assert (await seen(engine, chat.id, "retry")).error.kind == "startup_timeout"


async def test_steady_parts_are_no_stall(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    clock = ManualClock()
    slow = Reply("abc", chunks=1, delay=80)
    model = strict_model([slow])
    async with open_engine(model, settings=retrying(), clock=clock) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        for told in ("a", "b", "c"):
            await shown(engine, chat.id, told)
            await clock.advance(80)
        assert (await engine.wait(chat.id)).state == "waiting"
        assert len(model.requests) == 1


async def test_timeouts_can_be_switched_off(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    clock = ManualClock()
    slow = Reply("ab", chunks=1, first_delay=5000, delay=5000)
    model = strict_model([slow])
    settings = retrying(startup_timeout=None, idle_timeout=None)
    async with open_engine(model, settings=settings, clock=clock) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        await _stalled(clock, model, 5000)
        for told in ("a", "b"):
            await shown(engine, chat.id, told)
            await clock.advance(5000)
        assert (await engine.wait(chat.id)).state == "waiting"


async def test_stream_without_finish_is_retried(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    clock = ManualClock()
    cut = Reply(parts=[ModelPart("text_delta", text="Hel"), ModelPart("tool_call", id="c", name="work", arguments={})])
    work = Gate()
    model = strict_model([cut, "Hello"])
    async with open_engine(model, settings=retrying(), clock=clock, tools=[work.tool]) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        assert (await seen(engine, chat.id, "retry")).error.kind == "network"
        await pass_time(clock, 1)
        await engine.wait(chat.id)
        assert said(await engine.messages(chat.id)) == [("user", "hi"), ("assistant", "Hello")]
        # A call from a dead attempt never runs.
        assert work.runs == []
        await assert_told_right(engine, chat.id)


async def test_model_defect_is_named_and_not_retried(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    def broken(request: ModelRequest) -> Reply:
        raise RuntimeError("no such luck")

    async with open_engine(strict_model([broken, "ok"]), settings=retrying()) as engine:
        chat = await engine.create_chat()
        failed = (await engine.ask(chat.id, "hi")).chat
        assert failed.last_error is not None
        assert (failed.state, failed.last_error.kind) == ("error", "internal")
        assert "step 1: RuntimeError: no such luck" in failed.last_error.message
        await engine.resume(chat.id)
        assert (await engine.wait(chat.id, until=[ChatState.waiting])).last_error is None


async def test_parts_in_flight_precede_attempt_discarded(
    open_engine: OpenEngine, strict_model: MakeModel, database: Path
) -> None:
    """Whoever follows would else keep words of an attempt that is over."""
    clock = ManualClock()
    store = HeldParts(stored_at(database, clock))

    async def until_it_is_stored(_seconds: float) -> None:
        await store.storing.wait()

    failing = Reply("Hello", chunks=["Hel", "lo"], delay=1, error=ModelError("overloaded"), error_after=2)
    model = strict_model([failing, "fine"], sleep=until_it_is_stored)
    async with open_engine(model, store=store, clock=clock, settings=retrying()) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        await store.storing.wait()
        await anyio.wait_all_tasks_blocked()
        store.go_on.set()
        await seen(engine, chat.id, "retry")
        await pass_time(clock, 1)
        await engine.wait(chat.id)
        told = [(event.kind, getattr(event, "attempt", None)) for event in await events_of(engine, chat.id)]
        assert told.index(("part", 1)) < told.index(("attempt_discarded", 1))
        await assert_told_right(engine, chat.id)


@pytest.mark.parametrize("kind", ["overloaded", "context_overflow"])
async def test_discarded_attempt_usage_is_counted(open_engine: OpenEngine, strict_model: MakeModel, kind: str) -> None:
    clock = ManualClock()
    parts = [ModelPart("usage", usage=Usage(input_tokens=7))]
    model = strict_model(["one", Reply(parts=parts, error=ModelError(kind), error_after=1), "two"])
    async with open_engine(model, settings=retrying(), clock=clock) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hi")
        await engine.send_message(chat.id, "go on")
        if kind == "overloaded":
            await seen(engine, chat.id, "retry")
            await pass_time(clock, 1)
        assert (await engine.wait(chat.id)).state == "waiting"
        spent = [entry.usage.input_tokens for entry in await engine.usage(chat.id) if entry.purpose == "step"]
        assert spent == [None, 7, None]


async def _stalled(clock: ManualClock, model: object, seconds: float) -> None:
    """Let so much time pass once the model has been asked."""
    while not model.requests:  # type: ignore[attr-defined]
        await clock.advance(0)
    await clock.advance(seconds)


def test_persistent_retry_never_gives_up() -> None:
    policy = RetryPolicy.persistent()
    assert policy.allows(10_000, 0)
    assert [policy.delay(failures) for failures in (1, 6, 7, 8, 10_000)] == [1, 32, 60, 60, 60]


def test_interactive_retry_counts_reconnects_apart() -> None:
    policy = RetryPolicy.interactive()
    assert [policy.allows(failures, 0) for failures in (1, 2, 3, 4)] == [True, True, True, False]
    assert [policy.allows(failures, failures) for failures in (5, 6)] == [True, False]
    assert policy.allows(8, 5)
    assert [policy.delay(failures) for failures in (1, 5, 6)] == [1, 16, 16]


async def test_interactive_retry_reopens_broken_streams(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    """What came of a broken attempt is no text, so it may be taken back unseen."""
    opened = ModelPart("reasoning_delta", signature="s")
    broken = Reply(parts=[opened], error=ModelError("network"), error_after=1)
    refused = Reply(error=ModelError("overloaded"))
    clock = ManualClock()
    for replies, calls in (([broken] * 5 + ["done"], 6), ([broken] * 6, 6), ([refused] * 4, 4)):
        model = strict_model(replies)
        policy = RetryPolicy.interactive()
        settings = retrying(retry=replace(policy, after_output="reset"))
        async with open_engine(model, clock=clock, settings=settings) as engine:
            chat = await engine.create_chat()
            await engine.send_message(chat.id, "hello")
            async for event in engine.events(chat.id):
                if event.kind == "retry":
                    await pass_time(clock, event.delay)
                if event.kind == "turn_finished":
                    break
            assert len(model.requests) == calls


async def test_shown_call_fragment_prevents_retry(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    begun = [
        ModelPart("tool_call_start", id="a", name="look"),
        ModelPart("tool_call_delta", id="a", arguments='{"at": "th'),
    ]
    model = strict_model([Reply(parts=begun, error=ModelError("network"), error_after=2), "again"])
    async with open_engine(model, settings=retrying(retry=RetryPolicy(after_output="never"))) as engine:
        chat = await engine.create_chat()
        result = await engine.ask(chat.id, "hello")
        assert (result.chat.state, len(model.requests)) == ("error", 1)
        kinds = [event.kind for event in await events_of(engine, chat.id)]
        assert not {"retry", "attempt_discarded"} & set(kinds)
