"""Who acted: the log names the caller of every command, and an answer its model."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.chats import untouched

from support.engines import MakeModel, OpenEngine
from turnwise import ClientTool, Engine, SettingsError, ToolResult, tool
from turnwise.engine.commands import CLIENT
from turnwise.providers.protocol import ModelPart
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.digests import digest
from turnwise.states.usage import Usage

ASKS = ClientTool("ask_user", "Ask the user.", {"type": "object"})
TRIGGERS = {
    "create_chat": "create",
    "send_message": "send_message",
    "ask": "send_message",
    "stream": "send_message",
    "submit_tool_results": "submit_tool_results",
    "edit_message": "edit_message",
    "edit_queued": "edit_queued",
    "promote_queued": "promote_queued",
    "delete_queued": "delete_queued",
    "interrupt": "interrupt",
    "resume": "resume",
    "request_compaction": "request_compaction",
    "clear_context": "clear_context",
    "rename": "renamed",
    "update_chat": "renamed",
    "set_metadata": "metadata_changed",
    "configure": "configured",
    "erase_message": "message_erased",
    "erase": "message_erased",
    "archive": "archived",
    "unarchive": "unarchived",
}
"""What each command leaves in the log."""


def answer(request: Any) -> Reply:
    return Reply(calls=[Call("ask_user", {})]) if request.messages[-1].text == "call" else Reply("fine")


async def test_record_of_a_command_names_its_actor(open_engine: OpenEngine, strict_model: MakeModel) -> None:
    """Each command acts as a user of its own name; commands without an actor act as the client."""
    async with open_engine(strict_model(answer)) as engine:
        chat_id = (await engine.create_chat(client_tools=[ASKS], actor="create_chat")).id

        async def do(command: str, *given: Any, **options: Any) -> Any:
            return await getattr(engine, command)(chat_id, *given, actor=command, **options)

        first = (await do("ask", "hello")).messages[0].id
        await do("send_message", "hello")
        await engine.wait(chat_id)
        async for _ in engine.stream(chat_id, "hello", actor="stream"):
            pass
        (call,) = (await engine.ask(chat_id, "call")).open_calls
        await do("submit_tool_results", [ToolResult(call.call_id, "yes")])
        await engine.wait(chat_id)
        await do("edit_message", first, "call")
        await engine.wait(chat_id)
        queued = [(await engine.send_message(chat_id, text)).message_id for text in ("one", "two", "three")]
        await do("edit_queued", queued[0], "other")
        await do("delete_queued", queued[1])
        await do("promote_queued", queued[2])
        await engine.wait(chat_id)
        await engine.ask(chat_id, "call")
        await do("interrupt")
        await do("resume")
        await engine.wait(chat_id)
        await do("request_compaction")
        await engine.wait(chat_id)
        await do("clear_context")
        await do("rename", "new")
        await do("update_chat", title="newer")
        await do("set_metadata", {})
        await do("configure", system="Be brief.")
        await do("erase_message", first)
        await do("erase", what=["title"])
        await do("archive")
        await do("unarchive")
        records = reversed(await engine.audit(chat_id))  # the first of an actor counts: some are followed by `settled`
        assert {record.actor: record.trigger for record in records if record.actor in TRIGGERS} == TRIGGERS
        workers = {record.actor for record in await engine.audit(chat_id) if record.trigger == "step_finished"}
        assert all(actor.startswith("worker:") for actor in workers)
        fork = await engine.fork(chat_id, at_version=1, actor="user:bert")
        await engine.rename(fork.id, "title")
        assert [record.actor for record in await engine.audit(fork.id)] == ["user:bert", CLIENT]


@pytest.mark.parametrize("actor", ["", None, "x" * 1025, "worker:vm:1:2:3"])
async def test_invalid_actor_is_refused(actor: Any, open_engine: OpenEngine, strict_model: MakeModel) -> None:
    async with open_engine(strict_model([])) as engine:
        chat = await engine.create_chat()
        async with untouched(engine, chat.id):
            with pytest.raises(SettingsError, match="actor"):
                await engine.rename(chat.id, "title", actor=actor)


@tool
async def look() -> str:
    """Look."""
    return "seen"


def _parts() -> list[ModelPart]:
    finish = ModelPart(
        "finish", stop_reason="stop", usage=Usage(input_tokens=3), metadata={"reason": "stop", "response_id": "resp-7"}
    )
    return [ModelPart("text_delta", text="hello"), finish]


async def test_answer_names_its_model_and_tools() -> None:
    model = ScriptedModel([Reply(parts=_parts())])
    async with Engine("sqlite://", model=model, tools=[look]) as engine:
        chat = await engine.create_chat()
        asked, answer = (await engine.ask(chat.id, "hi")).messages
        assert (answer.agent, answer.model, answer.provider) == ("default", model.name, model.provider)
        assert (answer.response_id, answer.finish_reason) == ("resp-7", "stop")
        assert answer.usage == Usage(input_tokens=3)
        offered = [[spec.name, spec.description, dict(spec.schema)] for spec in model.requests[0].tools]
        assert answer.tools_digest == digest(offered)
        assert (asked.agent, asked.model, asked.usage) == (None, None, None)
