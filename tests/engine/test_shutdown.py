"""Shutdown, takeover and lost leases: another engine on the same database goes on, and a zombie writes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.engine.chats import said

from support.engines import MakeModel, OpenEngine
from support.events import assert_told_right, events_of, shown
from support.latches import Gate
from support.stores import Delegate, stored_at
from turnwise import ChatState, Reconciled, Settings, ToolContext, verify_export
from turnwise.engine.clock import sleep
from turnwise.providers.scripted import Call, Reply
from turnwise.states.events import AttemptDiscardedEvent, StatusEvent
from turnwise.testing.clock import ManualClock

AT_ONCE = Settings(coalesce=0, shutdown_grace=0)


class Unwatched(Delegate):
    """A store whose notices are all lost."""

    async def watch(self) -> AsyncIterator[str | None]:
        await anyio.sleep_forever()
        yield None


def never_rested(states: list[ChatState]) -> bool:
    """Return whether the chat worked from its first message to its last state."""
    return not set(states[1:-1]) & {ChatState.interrupted, ChatState.waiting, ChatState.error}


async def states_of(engine: Any, chat_id: str) -> list[ChatState]:
    return [event.state for event in await events_of(engine, chat_id) if isinstance(event, StatusEvent)]


async def cut_off(open_engine: OpenEngine, model: Any, work: Gate, **options: Any) -> str:
    """Shut an engine down while its chat runs the tool; return the chat."""
    async with open_engine(model, settings=AT_ONCE, tools=[work.tool], **options) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hello")
        await work.entered.wait()
    work.open.set()
    return str(chat.id)


@pytest.mark.parametrize(
    ("crash", "runs", "output"), [("at_least_once", 2, "work done"), ("at_most_once", 1, "Outcome unknown")]
)
async def test_cancelled_tool_ends_as_its_crash_class_says(
    open_engine: OpenEngine, strict_model: MakeModel, crash: str, runs: int, output: str
) -> None:
    work = Gate(crash=crash)
    model = strict_model([Reply("", calls=[Call("work", {})]), "done"])
    chat_id = await cut_off(open_engine, model, work)
    assert work.cancelled == 1
    async with open_engine(model, settings=Settings(run_worker=False)) as onlooker:
        assert (await onlooker.get_chat(chat_id)).state == "pending"
    async with open_engine(model, settings=AT_ONCE, tools=[work.tool]) as engine:
        assert (await engine.wait(chat_id)).state == "waiting"
        assert len(work.runs) == runs
        assert len({context.idempotency_key for context in work.runs}) == 1
        history = said(await engine.messages(chat_id))
        assert str(history[2][1]).startswith(output)
        assert history[3] == ("assistant", "done")
        assert never_rested(await states_of(engine, chat_id))
        await assert_told_right(engine, chat_id)


NOT_DONE = Reconciled.not_done()


@pytest.mark.parametrize("crash", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize("found", ["it was done", Reconciled.done("it was done"), NOT_DONE, None, "raises"], ids=str)
async def test_reconcile_runs_before_the_crash_class_decides(
    open_engine: OpenEngine, strict_model: MakeModel, crash: str, found: Any
) -> None:
    asked: list[ToolContext] = []

    async def reconcile(context: ToolContext) -> Any:
        asked.append(context)
        if found == "raises":
            raise RuntimeError("the bank is closed")
        return found

    work = Gate(crash=crash, reconcile=reconcile)
    model = strict_model([Reply("", calls=[Call("work", {})]), "done"])
    chat_id = await cut_off(open_engine, model, work)
    async with open_engine(model, settings=AT_ONCE, tools=[work.tool]) as engine:
        assert (await engine.wait(chat_id)).state == "waiting"
        answer = (await engine.messages(chat_id))[2].result
        log = await engine.export_audit(chat_id)
    assert [context.idempotency_key for context in asked] == [work.runs[0].idempotency_key]
    assert verify_export(log).ok
    if found in ("it was done", Reconciled.done("it was done")):
        assert (len(work.runs), answer.outcome, answer.output) == (1, "succeeded", "it was done")
    elif crash == "at_least_once" or found == NOT_DONE:
        assert (len(work.runs), answer.outcome, answer.output) == (2, "succeeded", "work done")
    else:
        assert (len(work.runs), answer.outcome) == (1, "unknown")
        assert answer.output.startswith("Outcome unknown")


async def test_reconcile_has_the_timeout_of_its_tool(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    """Then the crash class decides, as where the tool cannot tell."""
    asked = anyio.Event()

    async def reconcile(_: ToolContext) -> str:
        asked.set()
        await anyio.sleep_forever()
        raise AssertionError

    work = Gate(crash="at_most_once", reconcile=reconcile, timeout=30)
    model, clock = strict_model([Reply("", calls=[Call("work", {})]), "done"]), ManualClock()
    chat_id = await cut_off(open_engine, model, work, clock=clock)
    async with open_engine(model, settings=AT_ONCE, tools=[work.tool], clock=clock) as engine:
        await asked.wait()
        clock.advance(29)
        await anyio.wait_all_tasks_blocked()
        assert (await engine.get_chat(chat_id)).state == "executing_tools"
        clock.advance(1)
        assert (await engine.wait(chat_id)).state == "waiting"
        answer = (await engine.messages(chat_id))[2].result
    assert (len(work.runs), answer.outcome) == (1, "unknown")


async def test_reply_cut_off_by_shutdown_is_made_again(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    model = strict_model([Reply("Hello", chunks=["Hel", "lo"], stall_after=1), "Hello"])
    async with open_engine(model, settings=AT_ONCE) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        await shown(engine, chat.id, "Hel")
    async with open_engine(model, settings=AT_ONCE) as engine:
        assert (await engine.wait(chat.id)).state == "waiting"
        assert said(await engine.messages(chat.id)) == [("user", "hi"), ("assistant", "Hello")]
        events = await events_of(engine, chat.id)
        assert [event.attempt for event in events if isinstance(event, AttemptDiscardedEvent)] == [1]
        assert never_rested(await states_of(engine, chat.id))
        await assert_told_right(engine, chat.id)


async def test_expired_lease_is_taken_over_and_zombie_writes_nothing(
    open_engine: OpenEngine, strict_model: MakeModel, database: Path
) -> None:
    """The first engine becomes a zombie: its clock stands still and it hears nothing, so that it renews nothing."""
    slow, now = ManualClock(), ManualClock()
    zombies = strict_model(Reply("Hello", chunks=["Hel", "lo"], delay=1), sleep=lambda seconds: sleep(slow, seconds))
    model = strict_model(["Hi there"])
    async with open_engine(
        zombies, store=Unwatched(stored_at(database, ManualClock())), clock=ManualClock(), settings=Settings(coalesce=0)
    ) as zombie:
        chat = await zombie.create_chat()
        await zombie.send_message(chat.id, "hello")
        await shown(zombie, chat.id, "Hel")
        async with open_engine(model, clock=now, settings=Settings(coalesce=0)) as engine:
            await now.advance(29)
            assert (await engine.get_chat(chat.id)).state == "streaming"
            await now.advance(2)
            assert (await engine.wait(chat.id)).state == "waiting"
            before, records = await events_of(engine, chat.id), await engine.audit(chat.id)
            # The zombie's model goes on; its reply is dropped.
            await slow.advance(1)
            await slow.advance(1)
            while slow.next_timer is not None:
                await slow.advance(1)
            assert await zombie.wait(chat.id) == await engine.get_chat(chat.id)
            assert (await events_of(engine, chat.id), await engine.audit(chat.id)) == (before, records)
            assert said(await engine.messages(chat.id)) == [("user", "hello"), ("assistant", "Hi there")]
            await assert_told_right(engine, chat.id)
    async with open_engine(model, settings=Settings(run_worker=False)) as onlooker:
        assert (await events_of(onlooker, chat.id), await onlooker.audit(chat.id)) == (before, records)
