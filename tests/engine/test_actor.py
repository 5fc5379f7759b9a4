"""Who acted: every command names its caller in the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from support.chats import untouched
from turnwise import ClientTool, Engine, Settings, SettingsError, ToolResult
from turnwise.engine.commands import CLIENT
from turnwise.providers.scripted import Call, Reply

ANNA = "user:anna"
ASKS = ClientTool("ask_user", "Ask the user.", {"type": "object"})

Command = Callable[[Engine, str], Awaitable[object]]


async def _streamed(events: AsyncIterator[object]) -> None:
    async for _ in events:
        pass


async def _queue_one(engine: Engine, chat_id: str) -> str:
    await engine.send_message(chat_id, "call")
    await engine.wait(chat_id)
    return (await engine.send_message(chat_id, "later")).message_id


async def _edit_queued(engine: Engine, chat_id: str) -> None:
    await engine.edit_queued(chat_id, await _queue_one(engine, chat_id), "other", actor=ANNA)


async def _delete_queued(engine: Engine, chat_id: str) -> None:
    await engine.delete_queued(chat_id, await _queue_one(engine, chat_id), actor=ANNA)


async def _promote_queued(engine: Engine, chat_id: str) -> None:
    await engine.promote_queued(chat_id, await _queue_one(engine, chat_id), actor=ANNA)


async def _submit(engine: Engine, chat_id: str) -> None:
    (call,) = (await engine.ask(chat_id, "call")).open_calls
    await engine.submit_tool_results(chat_id, [ToolResult(call.call_id, "yes")], actor=ANNA)


async def _interrupt(engine: Engine, chat_id: str) -> None:
    await engine.ask(chat_id, "call")
    await engine.interrupt(chat_id, actor=ANNA)


async def _resume(engine: Engine, chat_id: str) -> None:
    await _interrupt(engine, chat_id)
    await engine.resume(chat_id, actor=ANNA)


async def _unarchive(engine: Engine, chat_id: str) -> None:
    await engine.archive(chat_id)
    await engine.unarchive(chat_id, actor=ANNA)


async def _on_the_first_message(engine: Engine, chat_id: str, command: str, *content: str) -> None:
    message_id = (await engine.ask(chat_id, "hello")).messages[0].id
    await getattr(engine, command)(chat_id, message_id, *content, actor=ANNA)


async def _erase_the_title(engine: Engine, chat_id: str) -> None:
    await engine.rename(chat_id, "my secret")
    await engine.erase(chat_id, what=["title"], actor=ANNA)


async def _after_a_turn(engine: Engine, chat_id: str, command: str) -> None:
    await engine.ask(chat_id, "hello")
    await getattr(engine, command)(chat_id, actor=ANNA)


COMMANDS: dict[str, tuple[Command, str]] = {
    "send_message": (lambda engine, chat_id: engine.send_message(chat_id, "hello", actor=ANNA), "send_message"),
    "ask": (lambda engine, chat_id: engine.ask(chat_id, "hello", actor=ANNA), "send_message"),
    "stream": (lambda engine, chat_id: _streamed(engine.stream(chat_id, "hello", actor=ANNA)), "send_message"),
    "submit_tool_results": (_submit, "submit_tool_results"),
    "interrupt": (_interrupt, "interrupt"),
    "resume": (_resume, "resume"),
    "edit_message": (lambda engine, chat: _on_the_first_message(engine, chat, "edit_message", "x"), "edit_message"),
    "erase_message": (lambda engine, chat: _on_the_first_message(engine, chat, "erase_message"), "message_erased"),
    "erase": (_erase_the_title, "message_erased"),
    "request_compaction": (lambda engine, c: _after_a_turn(engine, c, "request_compaction"), "request_compaction"),
    "clear_context": (lambda engine, chat_id: _after_a_turn(engine, chat_id, "clear_context"), "clear_context"),
    "edit_queued": (_edit_queued, "edit_queued"),
    "delete_queued": (_delete_queued, "delete_queued"),
    "promote_queued": (_promote_queued, "promote_queued"),
    "rename": (lambda engine, chat_id: engine.rename(chat_id, "new", actor=ANNA), "renamed"),
    "update_chat": (lambda engine, chat_id: engine.update_chat(chat_id, title="new", actor=ANNA), "renamed"),
    "set_metadata": (lambda engine, chat_id: engine.set_metadata(chat_id, {}, actor=ANNA), "metadata_changed"),
    "configure": (lambda engine, chat_id: engine.configure(chat_id, system="Be brief.", actor=ANNA), "configured"),
    "archive": (lambda engine, chat_id: engine.archive(chat_id, actor=ANNA), "archived"),
    "unarchive": (_unarchive, "unarchived"),
}


def answer(request: Any) -> Reply:
    return Reply(calls=[Call("ask_user", {})]) if request.messages[-1].text == "call" else Reply("fine")


@pytest.mark.parametrize("name", COMMANDS)
async def test_record_of_a_command_names_its_actor(name: str, open_engine: Any, strict_model: Any) -> None:
    command, trigger = COMMANDS[name]
    async with open_engine(strict_model(answer)) as engine:
        chat = await engine.create_chat(client_tools=[ASKS])
        await command(engine, chat.id)
        await engine.wait(chat.id)
        named = [record.trigger for record in await engine.audit(chat.id) if record.actor == ANNA]
        assert trigger in named


@pytest.mark.parametrize("settings", [Settings(), Settings(run_worker=False)])
async def test_create_and_fork_record_their_actor(settings: Settings, open_engine: Any, strict_model: Any) -> None:
    async with open_engine(strict_model([]), settings=settings) as engine:
        chat = await engine.create_chat(actor=ANNA)
        forked = await engine.fork(chat.id, at_version=1, actor="user:bert")
        await engine.rename(forked.id, "title")
        assert [record.actor for record in await engine.audit(chat.id)] == [ANNA]
        assert [record.actor for record in await engine.audit(forked.id)] == ["user:bert", CLIENT]


@pytest.mark.parametrize("nobody", ["", None, 7, b"anna", "x" * 1025, "worker:vm:1:2:3"])
async def test_invalid_actor_is_refused(nobody: Any, open_engine: Any, strict_model: Any) -> None:
    async with open_engine(strict_model([])) as engine:
        chat = await engine.create_chat()
        async with untouched(engine, chat.id):
            with pytest.raises(SettingsError, match="actor"):
                await engine.rename(chat.id, "title", actor=nobody)
