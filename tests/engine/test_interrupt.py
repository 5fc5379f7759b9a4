"""Interrupts: in every state the chat stops, visible text is stored, and the next request is valid."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest
from tests.engine.chats import contents, untouched

from support.engines import OpenChat
from support.events import assert_told_right, events_of, phases, seen, shown
from support.latches import Gate, Started
from support.stores import Unwatched, stored_at
from turnwise import ChatState, Engine, ModelPart, Settings, ToolContext, tool
from turnwise.engine.worker.identity import worker_name
from turnwise.persistence.sqlite import SQLiteStore
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.errors import IllegalTransition, StaleLease
from turnwise.states.events import ToolResultEvent, TurnFinishedEvent
from turnwise.states.messages import ReasoningPart
from turnwise.states.model_errors import ModelError
from turnwise.states.triggers import Interrupt, LeaseExpired, Settled
from turnwise.testing.clock import ManualClock
from turnwise.testing.conformance import plans
from turnwise.testing.conformance.plans import part

QUICK = Settings(coalesce=0)
DEAD = f"{worker_name().rpartition(':')[0][:-1]}:x"
"""A worker of this machine whose process has another start time than the one with that number."""
STOPPED = "Interrupted by the user before a result was there."


async def stop(engine: Engine, chat_id: str) -> None:
    await engine.interrupt(chat_id, reason="enough")
    chat = await engine.wait(chat_id, until=[ChatState.interrupted])
    assert (chat.settled, chat.stop_reason, chat.open_calls) == (True, "interrupted", [])
    ends = [event for event in await events_of(engine, chat_id) if isinstance(event, TurnFinishedEvent)]
    assert [event.stop_reason for event in ends] == ["interrupted"]
    await assert_told_right(engine, chat_id)


async def test_interrupt_before_first_part_stores_no_message(open_chat: OpenChat) -> None:
    silent = Started(Reply(stall_after=0))
    async with open_chat([silent, "ok"], settings=QUICK) as (engine, chat, _):
        await engine.send_message(chat.id, "hello")
        await silent.asked.wait()
        await stop(engine, chat.id)
        assert contents(await engine.messages(chat.id)) == [("user", "hello")]
        assert (await engine.get_chat(chat.id)).usage.partial
        assert (await engine.ask(chat.id, "next")).text == "ok"


@pytest.mark.parametrize(
    "parts",
    [
        [ModelPart("reasoning_delta", text="Let me")],
        [ModelPart("reasoning_delta", text="Let me think", signature="s1")],
        [ModelPart("reasoning_delta", text="Hm", signature="s1"), ModelPart("text_delta", text="So")],
        [ModelPart("reasoning_delta", text="Hm", signature="s1"), ModelPart("reasoning_delta", text="and")],
    ],
)
async def test_interrupt_during_reasoning_keeps_request_valid(open_chat: OpenChat, parts: list[ModelPart]) -> None:
    script = [Reply(parts=parts, stall_after=len(parts)), "ok", "fine"]
    async with open_chat(script, settings=QUICK) as (engine, chat, model):
        await engine.send_message(chat.id, "hello")
        await shown(engine, chat.id, parts[-1].text)
        await stop(engine, chat.id)
        assert (await engine.messages(chat.id))[-1].partial
        await engine.resume(chat.id)
        await engine.wait(chat.id, until=[ChatState.waiting])
        signed = [
            part
            for message in model.requests[-1].messages
            for part in message.parts
            if isinstance(part, ReasoningPart) and part.signature is not None
        ]
        assert all((part.text, part.signature) == (parts[0].text, "s1") for part in signed)
        assert (await engine.ask(chat.id, "next")).text == "fine"


async def test_calls_of_interrupted_reply_never_run(open_chat: OpenChat) -> None:
    work = Gate()
    parts = [
        ModelPart("text_delta", text="I will"),
        ModelPart("tool_call", id="c1", name="work", arguments={}),
        ModelPart("tool_call_start", id="c2", name="work"),
        ModelPart("tool_call_delta", id="c2", arguments="{"),
    ]
    script = [Reply(parts=parts, stall_after=4), "ok"]
    async with open_chat(script, settings=QUICK, tools=[work.tool]) as (engine, chat, _):
        await engine.send_message(chat.id, "hello")
        await shown(engine, chat.id, "{")
        await stop(engine, chat.id)
        assert contents(await engine.messages(chat.id))[1:] == [("assistant", "I will"), ("tool", STOPPED)]
        assert (await engine.ask(chat.id, "next")).text == "ok"
        assert work.runs == []


async def test_interrupt_in_back_off_ends_the_retries(open_chat: OpenChat) -> None:
    clock = ManualClock()
    script = [Reply(error=ModelError("overloaded")), "ok"]
    async with open_chat(script, settings=QUICK, clock=clock) as (engine, chat, model):
        await engine.send_message(chat.id, "hello")
        await seen(engine, chat.id, "retry")
        await stop(engine, chat.id)
        await clock.advance(10)
        assert len(model.requests) == 1
        assert contents(await engine.messages(chat.id)) == [("user", "hello")]
        assert (await engine.ask(chat.id, "next")).text == "ok"


async def test_interrupt_cancels_tools_and_keeps_results(open_chat: OpenChat, caplog: pytest.LogCaptureFixture) -> None:
    slow, fast = Gate("slow", parallel_safe=True), Gate("fast", parallel_safe=True)
    calls = [Call("slow", {}, id="s1"), Call("fast", {}, id="f"), Call("slow", {}, id="s2")]
    script = [Reply("on it", calls=calls), "ok"]
    async with open_chat(script, settings=QUICK, tools=[slow.tool, fast.tool]) as (engine, chat, _):
        await engine.send_message(chat.id, "hello")
        await fast.entered.wait()
        fast.open.set()
        await seen(engine, chat.id, "tool_result", call_id="f")
        await stop(engine, chat.id)
        assert slow.cancelled == 2
        results = [message.result for message in await engine.messages(chat.id) if message.result]
        expected = [(STOPPED, "interrupted", False), ("fast done", "succeeded", False), (STOPPED, "interrupted", False)]
        assert [(result.output, result.outcome, result.is_error) for result in results] == expected
        raw = contents(await engine.messages(chat.id, view="raw"))
        assert raw == [("user", "hello"), ("assistant", "on it"), ("tool", "fast done")]
        assert (await engine.ask(chat.id, "next")).text == "ok"
    assert "tool_failed" not in caplog.text, "an interrupted tool has not failed"


async def test_late_result_of_uncancellable_tool_is_dropped(open_chat: OpenChat) -> None:
    entered, let_go, finished = anyio.Event(), anyio.Event(), anyio.Event()

    @tool
    async def stubborn(context: ToolContext) -> str:
        """Work on, whatever they say."""
        entered.set()
        with anyio.CancelScope(shield=True):
            await let_go.wait()
        finished.set()
        return "too late"

    async with open_chat([Reply("", calls=[Call("stubborn", {})]), "ok"], tools=[stubborn]) as (engine, chat, _):
        await engine.send_message(chat.id, "hello")
        await entered.wait()
        await stop(engine, chat.id)
        before = await events_of(engine, chat.id)
        let_go.set()
        await finished.wait()
        await engine.ask(chat.id, "next")
        outputs = [event.output for event in await events_of(engine, chat.id) if isinstance(event, ToolResultEvent)]
        assert outputs == [STOPPED]
        assert (await events_of(engine, chat.id))[: len(before)] == before


async def test_interrupt_does_not_wait_for_thread_tool(open_chat: OpenChat) -> None:
    entered, let_go, contexts = anyio.Event(), threading.Event(), []

    @tool
    def block(context: ToolContext) -> str:
        """Block a thread."""
        contexts.append(context)
        anyio.from_thread.run_sync(entered.set)
        let_go.wait()
        return "too late"

    try:
        async with open_chat([Reply("", calls=[Call("block", {})]), "ok"], tools=[block]) as (engine, chat, _):
            await engine.send_message(chat.id, "hello")
            await entered.wait()
            await stop(engine, chat.id)
            assert contexts[0].cancelled
            assert (await engine.ask(chat.id, "next")).text == "ok"
    finally:
        let_go.set()


async def test_interrupt_while_compacting_keeps_history(open_chat: OpenChat) -> None:
    silent = Started(Reply(stall_after=0))
    script = [Reply("hi", usage=(80, 5)), "ok"]
    async with open_chat(script, summary=silent, context_limit=100, settings=QUICK) as (engine, chat, _):
        await engine.send_message(chat.id, "hello")
        await silent.asked.wait()
        await stop(engine, chat.id)
        assert await phases(engine, chat.id) == ["started"]
        assert contents(await engine.messages(chat.id)) == [("user", "hello"), ("assistant", "hi")]
        with pytest.raises(IllegalTransition):
            await engine.resume(chat.id)
        assert (await engine.ask(chat.id, "next")).text == "ok"


async def test_foreign_interrupt_prevents_tool_start(open_engine: Any, strict_model: Any, database: Any) -> None:
    """The worker was busy between the commit that started the call and the tool, and got no notification."""
    clock = ManualClock()
    committed, go_on, runs = anyio.Event(), anyio.Event(), []

    class Busy(Unwatched):
        async def change(self, chat_id: str, plan: Any, **options: Any) -> Any:
            done = await self._store.change(chat_id, plan, **options)
            if any(decision.trigger.name == "step_finished" for decision in done.decisions):
                committed.set()
                await go_on.wait()
            return done

    @tool
    async def work() -> str:
        """Work."""
        runs.append(1)
        return "done"

    model = strict_model([Reply(calls=[Call("work", {})])])
    async with (
        open_engine(model, settings=Settings(run_worker=False)) as other,
        open_engine(model, store=Busy(stored_at(database)), clock=clock, tools=[work]) as engine,
    ):
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "go")
        await committed.wait()
        await other.interrupt(chat.id)
        await clock.advance(0.02)
        go_on.set()
        assert (await engine.wait(chat.id)).settled
        assert runs == []


async def test_second_interrupt_settles_for_dead_worker() -> None:
    """No other interrupt may come, and the chat has to rest before an operator can delete it."""
    clock = ManualClock()
    store = SQLiteStore(None, now=clock.now)
    async with Engine(store, clock=clock, model=ScriptedModel(()), settings=Settings(run_worker=False)) as engine:
        started = (plans.send("hello"), plans.claim(lease=30), plans.move(Interrupt()))
        await plans.created(store, "held", *started)
        await plans.created(store, "free", *started, plans.move(LeaseExpired(token=plans.HOLDER)))
        async with untouched(engine, "held"):
            await engine.interrupt("held")
        assert (await engine.interrupt("free")).settled
        await clock.advance(30)
        assert (await engine.interrupt("held")).settled
        assert (await engine.resume("held")).state == "pending"


@pytest.mark.parametrize("does", ["interrupt", "send_message", "promote_queued"])
@pytest.mark.parametrize("gone", ["its process is dead", "its lease has run out"])
async def test_interrupt_settles_chat_of_gone_worker(gone: str, does: str) -> None:
    """Without a sweeping worker the chat could neither rest nor be deleted."""
    clock, worker = ManualClock(), DEAD if gone == "its process is dead" else "elsewhere"
    store = SQLiteStore(None, now=clock.now)
    async with Engine(store, clock=clock, model=ScriptedModel(()), settings=Settings(run_worker=False)) as engine:
        started = (plans.send("hello"), plans.claim(worker, lease=30))
        await plans.created(store, "chat", *started, plans.send("later"))
        await store.append_events("chat", 1, ChatState.streaming, [part("Hel")])
        await clock.advance(30 if gone == "its lease has run out" else 0)
        before = await engine.get_chat("chat")
        if does == "interrupt":
            after = await engine.interrupt("chat", reason="stuck")
        elif does == "send_message":
            after = (await engine.send_message("chat", "now", when_busy="interrupt")).chat
        else:
            after = await engine.promote_queued("chat", "m2")
        assert (after.settled, after.state) == (True, "interrupted" if does == "interrupt" else "pending")
        log = [record.trigger for record in await engine.audit("chat")]
        assert log[before.version :] == [does, "lease_expired", "settled"]
        messages = await engine.messages("chat")
        assert (messages[1].text, messages[1].partial) == ("Hel", True)
        assert (await engine.verify("chat")).ok
        with pytest.raises(StaleLease):
            await store.append_events("chat", 1, ChatState.streaming, [part("lo")])


async def test_interrupt_after_interrupting_message_wins() -> None:
    """Milliseconds decide whether the message was already a turn; it stays unanswered in both cases."""
    store = SQLiteStore(None)
    async with Engine(store, model=ScriptedModel(()), settings=Settings(run_worker=False)) as engine:
        await plans.created(store, "chat", plans.send("hello"), plans.claim("elsewhere"))
        await engine.send_message("chat", "rather", when_busy="interrupt")
        await engine.interrupt("chat", reason="enough")
        assert (await engine.audit("chat"))[-1].reason == "enough"
        async with untouched(engine, "chat"):
            await engine.interrupt("chat")
        await store.change("chat", plans.plan(plans.move(Settled(token=plans.HOLDER))))
        chat = await engine.get_chat("chat")
        assert (chat.state, chat.settled, chat.queued) == ("interrupted", True, 1)
