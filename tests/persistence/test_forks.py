"""Which chats began with another's: told by their profiles, of which one that cannot be read is in nobody's way."""

from __future__ import annotations

import pytest

from support.sql_by_hand import by_hand
from turnwise import Engine, Settings
from turnwise.providers.scripted import Reply, ScriptedModel

pytestmark = pytest.mark.anyio

IDLE = Settings(run_worker=False)
BROKEN = {
    "no JSON": "'poison'",
    "half of it": "substr(body, 1, length(body) - 1)",
    "something else": "'[]'",
    "nothing": "''",
}


@pytest.mark.parametrize("broken", BROKEN)
async def test_a_profile_that_cannot_be_read_keeps_no_other_chat_from_its_erasure(either_url: str, broken: str) -> None:
    """An erasure asks every profile whether it is a fork's. One that says so, and no more, may be one."""
    async with Engine(either_url, model="demo", settings=IDLE) as engine:
        chat = await engine.create_chat(title="sound")
        fork, lost = [await engine.fork(chat.id, at_version=1) for _ in range(2)]
        other = await engine.create_chat(metadata={"parent": chat.id})
        sql = f"UPDATE profiles SET body = {BROKEN[broken]} WHERE chat_id = '{lost.id}'"  # noqa: S608
        await by_hand(either_url, sql)
        report = await engine.erase(chat.id, what=["title"])
        assert set(report.forks) == ({fork.id, lost.id} if broken == "half of it" else {fork.id})
        assert (await engine.erase(other.id, what=["metadata"])).forks == ()


async def test_a_chat_that_names_a_parent_is_no_fork_of_it(either_url: str) -> None:
    """It began without the other's history: an erasure has nothing to tell of it."""
    async with Engine(either_url, model="demo", settings=IDLE) as engine:
        chat = await engine.create_chat(title="sound")
        child = await engine.create_chat(parent=chat.id)
        forks = [await engine.fork(chat.id, at_version=1) for _ in range(2)]
        grandchild = await engine.fork(child.id, at_version=1)
        assert set((await engine.erase(chat.id, what=["title"])).forks) == {fork.id for fork in forks}
        assert (await engine.erase(child.id, what=["title"])).forks == (grandchild.id,)


@pytest.mark.parametrize("gone", [0, 1, 2])
async def test_a_fork_of_a_fork_is_named_though_chats_between_are_deleted(either_url: str, gone: int) -> None:
    """It holds the words of the first, wherever it has them from."""
    async with Engine(either_url, model="demo") as engine:
        chats = [(await engine.create_chat()).id]
        await engine.ask(chats[0], "hunter2")
        for _ in range(3):
            version = (await engine.get_chat(chats[-1])).version
            chats.append((await engine.fork(chats[-1], at_version=version)).id)
        assert (await engine.verify(chats[-1])).ok
        for between in chats[1 : 1 + gone]:
            await engine.delete_chat(between)
        left = set(chats[1 + gone :])
        assert set((await engine.erase(chats[0], what=["messages"])).forks) == left
        assert set((await engine.delete_chat(chats[0])).forks) == left


async def test_a_fork_of_what_was_erased_is_sound(either_url: str) -> None:
    """Its messages came to it blank: its own log tells of no erasure, and need not."""
    async with Engine(either_url, model="demo") as engine:
        chat = await engine.create_chat()
        first = (await engine.ask(chat.id, "hunter2")).messages[0]
        await engine.erase_message(chat.id, first.id)
        fork = await engine.fork(chat.id, at_version=(await engine.get_chat(chat.id)).version)
        assert (await engine.verify(fork.id)).ok, await engine.verify(fork.id)
        assert [found async for found in engine.diagnose()] == []
        assert (await engine.messages(fork.id))[0].erased
        await by_hand(either_url, f"UPDATE messages SET erased = '0' WHERE id = '{first.id}'")  # noqa: S608
        for chat_id in (chat.id, fork.id):
            verdict = await engine.verify(chat_id)
            assert verdict.place == f"messages[{first.id}].erased"


async def test_a_fork_of_an_edited_chat_is_sound(either_url: str) -> None:
    """What the edit cut out stayed behind, and so did its numbers; a message of its own that is gone is missed."""
    async with Engine(either_url, model="demo") as engine:
        chat = await engine.create_chat()
        first = (await engine.ask(chat.id, "one")).messages[0]
        await engine.edit_message(chat.id, first.id, "another")
        await engine.wait(chat.id)
        fork = await engine.fork(chat.id, at_version=(await engine.get_chat(chat.id)).version)
        assert [message.position for message in await engine.messages(fork.id)] == [3, 4]
        assert [found async for found in engine.diagnose()] == []
        await engine.ask(fork.id, "two")
        await engine.ask(fork.id, "three")
        await by_hand(either_url, f"DELETE FROM messages WHERE chat_id = '{fork.id}' AND position = 5")  # noqa: S608
        (found,) = [found async for found in engine.diagnose()]
        assert "messages.position" in {flaw.column for flaw in found.flaws}


@pytest.mark.parametrize("how", ["compacted", "cleared"])
async def test_an_edit_in_a_fork_goes_back_to_the_boundary_before_it_as_in_its_parent(
    either_url: str, how: str
) -> None:
    """What the older boundary has taken out of the context does not come back with the newest."""
    model = ScriptedModel([Reply("done")] * 6, summary="the summary")
    async with Engine(either_url, model=model) as engine:
        parent = await engine.create_chat()
        asked = []
        for text in ("first", "second", "third"):
            if asked:
                await (engine.request_compaction if how == "compacted" else engine.clear_context)(parent.id)
                await engine.wait(parent.id)
            asked.append((await engine.ask(parent.id, text)).messages[0])
        fork = await engine.fork(parent.id, at_version=(await engine.get_chat(parent.id)).version)
        prompts = []
        for chat_id in (parent.id, fork.id):
            await engine.edit_message(chat_id, asked[1].id, "edited")
            await engine.wait(chat_id)
            prompts.append([message.text for message in model.requests[-1].messages])
            assert (await engine.verify(chat_id)).ok, await engine.verify(chat_id)
        assert prompts[0] == prompts[1]
        assert prompts[1][-1] == "edited"
        assert len(prompts[1]) == (2 if how == "compacted" else 1)
