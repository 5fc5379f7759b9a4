"""Which chats began with another's: told by their profiles, of which one that cannot be read is in nobody's way."""

from __future__ import annotations

import pytest

from support.sql_by_hand import by_hand
from turnwise import Engine, Settings

IDLE = Settings(run_worker=False)


async def test_child_chat_is_no_fork(either_url: str) -> None:
    """It began without the other's history: an erasure has nothing to tell of it."""
    async with Engine(either_url, model="demo", settings=IDLE) as engine:
        chat = await engine.create_chat(title="sound")
        child = await engine.create_chat(parent=chat.id)
        forks = [await engine.fork(chat.id, at_version=1) for _ in range(2)]
        grandchild = await engine.fork(child.id, at_version=1)
        assert set((await engine.erase(chat.id, what=["title"])).forks) == {fork.id for fork in forks}
        assert (await engine.erase(child.id, what=["title"])).forks == (grandchild.id,)


@pytest.mark.parametrize("gone", [0, 1, 2])
async def test_indirect_fork_is_named_after_deletions(either_url: str, gone: int) -> None:
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


async def test_fork_of_an_edited_chat_verifies(either_url: str) -> None:
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


@pytest.mark.parametrize("is_half", [False, True], ids=["no JSON", "half of it"])
async def test_unreadable_profile_does_not_block_erasures(either_url: str, *, is_half: bool) -> None:
    """A profile of which enough is left to name a parent may be a fork's."""
    async with Engine(either_url, model="demo", settings=IDLE) as engine:
        chat = await engine.create_chat(title="sound")
        fork, lost = [await engine.fork(chat.id, at_version=1) for _ in range(2)]
        broken = "substr(body, 1, length(body) - 1)" if is_half else "'poison'"
        await by_hand(either_url, f"UPDATE profiles SET body = {broken} WHERE chat_id = '{lost.id}'")  # noqa: S608
        report = await engine.erase(chat.id, what=["title"])
        assert set(report.forks) == ({fork.id, lost.id} if is_half else {fork.id})
