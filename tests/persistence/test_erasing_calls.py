"""What a call was asked with is told in several rows: all of them are reached, also where a message was lost."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from support.sql_by_hand import by_hand, raw
from turnwise import Engine, Settings, ToolResult, tool, verify_export
from turnwise.persistence.audit.verify import verify_stored
from turnwise.persistence.conformance import plans
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.protocol import ChatStore
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.arguments import Erasing
from turnwise.states.triggers import MessageErased

pytestmark = pytest.mark.anyio

ASKED = "hunter2-asked"
EDITED = "swordfish-edited"
ANSWERED = "xyzzy-answered"
QUEUED = "plugh-queued"
IDLE = Settings(run_worker=False)


@tool(policy="ask")
async def pay(to: str) -> str:
    """Pay."""
    return "paid"


async def words_stored(url: str, path: Path) -> set[str]:
    """Return which of the words any table holds; on SQLite any byte of the files, too."""
    names = "SELECT name FROM sqlite_master WHERE type = 'table'"
    if not url.startswith("sqlite"):
        names = "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
    stored = "".join([str(await by_hand(url, f"SELECT * FROM {name}")) for (name,) in await by_hand(url, names)])  # noqa: S608
    if url.startswith("sqlite"):
        stored += raw(path).decode(errors="replace")
    return {word for word in (ASKED, EDITED, ANSWERED, QUEUED) if word in stored}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


# Arguments that a client edited


async def _edited(url: str) -> tuple[str, str, str]:
    """Let a client allow a call with other arguments; return the chat, the model's message and the result."""
    model = ScriptedModel([Reply(calls=[Call("pay", {"to": ASKED}, id="p")]), Reply("done")])
    async with Engine(url, model=model, tools=[pay]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "pay")
        answer = {"approved": True, "arguments": {"to": f"{EDITED} instead of {ASKED}"}}
        await engine.submit_tool_results(chat.id, [ToolResult("p", answer)])
        await engine.wait(chat.id)
        said = {message.role: message.id for message in (await engine.messages(chat.id))[:3]}
        return chat.id, said["assistant"], said["tool"]


async def test_call_is_erased_with_its_edited_arguments(either_url: str, path: Path) -> None:
    """An edit repeats most of what it edits. What the tool answered is somebody else's, and stays."""
    chat_id, asking, result = await _edited(either_url)
    async with Engine(either_url, model="demo", tools=[pay], settings=IDLE) as engine:
        report = await engine.erase(chat_id, messages=[asking])
        assert report.messages == (asking,)
        assert await words_stored(either_url, path) == set()
        message = next(message for message in await engine.messages(chat_id) if message.id == result)
        assert message.result is not None
        assert (message.result.output, message.result.edited_arguments, message.erased) == ("paid", None, True)
        events = [event async for event in engine.events(chat_id, follow=False) if event.kind == "message"]
        assert [event.message for event in events if event.message.id == result] == [message, message]
        assert (await engine.verify(chat_id)).ok
        assert verify_export(await engine.export_audit(chat_id)).ok
        await engine.erase(chat_id, messages=[result])
        assert (await engine.verify(chat_id)).ok
        assert "paid" not in str(await by_hand(either_url, "SELECT body FROM messages UNION SELECT body FROM events"))


@pytest.mark.parametrize("answer", [True, {"approved": True, "arguments": {"path": "elsewhere"}}])
async def test_call_without_arguments_is_not_run(either_url: str, answer: Any) -> None:
    """Without them it is another call: a tool whose parameters have defaults would do what nobody asked for."""
    ran: list[str] = []

    @tool(policy="ask")
    async def wipe(path: str = "/") -> str:
        """Wipe."""
        ran.append(path)
        return "wiped"

    model = ScriptedModel([Reply(calls=[Call("wipe", {"path": ASKED}, id="w")]), Reply("done")])
    async with Engine(either_url, model=model, tools=[wipe]) as engine:
        chat = await engine.create_chat()
        asking = (await engine.ask(chat.id, "wipe")).messages[-1]
        await engine.erase(chat.id, messages=[asking.id])
        await engine.submit_tool_results(chat.id, [ToolResult("w", answer)])
        await engine.wait(chat.id)
        (result,) = [message.result for message in await engine.messages(chat.id) if message.result]
        assert (ran, result.is_error, result.output) == ([], True, "Its arguments were erased.")
        assert (await engine.verify(chat.id)).ok


# Messages that a repair has put aside


# What processes remember


Pair = tuple[ChatStore, ChatStore]


@pytest.fixture
async def pair(either_url: str) -> AsyncIterator[Pair]:
    """Return the stores of two processes."""
    async with AsyncExitStack() as until:
        stores = [store_from_url(either_url, durability="normal", now=None) for _ in range(2)]
        for store in stores:
            await store.open()
            until.push_async_callback(store.close)
        yield stores[0], stores[1]


@pytest.mark.parametrize("by", ["itself", "another"])
async def test_cached_call_does_not_restore_erased_arguments(pair: Pair, either_url: str, by: str) -> None:
    """It holds the chat, so what it remembers is believed: until somebody, itself or not, has erased something."""
    here, elsewhere = pair
    begin = (plans.send("look"), plans.claim(), plans.start(), plans.reply("I look", local=[ASKED]))
    await plans.created(here, "chat", *begin)
    said = (await here.history("chat"))[1]
    erasing = Erasing(messages=(replace(said, parts=(), erased=True),))
    asked = json.dumps({"at": ASKED}, separators=(",", ":"))
    assert asked in str(await by_hand(either_url, "SELECT body FROM calls"))
    await (here if by == "itself" else elsewhere).change("chat", plans.plan(plans.move(MessageErased(erasing=erasing))))
    await here.change("chat", plans.plan(plans.finish(ASKED)))
    assert asked not in str(await by_hand(either_url, "SELECT body FROM calls"))
    assert [call.status for call in (await elsewhere.facts("chat")).calls] == ["succeeded"]
    assert verify_stored("chat", await here.rows("chat")).ok
