"""Edits of messages while anything runs, and resuming after an interrupt or an error."""

from __future__ import annotations

import pytest
from tests.engine.chats import lines_of, path_of, untouched

from support.engines import OpenChat
from support.events import events_of
from support.latches import Latch
from turnwise import ClientTool, MessageNotFound, ModelError, fold, tool
from turnwise.providers.scripted import Call, Reply

ASK = ClientTool("ask_user", "Ask the user.", {"type": "object"})


@pytest.mark.parametrize("edited", [0, 1])
async def test_edit_replaces_message_and_what_followed(open_chat: OpenChat, edited: int) -> None:
    async with open_chat(["one", "two", "again"]) as (engine, chat, _):
        await engine.ask(chat.id, "first")
        await engine.ask(chat.id, "second")
        users = [message for message in await engine.messages(chat.id) if message.role == "user"]
        await engine.edit_message(chat.id, users[edited].id, "edited")
        await engine.wait(chat.id)
        kept = ["user: first", "assistant: one"][: 2 * edited]
        history = await engine.messages(chat.id)
        assert lines_of(history) == [*kept, "user: edited", "assistant: again"]
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
        kept = ["user: first", "assistant: one"][: 2 * edited]
        history = await engine.messages(chat.id)
        assert lines_of(history) == [*kept, "user: edited", "assistant: again"]
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
        rested = await engine.wait(chat.id)
        assert (rested.state, rested.open_calls) == ("waiting", [])
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


@pytest.mark.parametrize("which", ["assistant", "unknown", "cut"])
async def test_only_user_messages_of_history_are_editable(open_chat: OpenChat, which: str) -> None:
    async with open_chat("ok") as (engine, chat, _):
        result = await engine.ask(chat.id, "first")
        await engine.edit_message(chat.id, result.messages[0].id, "edited")
        await engine.wait(chat.id)
        target = {"assistant": (await engine.messages(chat.id))[1].id, "unknown": "m999", "cut": result.messages[0].id}[
            which
        ]
        async with untouched(engine, chat.id):
            with pytest.raises(MessageNotFound, match="user message in its history"):
                await engine.edit_message(chat.id, target, "x")


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


async def test_resume_after_error_tries_again(open_chat: OpenChat) -> None:
    async with open_chat([Reply(error=ModelError("authentication", status=401)), "hello"]) as (engine, chat, _):
        failed = await engine.ask(chat.id, "hi")
        assert (failed.chat.state, failed.stop_reason, failed.chat.last_error.kind) == (
            "error",
            "error",
            "authentication",
        )
        resumed = await engine.resume(chat.id)
        assert resumed.last_error is None
        rested = await engine.wait(chat.id)
        assert (rested.state, rested.last_error) == ("waiting", None)
        assert lines_of(await engine.messages(chat.id)) == ["user: hi", "assistant: hello"]
        assert (await path_of(engine, chat.id))[-4:] == ["error", "pending", "streaming", "waiting"]
