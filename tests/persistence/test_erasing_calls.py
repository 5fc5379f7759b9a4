"""What a call was asked with is told in several rows: all of them are reached, also where a message was lost."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from support.sql_by_hand import by_hand, raw
from turnwise import ClientTool, Engine, Settings, ToolResult, tool, verify_export
from turnwise.persistence.audit.verify import verify_stored
from turnwise.persistence.conformance import plans
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.protocol import ChatStore
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.arguments import Erasing
from turnwise.states.decide import Decision
from turnwise.states.facts import Facts
from turnwise.states.triggers import MessageErased

pytestmark = pytest.mark.anyio

ASKED = "hunter2-asked"
EDITED = "swordfish-edited"
ANSWERED = "xyzzy-answered"
QUEUED = "plugh-queued"
IDLE = Settings(run_worker=False)
ASK = ClientTool("ask_user", "Asks the user.", {"type": "object"})


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


async def test_a_call_is_erased_with_what_a_client_made_of_its_arguments(either_url: str, path: Path) -> None:
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


async def test_what_is_left_of_a_result_has_a_salt_of_its_own(either_url: str) -> None:
    """With the old one the edited arguments could be guessed, without any the answer of the tool could."""
    chat_id, asking, result = await _edited(either_url)
    salts = f"SELECT salt FROM messages WHERE id = '{result}'"  # noqa: S608
    ((before,),) = await by_hand(either_url, salts)
    async with Engine(either_url, model="demo", tools=[pay], settings=IDLE) as engine:
        await engine.erase(chat_id, messages=[asking])
        ((after,),) = await by_hand(either_url, salts)
        assert before
        assert after
        assert after != before
        for salt in ("", before):
            await by_hand(either_url, f"UPDATE messages SET salt = '{salt}' WHERE id = '{result}'")  # noqa: S608
            verdict = await engine.verify(chat_id)
            assert verdict.place is not None
            assert verdict.place.startswith(f"messages[{result}]")


async def test_an_approval_is_erased_with_the_arguments_that_it_gave(either_url: str, path: Path) -> None:
    """They became the call's own; what the model had asked for stands in its message, and stays."""
    chat_id, _, result = await _edited(either_url)
    async with Engine(either_url, model="demo", tools=[pay], settings=IDLE) as engine:
        await engine.erase(chat_id, messages=[result])
        assert await words_stored(either_url, path) == {ASKED}
        assert ASKED not in str(await by_hand(either_url, "SELECT body FROM calls"))
        assert (await engine.verify(chat_id)).ok
        assert verify_export(await engine.export_audit(chat_id)).ok


@pytest.mark.parametrize("answer", [True, {"approved": True, "arguments": {"path": "elsewhere"}}])
async def test_a_call_whose_arguments_were_erased_is_not_run(either_url: str, answer: Any) -> None:
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


@pytest.mark.parametrize("began", ["as a fork", "with an imported history"])
async def test_a_call_that_came_with_the_chat_and_was_cut_is_erased_and_no_later_one_with_it(
    either_url: str, began: str
) -> None:
    """Models give ids anew, and the edit has hidden the old call from this one: both keep an id of their own."""
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "pay"},
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "call_id": "p", "name": "pay", "arguments": {"to": ASKED}}],
        },
        {"role": "tool", "parts": [{"type": "tool_result", "call_id": "p", "name": "pay", "output": "paid"}]},
        {"role": "assistant", "content": "done"},
    ]
    model = ScriptedModel([Reply(calls=[Call("pay", {"to": "ann"}, id="p")]), Reply("done")])
    async with Engine(either_url, model=model, tools=[pay]) as engine:
        chat = await engine.create_chat(history=history)
        if began == "as a fork":
            chat = await engine.fork(chat.id, at_version=1)
        question, asking, *_ = await engine.messages(chat.id)
        await engine.edit_message(chat.id, question.id, "pay ann instead")
        await engine.wait(chat.id)
        (call,) = (await engine.erase_message(chat.id, asking.id)).open_calls
        assert (call.call_id, call.arguments, call.refusal) == ("p-3", {"to": "ann"}, None)
        await engine.submit_tool_results(chat.id, [ToolResult(call.call_id, output=True)])
        await engine.wait(chat.id)
        (result,) = [message.result for message in await engine.messages(chat.id) if message.result]
        assert result.output == "paid"
        assert (await engine.verify(chat.id)).ok, await engine.verify(chat.id)


# Messages that a repair has put aside


