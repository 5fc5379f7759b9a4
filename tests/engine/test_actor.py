"""Who acted: the log names the caller of every command, and an answer its model."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.chats import untouched

from support.engines import MakeModel, OpenEngine
from turnwise import Engine, SettingsError, tool
from turnwise.providers.protocol import ModelPart
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.digests import digest
from turnwise.states.usage import Usage


def answer(request: Any) -> Reply:
    return Reply(calls=[Call("ask_user", {})]) if request.messages[-1].text == "call" else Reply("fine")


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
