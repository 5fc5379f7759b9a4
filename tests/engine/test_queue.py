"""Messages to a working chat: queued, refused or accepted at once, each exactly once."""

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from tests.engine.chats import lines_of, untouched

from support.engines import OpenChat
from support.events import events_of
from support.latches import Latch
from support.stores import Delegate, stored_at
from turnwise import ClientTool, Engine, QueueFull, Settings, VersionMismatch, fold, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.errors import ConflictingReplay, MessageNotFound
from turnwise.states.names import ChatState
from turnwise.states.triggers import LeaseExpired
from turnwise.testing.conformance import plans
from turnwise.testing.conformance.plans import part


class Busy:
    """A chat whose model has sent "Hel" and waits at a latch."""

    def __init__(self, engine: Engine, chat_id: str, latch: Latch) -> None:
        self.engine = engine
        self.id = chat_id
        self.latch = latch

    async def finish(self) -> list[str]:
        """Let the model continue; return the history once the chat rests."""
        self.latch.open()
        await self.engine.wait(self.id)
        return lines_of(await self.engine.messages(self.id))

    async def waiting(self) -> list[tuple[str, str]]:
        return [(queued.id, queued.text) for queued in await self.engine.queued(self.id)]


@pytest.fixture
def busy(open_engine: Any, strict_model: Any) -> Any:
    @asynccontextmanager
    async def opened(*answers: Any, **options: Any) -> AsyncIterator[Busy]:
        latch = Latch()
        script = [Reply("Hello", chunks=["Hel", "lo"], delay=1), *answers]
        async with open_engine(strict_model(script, sleep=latch.pass_through), **options) as engine:
            chat = await engine.create_chat()
            await engine.send_message(chat.id, "first")
            async for event in engine.events(chat.id):
                if event.kind == "part":
                    break
            yield Busy(engine, chat.id, latch)

    return opened


async def test_queued_messages_are_answered_in_order(busy: Any) -> None:
    async with busy("two", "three") as chat:
        second = await chat.engine.send_message(chat.id, "second")
        third = await chat.engine.send_message(chat.id, "third")
        assert (second.queued, third.queued) == (True, True)
        assert await chat.waiting() == [(second.message_id, "second"), (third.message_id, "third")]
        assert (await chat.engine.get_chat(chat.id)).queued == 2
        assert await chat.finish() == [
            *("user: first", "assistant: Hello"),
            *("user: second", "assistant: two"),
            *("user: third", "assistant: three"),
        ]
        history = await chat.engine.messages(chat.id)
        users = [message.id for message in history if message.role == "user"]
        assert users[1:] == [second.message_id, third.message_id]
        assert [message.turn for message in history] == [1, 1, 2, 2, 3, 3]
        changes = [(event.change, *event.ids) for event in await events_of(chat.engine, chat.id, "queue")]
        added, taken = ([(change, *users[1:][place : place + 1]) for place in (0, 1)] for change in ("added", "taken"))
        assert changes == [*added, *taken]


async def test_queue_is_bounded_by_bytes(busy: Any) -> None:
    """All messages count, interrupting and edited ones, too."""
    async with busy("two", settings=Settings(queue_limit_bytes=100)) as chat:
        waiting = await chat.engine.send_message(chat.id, "x" * 60)
        refused = [
            lambda: chat.engine.send_message(chat.id, "y" * 50),
            lambda: chat.engine.send_message(chat.id, "y" * 50, when_busy="interrupt"),
            lambda: chat.engine.edit_queued(chat.id, waiting.message_id, "y" * 101),
        ]
        async with untouched(chat.engine, chat.id):
            for change in refused:
                with pytest.raises(QueueFull, match="at most 100 bytes"):
                    await change()
        await chat.engine.edit_queued(chat.id, waiting.message_id, "y" * 90)
        assert await chat.finish() == ["user: first", "assistant: Hello", f"user: {'y' * 90}", "assistant: two"]