async def _answered(url: str) -> tuple[str, dict[str, str]]:
    """Let a client answer a call, and a message wait meanwhile; return the chat and its messages by role."""
    asking = Reply("let me ask", calls=[Call("ask_user", {"to": ASKED}, id="p")])
    model = ScriptedModel([asking, Reply("done"), Reply("and done")])
    async with Engine(url, model=model) as engine:
        chat = await engine.create_chat(client_tools=[ASK])
        await engine.ask(chat.id, "go on")
        await engine.send_message(chat.id, f"and {QUEUED}", client_id="k")
        await engine.submit_tool_results(chat.id, [ToolResult("p", ANSWERED)])
        await engine.wait(chat.id)
        messages = await engine.messages(chat.id)
        said = {message.role: message.id for message in messages[:3]}
        return chat.id, {**said, "queued": next(message.id for message in messages if QUEUED in message.text)}


async def _lost(url: str, sql: str) -> str:
    chat_id, said = await _answered(url)
    await by_hand(url, sql.format_map(said))
    async with Engine(url, model="demo", settings=IDLE) as engine:
        await engine.repair(chat_id)
    return chat_id


BREAK = "UPDATE messages SET body = 'no JSON: ' || body WHERE id = '{%s}'"
LOSSES = {
    "the message of a call": (BREAK % "assistant", {ASKED}),
    "its role": ("UPDATE messages SET role = 'nobody' WHERE id = '{assistant}'", {ASKED}),
    "its id": ("UPDATE messages SET id = 'other' WHERE id = '{assistant}'", {ASKED}),
    "a result": (BREAK % "tool", {ANSWERED}),
    "a message that had waited": (BREAK % "queued", {QUEUED}),
}


@pytest.mark.parametrize("what", ["quarantine", "messages", "everything"])
@pytest.mark.parametrize("loss", LOSSES)
async def test_what_a_lost_message_said_is_told_by_no_other_row(
    either_url: str, path: Path, loss: str, what: Any
) -> None:
    """Its call, its answer, the parts of its reply, the queue in which it waited: no id of a message leads to them."""
    sql, lost = LOSSES[loss]
    chat_id = await _lost(either_url, sql)
    assert lost <= await words_stored(either_url, path)
    async with Engine(either_url, model="demo", settings=IDLE) as engine:
        await engine.erase(chat_id, what=[what])
        left = {ASKED, ANSWERED, QUEUED} - lost if what == "quarantine" else set()
        assert await words_stored(either_url, path) == left
        assert verify_export(await engine.export_audit(chat_id)).ok
        assert [found async for found in engine.diagnose()] == []


async def test_what_could_tell_a_lost_answer_goes_too(either_url: str) -> None:
    """The digests of an answer and of a message stand in rows with their salts: short ones can be guessed."""
    chat_id = await _lost(either_url, BREAK % "tool")
    async with Engine(either_url, model="demo", settings=IDLE) as engine:
        await engine.erase(chat_id, what=["quarantine"])
    ((call,),) = await by_hand(either_url, "SELECT body FROM calls ORDER BY step LIMIT 1")
    assert '"digest":""' in call
    ((receipt,),) = await by_hand(either_url, "SELECT body FROM receipts")
    assert '"content_digest":""' not in receipt


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


async def _looked_at(store: ChatStore) -> Facts:
    """Return what a plan of a process is asked about."""
    asked: list[Facts] = []

    def look(facts: Facts, now: datetime) -> list[Decision]:
        asked.append(facts)
        return []

    await store.change("chat", look)
    return asked[-1]


@pytest.mark.parametrize("by", ["itself", "another"])
async def test_a_worker_that_remembers_a_call_does_not_write_its_arguments_back(
    pair: Pair, either_url: str, by: str
) -> None:
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


@pytest.mark.parametrize("by", ["itself", "another"])
async def test_what_an_erasure_did_beyond_its_decision_is_not_remembered_otherwise(
    pair: Pair, either_url: str, by: str
) -> None:
    """That a message lost its call is found in the rows, and no decision tells of it: a process has to read again."""
    here, elsewhere = pair
    begin = (plans.send("look"), plans.claim(), plans.start(), plans.reply("I ask", client=[ASKED]))
    await plans.created(here, "chat", *begin)
    await by_hand(either_url, f"UPDATE messages SET body = replace(body, '{ASKED}', 'other')")  # noqa: S608
    assert [call.arguments for call in (await _looked_at(here)).calls] == [{"at": ASKED}]
    erasing = plans.move(MessageErased(erasing=Erasing(quarantine=True)))
    await (here if by == "itself" else elsewhere).change("chat", plans.plan(erasing))
    assert [call.arguments for call in (await _looked_at(here)).calls] == [{}]
    assert await _looked_at(here) == await _looked_at(elsewhere)
    await here.change("chat", plans.plan(plans.submit(ASKED)))
    assert '"arguments":{}' in str(await by_hand(either_url, "SELECT body FROM calls"))
