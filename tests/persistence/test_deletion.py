"""A deletion removes everything of a chat from every place, and every interested party learns of it."""

from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest

from support.engines import engine_with
from support.latches import Latch
from support.rich_chat import engine_on, live
from support.sql_by_hand import by_hand, stored_text
from turnwise import ChatBusy, ChatDeleted, Engine, Event, NotResting, Settings, ToolResult
from turnwise.persistence.from_url import store_from_url
from turnwise.providers.scripted import Reply, ScriptedModel

SECRET = "hunter2-delete"  # noqa: S105 - the word that is searched
IDLE = Settings(run_worker=False)


async def _answered_chat(engine: Engine, text: str = "hello") -> str:
    chat = await engine.create_chat()
    await engine.ask(chat.id, text)
    return chat.id


@pytest.mark.parametrize("either_url", ["sqlite", "postgres"], indirect=True)
async def test_deleted_chat_is_stored_nowhere(either_url: str) -> None:
    """Nor in a write-ahead log of an open engine; another chat loses nothing."""
    store = store_from_url(either_url, durability="full", now=None)
    async with engine_on(store, prefix=SECRET) as engine:
        other = await engine.create_chat(title="kept-title")
        chat_id = await live(engine, prefix=SECRET)
        records = await engine.audit(chat_id)
        assert SECRET in await stored_text(either_url)
        left = await engine.acting("ann").delete_chat(chat_id)
        stored = await stored_text(either_url)
        assert [word for word in (SECRET, "client-1", "kept-title") if word in stored] == ["kept-title"]
        assert left.overwritten is either_url.startswith("sqlite")
        assert left.overwritten or stored.count(chat_id) == 1
        assert (left.actor, left.records, left.head) == ("ann", len(records), records[-1].hash)
        assert (await engine.verify(other.id)).ok


_METHODS: dict[str, Callable[[Engine, str], Awaitable[object]]] = {
    "send_message": lambda engine, it: engine.send_message(it, "again"),
    "a replay": lambda engine, it: engine.send_message(it, "hello", client_id="first"),
    "ask": lambda engine, it: engine.ask(it, "again"),
    "create_chat": lambda engine, it: engine.create_chat(parent=it),
    "submit_tool_results": lambda engine, it: engine.submit_tool_results(it, [ToolResult("c", 1)]),
    "interrupt": lambda engine, it: engine.interrupt(it),
    "resume": lambda engine, it: engine.resume(it),
    "edit_message": lambda engine, it: engine.edit_message(it, "m1", "new"),
    "archive": lambda engine, it: engine.archive(it),
    "rename": lambda engine, it: engine.rename(it, "new"),
    "messages": lambda engine, it: engine.messages(it),
    "events": lambda engine, it: anext(engine.events(it, follow=False)),
    "wait": lambda engine, it: engine.wait(it),
    "subagents": lambda engine, it: engine.subagents(it),
    "audit": lambda engine, it: engine.audit(it),
    "export_chat": lambda engine, it: anext(engine.export_chat(it)),
    "verify": lambda engine, it: engine.verify(it),
    "fork": lambda engine, it: engine.fork(it, at_version=1),
    "explain": lambda engine, it: engine.explain(it),
    "erase": lambda engine, it: engine.erase(it, what=["everything"]),
    "repair": lambda engine, it: engine.repair(it),
}


@pytest.mark.parametrize("either_url", ["sqlite", "postgres"], indirect=True)
async def test_every_method_reports_the_deletion(either_url: str) -> None:
    """With a warm cache and with a cold one."""
    async with engine_with(either_url, "hi") as engine, engine_with(either_url, settings=IDLE) as elsewhere:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hello", client_id="first")
        await engine.wait(chat.id)
        await elsewhere.rename(chat.id, "known here, too")
        left = await engine.delete_chat(chat.id)
        for asked in (engine, elsewhere):
            for name, method in _METHODS.items():
                with pytest.raises(ChatDeleted) as refusal:
                    await method(asked, chat.id)
                assert refusal.value.deleted_at == left.deleted_at, name
        text = str(refusal.value)
        assert left.deleted_at.isoformat(timespec="seconds") in text
        assert chat.id in text
        assert (await engine.list_chats()).items == []
        assert await engine.chat_ids() == []
        assert [found async for found in engine.diagnose()] == []


@pytest.mark.parametrize("state", ["streaming", "pending"])
async def test_working_chat_is_not_deleted(either_url: str, state: str) -> None:
    """After an interrupt it is deleted."""
    held = Latch()
    model = ScriptedModel([lambda _: Reply("done", first_delay=1)], sleep=held.pass_through)
    async with Engine(either_url, model=model, settings=Settings(run_worker=state == "streaming")) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, "hello")
        if state == "streaming":
            await held.entered.wait()
        before = await engine.get_chat(chat.id)
        with pytest.raises(NotResting, match=f"{state}.*interrupt it") as refusal:
            await engine.delete_chat(chat.id)
        assert isinstance(refusal.value, ChatBusy)
        assert refusal.value.state == state
        assert (await engine.get_chat(chat.id)).version == before.version
        assert await engine.tombstone(chat.id) is None
        await engine.interrupt(chat.id)
        await engine.wait(chat.id)
        assert await engine.delete_chat(chat.id)