async def test_queue_changes_store_what_changed(database: Path, open_chat: OpenChat) -> None:
    """No event or record repeats the other queued messages."""
    async with open_chat(ScriptedModel([]), settings=Settings(run_worker=False, queue_limit=200)) as (engine, chat, _):
        await engine.send_message(chat.id, "first")
        sent = [await engine.send_message(chat.id, f"{number}" * 10_000) for number in range(10)]
        with closing(sqlite3.connect(database)) as on:
            ask = "SELECT sum(length(body)) FROM events", "SELECT sum(length(body)) FROM audit"
            before = [on.execute(one).fetchone()[0] for one in ask]
            for number in range(20):
                await engine.edit_queued(chat.id, sent[0].message_id, f"{number}")
                other = await engine.send_message(chat.id, "another")
                await engine.delete_queued(chat.id, other.message_id)
            events, audit = (on.execute(one).fetchone()[0] - was for one, was in zip(ask, before, strict=True))
        assert before[0] < 110_000
        assert events < 60 * 300
        assert audit < 60 * 1000
        assert fold(await events_of(engine, chat.id)).queue == tuple(await engine.queued(chat.id))


async def test_interrupting_message_goes_ahead_of_the_queue(busy: Any) -> None:
    async with busy("two", "three") as chat:
        await chat.engine.send_message(chat.id, "later")
        receipt = await chat.engine.send_message(chat.id, "now", when_busy="interrupt", client_id="k")
        again = await chat.engine.send_message(chat.id, "now", when_busy="interrupt", client_id="k")
        assert [(one.replayed, one.queued) for one in (receipt, again)] == [(False, False), (True, False)]
        history = await chat.finish()
        assert history == [
            *("user: first", "assistant: Hel"),
            *("user: now", "assistant: two"),
            *("user: later", "assistant: three"),
        ]
        messages = await chat.engine.messages(chat.id)
        assert (messages[1].partial, messages[2].id) == (True, receipt.message_id)


@pytest.mark.parametrize("promotes", [False, True])
async def test_interrupt_holds_the_queue_until_resume(busy: Any, *, promotes: bool) -> None:
    """With `promote_after_interrupt` the queue continues by itself."""
    async with busy("two", settings=Settings(promote_after_interrupt=promotes)) as chat:
        await chat.engine.send_message(chat.id, "second")
        await chat.engine.interrupt(chat.id)
        if not promotes:
            stopped = await chat.engine.wait(chat.id)
            assert (stopped.state, stopped.queued) == ("interrupted", 1)
            await chat.engine.resume(chat.id)
        await chat.engine.wait(chat.id, until={"waiting"})
        assert (await chat.finish())[2:] == ["user: second", "assistant: two"]


async def test_repeated_message_replays_in_every_state(busy: Any) -> None:
    async with busy("two", "three") as chat:
        first = await chat.engine.send_message(chat.id, "second", client_id="k")
        assert (first.queued, first.replayed) == (True, False)

        async def replayed() -> None:
            async with untouched(chat.engine, chat.id):
                for when_busy in ("queue", "reject", "interrupt"):
                    again = await chat.engine.send_message(chat.id, "second", client_id="k", when_busy=when_busy)
                    assert (again.message_id, again.queued, again.replayed) == (first.message_id, True, True)
                with pytest.raises(ConflictingReplay) as refused:
                    await chat.engine.send_message(chat.id, "other", client_id="k")
                assert refused.value.client_id == "k"

        await replayed()
        await chat.engine.interrupt(chat.id)
        await chat.engine.wait(chat.id)
        await replayed()
        await chat.engine.resume(chat.id)
        await chat.finish()
        await replayed()


async def test_client_id_is_per_chat_and_survives_restart(open_engine: Any, strict_model: Any) -> None:
    async with open_engine(strict_model("ok")) as engine:
        one, other = await engine.create_chat(), await engine.create_chat()
        first = await engine.send_message(one.id, "hi", client_id="k")
        assert not (await engine.send_message(other.id, "else", client_id="k")).replayed
        await engine.wait(one.id)
        await engine.wait(other.id)
    async with open_engine(strict_model([])) as engine:
        again = await engine.send_message(one.id, "hi", client_id="k")
        assert (again.message_id, again.replayed) == (first.message_id, True)


