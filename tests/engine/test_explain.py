"""Why a chat is not moving: for each place where it can be stuck, the right reason."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from support.latches import Latch
from turnwise import ClientTool, ModelError, Settings, tool
from turnwise.providers.scripted import Call, Reply
from turnwise.testing import ManualClock

ASK = ClientTool("ask_user", "Ask the user.", {"type": "object"}, deadline=60)


async def test_a_chat_that_waits_says_so(open_engine: Any, strict_model: Any) -> None:
    async with open_engine(strict_model([])) as engine:
        chat = await engine.create_chat()
        explained = await engine.explain(chat.id)
        assert explained.reason == "Nothing to do: the chat waits for the next message."
        assert (explained.state, explained.lease_worker, explained.next_timer) == ("waiting", None, None)
        assert "send_message" in explained.legal_triggers
        assert explained.broken_promises == ()


async def test_a_chat_that_nobody_claims_asks_for_a_worker(open_engine: Any, strict_model: Any) -> None:
    async with open_engine(strict_model([]), settings=Settings(run_worker=False)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        explained = await engine.explain(chat.id)
        assert (explained.state, explained.lease_worker) == ("pending", None)
        assert "no worker has claimed" in explained.reason


async def test_a_chat_that_waits_for_its_client_names_the_calls_and_the_deadline(
    open_engine: Any, strict_model: Any
) -> None:
    clock = ManualClock()
    async with open_engine(strict_model([Reply(calls=[Call("ask_user", {})])]), clock=clock) as engine:
        chat = await engine.create_chat(client_tools=[ASK])
        await engine.ask(chat.id, "hi")
        explained = await engine.explain(chat.id)
        assert "Waiting for the client's results of ask_user (call_1)" in explained.reason
        assert explained.next_timer == explained.open_calls[0].deadline
        assert (explained.next_timer - clock.now()).total_seconds() == 60


async def test_a_chat_in_back_off_says_until_when(open_engine: Any, strict_model: Any) -> None:
    clock = ManualClock()
    model = strict_model([Reply(error=ModelError("overloaded", retry_after=90)), "ok"])
    async with open_engine(model, clock=clock, settings=Settings(lease=3600)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        async for event in engine.events(chat.id):
            if event.kind == "retry":
                break
        explained = await engine.explain(chat.id)
        assert "In back-off: the model call failed 1 time(s)" in explained.reason
        assert "in 90 s" in explained.reason
        assert (explained.next_timer - clock.now()).total_seconds() == 90
        await clock.advance(90)
        await engine.wait(chat.id)


async def test_a_running_chat_names_its_worker_and_what_it_does(open_engine: Any, strict_model: Any) -> None:
    asked, working = Latch(), Latch()

    @tool
    async def work() -> str:
        """Work."""
        await working.pass_through()
        return "done"

    model = strict_model([Reply("", calls=[Call("work", {})], first_delay=1), "ok"], sleep=asked.pass_through)
    async with open_engine(model, tools=[work]) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        await asked.entered.wait()
        explained = await engine.explain(chat.id)
        assert "The model is answering step 1, attempt 1" in explained.reason
        assert explained.lease_worker is not None
        assert explained.lease_worker in explained.reason
        asked.open()
        await working.entered.wait()
        assert "Tools are running: work" in (await engine.explain(chat.id)).reason
        working.open()
        await engine.wait(chat.id)


async def test_a_lease_of_a_dead_worker_is_named_as_one(open_engine: Any, strict_model: Any) -> None:
    latch, clock = Latch(), ManualClock()
    later = ManualClock(clock.now())
    async with AsyncExitStack() as stack:
        model = strict_model([Reply("ok", first_delay=1)], sleep=latch.pass_through)
        engine = await stack.enter_async_context(open_engine(model, clock=clock))
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        await latch.entered.wait()
        looking_on = Settings(run_worker=False)
        other = await stack.enter_async_context(open_engine(strict_model([]), clock=later, settings=looking_on))
        await later.advance(40)
        explained = await other.explain(chat.id)
        assert "ran out 10 s ago" in explained.reason
        assert "dead or cut off" in explained.reason
        latch.open()
        await engine.wait(chat.id)


async def test_a_stopped_chat_and_a_failed_one_say_what_to_do(open_engine: Any, strict_model: Any) -> None:
    model = strict_model([Reply("", stall_after=0), Reply(error=ModelError("quota", message="no money left"))])
    async with open_engine(model) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hi")
        await engine.send_message(chat.id, "queued")
        await engine.interrupt(chat.id)
        await engine.wait(chat.id)
        assert "1 queued message(s) wait; resume it" in (await engine.explain(chat.id)).reason
        await engine.resume(chat.id)
        await engine.wait(chat.id)
        explained = await engine.explain(chat.id)
        assert "no money left" in explained.reason
        assert explained.last_error.kind == "quota"


async def test_an_archived_chat_says_so(open_engine: Any, strict_model: Any) -> None:
    async with open_engine(strict_model([])) as engine:
        chat = await engine.create_chat()
        await engine.archive(chat.id)
        explained = await engine.explain(chat.id)
        assert "archived" in explained.reason
        assert explained.legal_triggers == ("unarchived", "message_erased")