@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        ("UPDATE profiles SET body = 'nonsense'", "created_at"),
        ("UPDATE chats SET head = 'nonsense'", "head"),
        ("DELETE FROM profiles", "created_at"),
        ("UPDATE chats SET state = 'daydreaming'", None),
        ("UPDATE audit SET body = 'nonsense'", None),
        ("UPDATE messages SET body = 'nonsense', format = 99", None),
    ],
)
async def test_unreadable_chat_is_deleted(either_url: str, damage: str, lost: str | None) -> None:
    """The tombstone has the fields that are still readable."""
    async with engine_with(either_url, "hi") as engine:
        chat_id = await _answered_chat(engine)
    await by_hand(either_url, damage)
    async with engine_with(either_url, settings=IDLE) as engine:
        left = await engine.delete_chat(chat_id)
        assert [name for name in ("created_at", "head") if getattr(left, name) is None] == ([lost] if lost else [])
        assert await engine.tombstone(chat_id) == left
        assert [found async for found in engine.diagnose()] == []


async def _followed(engine: Engine, chat_id: str, following: anyio.Event, seen: list[Event]) -> None:
    async def follow() -> None:
        async for event in engine.events(chat_id):
            seen.append(event)
            if event.kind == "turn_finished":
                following.set()

    with pytest.raises(ChatDeleted):
        await follow()


async def _waited(engine: Engine, chat_id: str) -> None:
    with pytest.raises(ChatDeleted):
        await engine.wait(chat_id, until=["compacting"])


async def test_followers_in_every_process_learn_of_deletion(either_url: str) -> None:
    """They received all earlier events; a subscriber of another chat continues."""
    async with engine_with(either_url, "hi", "there") as engine, engine_with(either_url, settings=IDLE) as elsewhere:
        chat_id, other = await _answered_chat(engine), await engine.create_chat()
        seen: dict[Engine, list[Event]] = {engine: [], elsewhere: []}
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks, anyio.create_task_group() as others:
                others.start_soon(elsewhere.wait, other.id)
                for asked, events in seen.items():
                    following = anyio.Event()
                    tasks.start_soon(_followed, asked, chat_id, following, events)
                    tasks.start_soon(_waited, asked, chat_id)
                    await following.wait()
                await engine.delete_chat(chat_id)
        assert [event.seq for event in seen[engine]] == [event.seq for event in seen[elsewhere]]


@pytest.mark.parametrize("either_url", ["sqlite", "postgres"], indirect=True)
async def test_forks_and_children_are_named_and_stay_after_deletion(either_url: str) -> None:
    """Forks of forks hold copies, too; a subagent's subagent is no child of the deleted chat."""
    async with engine_with(either_url, "hi", "on") as engine:
        chat_id = await _answered_chat(engine)
        version = (await engine.get_chat(chat_id)).version
        fork = await engine.fork(chat_id, at_version=version)
        again = await engine.fork(fork.id, at_version=1)
        child = await engine.create_chat(parent=chat_id)
        await engine.create_chat(parent=child.id)
        for _ in range(2):
            left = await engine.delete_chat(chat_id)
            assert set(left.forks) == {fork.id, again.id}
            assert left.children == (child.id,)
        assert (await engine.ask(fork.id, "go on")).text == "on"
        assert (await engine.verify(fork.id)).ok
        assert (await engine.get_chat(child.id)).parent == chat_id
        with pytest.raises(ChatDeleted):
            await engine.fork(chat_id, at_version=1)


# Forks


async def test_child_chat_is_no_fork(either_url: str) -> None:
    """It starts without the parent's history, so erasures need not name it."""
    async with Engine(either_url, model="demo", settings=IDLE) as engine:
        chat = await engine.create_chat(title="sound")
        child = await engine.create_chat(parent=chat.id)
        forks = [await engine.fork(chat.id, at_version=1) for _ in range(2)]
        grandchild = await engine.fork(child.id, at_version=1)
        assert set((await engine.erase(chat.id, what=["title"])).forks) == {fork.id for fork in forks}
        assert (await engine.erase(child.id, what=["title"])).forks == (grandchild.id,)


@pytest.mark.parametrize("gone", [0, 1, 2])
async def test_indirect_fork_is_named_after_deletions(either_url: str, gone: int) -> None:
    """It holds words of the first chat."""
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
    """The parent's edit removed messages and their numbers; a missing message of the fork's own is found."""
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
        await by_hand(
            either_url,
            f"DELETE FROM messages WHERE chat = (SELECT number FROM chats WHERE id = '{fork.id}') AND position = 5",  # noqa: S608 - an id of ours
        )
        (found,) = [found async for found in engine.diagnose()]
        assert "messages.position" in {issue.column for issue in found.issues}


@pytest.mark.parametrize("is_half", [False, True], ids=["no JSON", "half of it"])
async def test_unreadable_profile_does_not_block_erasures(either_url: str, *, is_half: bool) -> None:
    """If the rest of the profile names a parent, the chat may be a fork."""
    async with Engine(either_url, model="demo", settings=IDLE) as engine:
        chat = await engine.create_chat(title="sound")
        fork, lost = [await engine.fork(chat.id, at_version=1) for _ in range(2)]
        broken = "substr(body, 1, length(body) - 1)" if is_half else "'poison'"
        await by_hand(
            either_url,
            f"UPDATE profiles SET body = {broken} WHERE chat = (SELECT number FROM chats WHERE id = '{lost.id}')",  # noqa: S608 - an id of ours
        )
        report = await engine.erase(chat.id, what=["title"])
        assert set(report.forks) == ({fork.id, lost.id} if is_half else {fork.id})