async def test_queue_changes_check_if_version(busy: Any) -> None:
    async with busy("second") as chat:
        await chat.engine.send_message(chat.id, "then")
        (queued,) = await chat.engine.queued(chat.id)
        seen = (await chat.engine.get_chat(chat.id)).version
        with pytest.raises(VersionMismatch, match=f"is at version {seen}, not {seen - 1}"):
            await chat.engine.edit_queued(chat.id, queued.id, "other", if_version=seen - 1)
        with pytest.raises(VersionMismatch, match="nothing was written"):
            await chat.engine.delete_queued(chat.id, queued.id, if_version=seen - 1)
        assert await chat.waiting() == [(queued.id, "then")]
        edited = await chat.engine.edit_queued(chat.id, queued.id, "other", if_version=seen)
        assert await chat.waiting() == [(queued.id, "other")]
        await chat.engine.delete_queued(chat.id, queued.id, if_version=edited.version)
        assert await chat.finish() == ["user: first", "assistant: Hello"]


IDLE = Settings(run_worker=False)


class Between(Delegate):
    """A store that runs a callback once, right after it answered a question."""

    def __init__(self, store: Any, question: str) -> None:
        super().__init__(store)
        self.question = question
        self.then: Callable[[], Awaitable[object]] | None = None

    def __getattr__(self, name: str) -> Any:
        real = super().__getattr__(name)
        if name != self.question:
            return real

        async def answered(*args: Any, **more: Any) -> Any:
            answer = await real(*args, **more)
            then, self.then = self.then, None
            if then is not None:
                await then()
            return answer

        return answered


@pytest.mark.parametrize("moved", ["the holder is gone", "another was there"])
async def test_interrupt_keeps_parts_shown_meanwhile(database: Path, moved: str) -> None:
    """The visible parts are read first; meanwhile the lease expires, or another worker comes and goes."""
    store = Between(stored_at(database), "facts" if moved == "the holder is gone" else "shown")
    expire = plans.plan(plans.move(LeaseExpired(token=plans.HOLDER)))

    async def show(text: str, attempt: int) -> None:
        facts = await store.facts("chat")
        await store.append_events("chat", facts.fence, ChatState.streaming, [part(text, attempt=attempt)])

    async def go_on() -> None:
        if moved == "another was there":
            await store.change("chat", plans.plan(plans.claim("other")))
            await show("and then", (await store.facts("chat")).step.attempt)
        await store.change("chat", expire)

    async with Engine(store, model=ScriptedModel([]), settings=IDLE) as engine:
        await plans.created(store, "chat", plans.send("hello"), plans.claim())
        await show("so far", 1)
        if moved == "another was there":
            await store.change("chat", expire)
        store.then = go_on
        stopped = await engine.interrupt("chat")
        assert store.then is None
        assert (stopped.state, stopped.settled) == ("interrupted", True)
        stored = (await engine.messages("chat"))[-1]
        assert (stored.text, stored.partial) == ("so far" if moved == "the holder is gone" else "and then", True)


async def test_edit_of_message_cut_meanwhile_is_not_found(open_engine: Any, strict_model: Any, database: Path) -> None:
    model = strict_model(lambda request: f"re {request.messages[-1].text}")
    store = Between(stored_at(database), "cut_at")
    async with open_engine(model) as engine, open_engine(model, store=store, settings=IDLE) as slow:
        chat = await engine.create_chat()
        first, second = [(await engine.ask(chat.id, word)).messages[0].id for word in ("one", "two")]

        async def cut() -> None:
            await engine.edit_message(chat.id, first, "other")
            await engine.wait(chat.id)

        store.then = cut
        with pytest.raises(MessageNotFound):
            await slow.edit_message(chat.id, second, "late")
        assert store.then is None
        assert lines_of(await engine.messages(chat.id)) == ["user: other", "assistant: re other"]


# Edits, and resuming


ASK = ClientTool("ask_user", "Ask the user.", {"type": "object"})


