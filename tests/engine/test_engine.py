"""Chats through an engine's methods: labels, lists, views and archives."""

import json
import time
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.chats import untouched

from support.engines import OpenChat
from turnwise import Chat, ChatArchived, ChatDeleted, Engine, Settings, SettingsError, tool
from turnwise.engine.chat_ids import chat_id_for, new_chat_id
from turnwise.providers.protocol import ModelPart
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.states.errors import ConflictingReplay, VersionMismatch
from turnwise.states.usage import Usage
from turnwise.states.values.digests import digest


async def test_client_id_makes_chat_creation_idempotent(open_engine: Any, strict_model: Any) -> None:
    async with open_engine(strict_model("ok")) as engine:
        chats: list[Chat] = []

        async def create() -> None:
            chats.append(await engine.create_chat(owner="ada", client_id="tab-1", title="T", message="hi"))

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(create)
        assert {chat.id for chat in chats} == {chats[0].id}

        await engine.wait(chats[0].id)
        for content in ("hi", None):
            again = await engine.create_chat(owner="ada", client_id="tab-1", title="another", message=content)
            assert (again.id, again.title, again.turn) == (chats[0].id, "T", 1)
        with pytest.raises(ConflictingReplay):
            await engine.create_chat(owner="ada", client_id="tab-1", message="bye")
        others = [
            await engine.create_chat(owner=owner, client_id=client_id)
            for owner, client_id in (("bob", "tab-1"), (None, "tab-1"), ("ada", "tab-2"))
        ]
        assert len({chat.id for chat in (*others, again)}) == 4
        with pytest.raises(ConflictingReplay):  # it was created without one
            await engine.create_chat(owner="bob", client_id="tab-1", message="hi")

        await engine.delete_chat(again.id)
        with pytest.raises(ChatDeleted):
            await engine.create_chat(owner="ada", client_id="tab-1")


@pytest.mark.parametrize(("before", "after"), [(1, True), (0, False), (1.0, 1), (False, 0), (1, 1.0)])
async def test_values_equal_in_python_but_not_in_json_change(open_engine: Any, before: Any, after: Any) -> None:
    spelled = json.dumps
    async with open_engine("demo") as engine:
        chat = await engine.create_chat(metadata={"k": [before]}, parameters={"provider_options": {"store": before}})
        updated = await engine.update_chat(chat.id, metadata={"k": [after]})
        assert spelled(updated.metadata) == spelled({"k": [after]})
        configured = await engine.configure(chat.id, parameters={"provider_options": {"store": after}})
        assert spelled(configured.parameters) == spelled({"provider_options": {"store": after}})
        same = await engine.configure(chat.id, parameters={"provider_options": {"store": after}})
        assert await engine.update_chat(chat.id, metadata={"k": [after]}) == same == configured


async def test_labels_change_together_or_not_at_all(open_chat: OpenChat) -> None:
    async with open_chat([], title="old") as (engine, chat, _):
        changed = await engine.update_chat(chat.id, title="new", metadata={"k": 1}, archived=True, if_version=1)
        with pytest.raises(VersionMismatch, match="is at version 4, not 1") as refused:
            await engine.update_chat(chat.id, title="late", archived=False, if_version=1)
        with pytest.raises(ChatArchived):
            await engine.update_chat(chat.id, title="closed")
        same = await engine.update_chat(chat.id, title="new", metadata={"k": 1}, archived=True)
        opened = await engine.update_chat(chat.id, title="again", archived=False)
        assert await engine.update_chat(chat.id, archived=False) == opened
        with pytest.raises(SettingsError, match="needs one of title, metadata, archived to change"):
            await engine.update_chat(chat.id)
        records = await engine.audit(chat.id)

    assert (changed.title, changed.metadata, changed.archived, changed.version) == ("new", {"k": 1}, True, 4)
    assert (refused.value.chat_id, refused.value.if_version, refused.value.version) == (chat.id, 1, 4)
    assert same == changed
    assert (opened.title, opened.archived, opened.version) == ("again", False, 6)
    assert [record.trigger for record in records] == [
        *("create", "renamed", "metadata_changed", "archived", "unarchived", "renamed")
    ]


async def test_if_version_refuses_stale_changes(open_chat: OpenChat) -> None:
    async with open_chat([], settings=Settings(run_worker=False)) as (engine, chat, _):
        receipt = await engine.send_message(chat.id, "Hello!")
        stopped = await engine.interrupt(chat.id)
        refusals = [
            engine.configure(chat.id, system="Be brief.", if_version=1),
            engine.edit_message(chat.id, receipt.message_id, "Bye!", if_version=1),
            engine.delete_chat(chat.id, if_version=1),
        ]
        for refusal in refusals:
            with pytest.raises(VersionMismatch, match="nothing was written"):
                await refusal
        assert await engine.get_chat(chat.id) == stopped
        await engine.configure(chat.id, system="Be brief.", if_version=stopped.version)
        edited = await engine.edit_message(chat.id, receipt.message_id, "Bye!", if_version=stopped.version + 1)
        stopped = await engine.interrupt(chat.id)
        deleted = await engine.delete_chat(chat.id, if_version=stopped.version)

    assert edited.version == stopped.version - 2
    assert deleted.records == stopped.version


# Who acted


@pytest.mark.parametrize("actor", ["", None, "x" * 1025, "worker:vm:1:2:3"])
async def test_invalid_actor_is_refused(actor: Any, open_chat: OpenChat) -> None:
    async with open_chat([]) as (engine, chat, _), untouched(engine, chat.id):
        with pytest.raises(SettingsError, match="actor"):
            engine.acting(actor)


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


# Ids of chats


OWNERS = st.none() | st.text(max_size=3)


def test_chat_ids_are_unique() -> None:
    assert len({new_chat_id() for _ in range(10_000)}) == 10_000


def test_chat_ids_sort_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """For five hundred years all ids have the same length."""
    ids = []
    for milliseconds in (0, 1, 255, 256, 4095, 10**12, 10**12 + 1, 17 * 10**12):
        monkeypatch.setattr(time, "time_ns", lambda now=milliseconds: now * 1_000_000)
        ids.append(new_chat_id())
    assert ids == sorted(ids)
    assert {len(chat_id) for chat_id in ids} == {26}
    assert {chat_id[0] for chat_id in ids} == {"c"}


@given(OWNERS, st.text(max_size=3), OWNERS, st.text(max_size=3))
def test_client_id_names_one_chat_per_owner(owner: str | None, one: str, other: str | None, two: str) -> None:
    same = (owner, one) == (other, two)
    assert (chat_id_for(owner, one) == chat_id_for(other, two)) is same
    assert len(chat_id_for(owner, one)) == 26
