"""Who acted, which model answered and with what is in the chain, and no rewrite of it goes unseen."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from turnwise import Engine, tool
from turnwise.providers.protocol import ModelPart
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.states.digests import digest
from turnwise.states.usage import Usage


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


@pytest.mark.parametrize("field", ["agent", "model", "tools_digest"])
async def test_forged_origin_is_found(tmp_path: Path, field: str) -> None:
    path = tmp_path / "chats.db"
    async with Engine(f"sqlite:///{path}", model=ScriptedModel([Reply(parts=_parts())]), tools=[look]) as engine:
        chat = await engine.create_chat()
        answer = (await engine.ask(chat.id, "hi")).messages[-1]
        with closing(sqlite3.connect(path, isolation_level=None)) as on:
            sql = "UPDATE messages SET body = json_set(body, ?, 'forged') WHERE id = ?"
            on.execute(sql, (f"$.{field}", answer.id))
        assert (await engine.verify(chat.id)).place == f"messages[{answer.id}].body|salt"


async def test_audit_separates_client_and_worker() -> None:
    async with Engine("sqlite://", model=ScriptedModel(["hello"])) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hi", actor="user:ann")
        actors: dict[str, Any] = {record.trigger: record.actor for record in await engine.audit(chat.id)}
        assert actors["send_message"] == "user:ann"
        assert all(actors[trigger].startswith("worker:") for trigger in ("claimed", "attempt_started", "step_finished"))
        assert len({actors[trigger] for trigger in ("claimed", "attempt_started", "step_finished")}) == 1