@pytest.mark.parametrize("edited", [0, 1])
async def test_edit_replaces_message_and_what_followed(open_chat: OpenChat, edited: int) -> None:
    async with open_chat(["one", "two", "again"]) as (engine, chat, _):
        await engine.ask(chat.id, "first")
        await engine.ask(chat.id, "second")
        users = [message for message in await engine.messages(chat.id) if message.role == "user"]
        await engine.edit_message(chat.id, users[edited].id, "edited")
        await engine.wait(chat.id)
        stored = ["user: first", "assistant: one"][: 2 * edited]
        history = await engine.messages(chat.id)
        assert lines_of(history) == [*stored, "user: edited", "assistant: again"]
        assert fold(await events_of(engine, chat.id)).messages == history
        (reset,) = await events_of(engine, chat.id, "history_reset")
        assert reset.first_removed == users[edited].id
        assert lines_of(await engine.messages(chat.id, view="model")) == lines_of(history)


@pytest.mark.parametrize("edited", [0, 1])
async def test_edit_while_the_model_answers(open_chat: OpenChat, edited: int) -> None:
    latch = Latch()
    async with open_chat(["one", Reply("never", first_delay=1), "again"], sleep=latch.pass_through) as (
        engine,
        chat,
        _,
    ):
        await engine.ask(chat.id, "first")
        await engine.send_message(chat.id, "second")
        await engine.send_message(chat.id, "queued")
        await latch.entered.wait()
        users = [message for message in await engine.messages(chat.id) if message.role == "user"]
        await engine.edit_message(chat.id, users[edited].id, "edited")
        latch.open()
        await engine.wait(chat.id)
        stored = ["user: first", "assistant: one"][: 2 * edited]
        history = await engine.messages(chat.id)
        assert lines_of(history) == [*stored, "user: edited", "assistant: again"]
        assert fold(await events_of(engine, chat.id)).messages == history
        assert await engine.queued(chat.id) == []


async def test_edit_drops_result_of_running_tool(open_chat: OpenChat) -> None:
    latch = Latch()

    @tool
    async def work() -> str:
        """Work."""
        await latch.pass_through()
        return "done"

    async with open_chat([Reply(calls=[Call("work", {})]), "again"], tools=[work]) as (engine, chat, _):
        receipt = await engine.send_message(chat.id, "first")
        await latch.entered.wait()
        await engine.edit_message(chat.id, receipt.message_id, "edited")
        latch.open()
        await engine.wait(chat.id)
        assert lines_of(await engine.messages(chat.id)) == ["user: edited", "assistant: again"]


async def test_edit_closes_client_calls(open_chat: OpenChat) -> None:
    async with open_chat([Reply(calls=[Call("ask_user", {})]), "again"], client_tools=[ASK]) as (engine, chat, _):
        result = await engine.ask(chat.id, "first")
        await engine.edit_message(chat.id, result.messages[0].id, "edited")
        resting = await engine.wait(chat.id)
        assert (resting.state, resting.open_calls) == ("waiting", [])
        assert lines_of(await engine.messages(chat.id)) == ["user: edited", "assistant: again"]


async def test_edit_before_cleared_context_restores_it(open_chat: OpenChat) -> None:
    async with open_chat("ok") as (engine, chat, model):
        await engine.ask(chat.id, "first")
        second = await engine.ask(chat.id, "second")
        await engine.clear_context(chat.id)
        await engine.ask(chat.id, "third")
        await engine.edit_message(chat.id, second.messages[0].id, "edited")
        await engine.wait(chat.id)
        assert lines_of(model.requests[-1].messages) == ["user: first", "assistant: ok", "user: edited"]


async def test_resume_continues_partial_answer(open_chat: OpenChat) -> None:
    latch = Latch()
    script = [Reply("Hello", chunks=["Hel", "lo"], delay=1), "lo again", "bye"]
    async with open_chat(script, sleep=latch.pass_through) as (engine, chat, model):
        await engine.send_message(chat.id, "first")
        async for event in engine.events(chat.id):
            if event.kind == "part":
                break
        await engine.interrupt(chat.id)
        await engine.wait(chat.id)
        expected = ["user: first", "assistant: Hel", "user: Continue."]
        assert lines_of(await engine.messages(chat.id, view="model")) == expected
        await engine.resume(chat.id)
        await engine.wait(chat.id)
        assert lines_of(model.requests[1].messages) == expected
        assert lines_of(await engine.messages(chat.id)) == ["user: first", "assistant: Hel", "assistant: lo again"]
        assert (await engine.ask(chat.id, "more")).text == "bye"
