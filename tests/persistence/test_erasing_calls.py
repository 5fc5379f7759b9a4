"""Several rows hold the arguments of a call; an erasure reaches all of them, even without the message."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.persistence.conftest import Pair

from support.exploring import few
from support.sql_by_hand import by_hand, raw, stored_text
from turnwise import Engine, Settings, ToolResult, tool, verify_export
from turnwise.persistence.audit.verify import verify_stored
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.arguments import Erasing
from turnwise.states.triggers import MessageErased
from turnwise.testing.conformance import plans

ASKED = "hunter2-asked"
EDITED = "swordfish-edited"
IDLE = Settings(run_worker=False)


@tool(policy="ask")
async def pay(to: str) -> str:
    """Pay."""
    return "paid"


async def words_stored(url: str) -> set[str]:
    stored = await stored_text(url)
    return {word for word in (ASKED, EDITED) if word in stored}


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
        ids = {message.role: message.id for message in (await engine.messages(chat.id))[:3]}
        return chat.id, ids["assistant"], ids["tool"]


async def test_call_is_erased_with_its_edited_arguments(either_url: str) -> None:
    """An edit repeats most arguments. The tool's output belongs to another message, and stays."""
    chat_id, asking, result = await _edited(either_url)
    async with Engine(either_url, model="demo", tools=[pay], settings=IDLE) as engine:
        report = await engine.erase(chat_id, messages=[asking])
        assert report.messages == (asking,)
        assert await words_stored(either_url) == set()
        message = next(message for message in await engine.messages(chat_id) if message.id == result)
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
    """A call without its arguments is a different one: a tool's defaults could cause an unwanted action."""
    runs: list[str] = []

    @tool(policy="ask")
    async def wipe(path: str = "/") -> str:
        """Wipe."""
        runs.append(path)
        return "wiped"

    model = ScriptedModel([Reply(calls=[Call("wipe", {"path": ASKED}, id="w")]), Reply("done")])
    async with Engine(either_url, model=model, tools=[wipe]) as engine:
        chat = await engine.create_chat()
        asking = (await engine.ask(chat.id, "wipe")).messages[-1]
        await engine.erase(chat.id, messages=[asking.id])
        await engine.submit_tool_results(chat.id, [ToolResult("w", answer)])
        await engine.wait(chat.id)
        (result,) = [message.result for message in await engine.messages(chat.id) if message.result]
        assert (runs, result.is_error, result.output) == ([], True, "Its arguments were erased.")
        assert (await engine.verify(chat.id)).ok


# What processes remember


@pytest.mark.parametrize("by", ["itself", "another"])
async def test_cached_call_does_not_restore_erased_arguments(pair: Pair, either_url: str, by: str) -> None:
    """The cache is valid while the worker holds the chat, until any process erases content."""
    here, elsewhere = pair
    steps = (plans.send("look"), plans.claim(), plans.reply("I look", local=[ASKED]))
    await plans.created(here, "chat", *steps)
    message = (await here.history("chat"))[1]
    erasing = Erasing(messages=(replace(message, parts=(), erased=True),))
    asked = json.dumps({"at": ASKED}, separators=(",", ":"))
    assert asked in str(await by_hand(either_url, "SELECT body FROM calls"))
    await (here if by == "itself" else elsewhere).change("chat", plans.plan(plans.move(MessageErased(erasing=erasing))))
    await here.change("chat", plans.plan(plans.finish(ASKED)))
    assert asked not in str(await by_hand(either_url, "SELECT body FROM calls"))
    assert [call.status for call in (await elsewhere.facts("chat")).calls] == ["succeeded"]
    assert verify_stored("chat", await here.rows("chat")).ok


# What a repair has put aside


SECRET = "hunter2-put-aside"  # noqa: S105 - the word that is searched


async def _put_aside(url: str, sql: str) -> tuple[str, str]:
    """Send the secret, break a row that contains it, repair the chat; return the chat and the message."""
    async with Engine(url, model=ScriptedModel([Reply("noted")])) as engine:
        chat = await engine.create_chat(title=f"title {SECRET}")
        receipt = await engine.send_message(chat.id, f"keep {SECRET}")
        await engine.wait(chat.id)
    await by_hand(url, sql)
    async with Engine(url, model=ScriptedModel(()), settings=IDLE) as engine:
        await engine.repair(chat.id)
        assert (await by_hand(url, "SELECT count(*) FROM quarantine")) == [(1,)]
        assert SECRET in str(await by_hand(url, "SELECT * FROM quarantine"))
    return chat.id, receipt.message_id


BROKEN_MESSAGE = "UPDATE messages SET body = 'no JSON: ' || body WHERE role = 'user'"


@pytest.mark.parametrize("either_url", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("what", few(["the message", "everything", "messages", "quarantine"], 2))
async def test_erasure_removes_quarantined_rows(either_url: str, tmp_path: Path, what: str) -> None:
    """By the message's id, with everything, or by itself; the answer counts the rows."""
    chat_id, message_id = await _put_aside(either_url, BROKEN_MESSAGE)
    async with Engine(either_url, model=ScriptedModel(()), settings=IDLE) as engine:
        asked = {"messages": [message_id]} if what == "the message" else {"what": [what]}
        report = await engine.erase(chat_id, **asked)
        assert report.quarantined == 1
        await engine.erase(chat_id, what=["title"])
        assert verify_export(await engine.export_audit(chat_id)).ok
        assert [found async for found in engine.diagnose()] == []
        assert await by_hand(either_url, "SELECT * FROM quarantine") == []
        left = [await by_hand(either_url, sql) for sql in ("SELECT * FROM messages", "SELECT * FROM events")]
        if what != "quarantine":
            assert SECRET not in str(left)
        if either_url.startswith("sqlite") and what != "quarantine":
            assert report.overwritten
            assert SECRET.encode() not in raw(tmp_path / "chats.db")


async def test_erasure_removes_parts_of_quarantined_replies(either_url: str) -> None:
    """The placeholder is no answer of its step, which would retain the visible parts."""
    async with Engine(either_url, model=ScriptedModel([Reply(f"{SECRET} it is")])) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "what was it?")
        assert SECRET in str([event async for event in engine.events(chat.id, follow=False) if event.kind == "part"])
    await by_hand(either_url, BROKEN_MESSAGE.replace("user", "assistant"))
    async with Engine(either_url, model=ScriptedModel(()), settings=IDLE) as engine:
        await engine.repair(chat.id)
        await engine.erase(chat.id, what=["quarantine"])
        assert [event async for event in engine.events(chat.id, follow=False) if event.kind == "part"] == []
