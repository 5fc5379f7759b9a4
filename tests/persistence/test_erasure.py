"""Erasure reaches all content of users: the tests search raw files, tables, events and exports."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from support.exploring import few
from support.rich_chat import engine_on, live
from support.sql_by_hand import by_hand, stored_text
from turnwise import ClientTool, Engine, Settings, ToolContext, ToolResult, tool, verify_export
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.messages import TextPart
from turnwise.states.values.digests import canonical, digest, salted
from turnwise.states.values.values import fields_of

SECRET = "hunter2-xyzzy"  # noqa: S105 - the word that is searched
ASK = ClientTool("ask_user", "Asks the user.", {"type": "object"})
IDLE = Settings(run_worker=False)


async def read_everything(engine: Engine, chat_id: str) -> str:
    events = [event async for event in engine.events(chat_id, follow=False)]
    views = [await engine.messages(chat_id, view=view) for view in ("user", "model", "raw")]
    chat, queue = await engine.get_chat(chat_id), await engine.queued(chat_id)
    return f"{events} {views} {chat} {queue} {await engine.audit(chat_id)}"


async def everywhere(engine: Engine, chat_id: str) -> str:
    exported = [line async for line in engine.export_chat(chat_id)]
    return await read_everything(engine, chat_id) + await engine.export_audit(chat_id) + "".join(exported)


def store_of(url: str) -> Any:
    return store_from_url(url, durability="normal", now=None)


SecretChat = Callable[[Engine], Awaitable[tuple[str, dict[str, Any]]]]


async def _in_a_message(engine: Engine) -> tuple[str, dict[str, Any]]:
    chat = await engine.create_chat()
    receipt = await engine.send_message(chat.id, SECRET, client_id="k")
    await engine.wait(chat.id)
    return chat.id, {"messages": [receipt.message_id]}


async def _in_an_answer(engine: Engine) -> tuple[str, dict[str, Any]]:
    chat = await engine.create_chat()
    result = await engine.ask(chat.id, "say it")
    return chat.id, {"messages": [message.id for message in result.messages if message.role == "assistant"]}


async def _cut_by_an_edit(engine: Engine) -> tuple[str, dict[str, Any]]:
    chat_id, what = await _in_a_message(engine)
    (name,) = what["messages"]
    await engine.edit_message(chat_id, name, "something else")
    await engine.wait(chat_id)
    return chat_id, what


async def _deleted_from_the_queue(engine: Engine) -> tuple[str, dict[str, Any]]:
    chat = await engine.create_chat(client_tools=[ASK])
    await engine.ask(chat.id, "ask me")
    receipt = await engine.send_message(chat.id, SECRET, client_id="k")
    await engine.delete_queued(chat.id, receipt.message_id)
    return chat.id, {"messages": [receipt.message_id]}


async def _waiting_in_the_queue(engine: Engine) -> tuple[str, dict[str, Any]]:
    chat = await engine.create_chat(client_tools=[ASK])
    await engine.ask(chat.id, "ask me")
    receipt = await engine.send_message(chat.id, SECRET)
    return chat.id, {"messages": [receipt.message_id]}


async def _edited_in_the_queue(engine: Engine) -> tuple[str, dict[str, Any]]:
    chat_id, what = await _waiting_in_the_queue(engine)
    (name,) = what["messages"]
    await engine.edit_queued(chat_id, name, "changed my mind")
    return chat_id, what


async def _in_a_clients_result(engine: Engine) -> tuple[str, dict[str, Any]]:
    chat = await engine.create_chat(client_tools=[ASK])
    await engine.ask(chat.id, "ask me")
    await engine.submit_tool_results(chat.id, [ToolResult("call-1", SECRET)])
    await engine.wait(chat.id)
    results = [message.id for message in await engine.messages(chat.id) if message.role == "tool"]
    return chat.id, {"messages": results}


async def _in_the_arguments_of_an_open_call(engine: Engine) -> tuple[str, dict[str, Any]]:
    chat = await engine.create_chat(client_tools=[ASK])
    result = await engine.ask(chat.id, "ask me with it")
    return chat.id, {"messages": [message.id for message in result.messages if message.role == "assistant"]}


async def _in_progress(engine: Engine) -> tuple[str, dict[str, Any]]:
    chat = await engine.create_chat()
    result = await engine.ask(chat.id, "report")
    return chat.id, {"messages": [message.id for message in result.messages if message.role == "tool"]}


async def _in_the_title(engine: Engine) -> tuple[str, dict[str, Any]]:
    chat = await engine.create_chat(title=SECRET)
    await engine.rename(chat.id, f"again {SECRET}")
    return chat.id, {"what": ["title"]}


async def _in_the_metadata(engine: Engine) -> tuple[str, dict[str, Any]]:
    return (await engine.create_chat(metadata={"a": [SECRET]})).id, {"what": ["metadata"]}


async def _in_the_system_prompt(engine: Engine) -> tuple[str, dict[str, Any]]:
    return (await engine.create_chat(system=SECRET)).id, {"what": ["system"]}


async def _in_the_reason_of_an_interrupt(engine: Engine) -> tuple[str, dict[str, Any]]:
    chat = await engine.create_chat(client_tools=[ASK])
    await engine.ask(chat.id, "ask me")
    await engine.interrupt(chat.id, reason=SECRET)
    assert SECRET in {record.reason for record in await engine.audit(chat.id)}
    return chat.id, {"what": ["reasons"]}


async def _in_an_error(engine: Engine) -> tuple[str, dict[str, Any]]:
    chat = await engine.create_chat()
    await engine.ask(chat.id, "break")
    assert SECRET in str((await engine.explain(chat.id)).last_error)
    return chat.id, {"what": ["errors"]}


async def _in_an_archived_chat(engine: Engine) -> tuple[str, dict[str, Any]]:
    chat_id, what = await _in_a_message(engine)
    await engine.archive(chat_id)
    return chat_id, what


PLACES = [
    _in_a_message,
    _in_an_answer,
    _cut_by_an_edit,
    _deleted_from_the_queue,
    _waiting_in_the_queue,
    _edited_in_the_queue,
    _in_a_clients_result,
    _in_the_arguments_of_an_open_call,
    _in_progress,
    _in_the_title,
    _in_the_metadata,
    _in_the_system_prompt,
    _in_the_reason_of_an_interrupt,
    _in_an_error,
    _in_an_archived_chat,
]


def _reply(request: Any) -> Reply:
    texts = [message.text for message in request.messages if message.role == "user"]
    last = request.messages[-1]
    if last.role == "tool":
        return Reply("thanks")
    match texts[-1]:
        case "say it":
            return Reply(SECRET, chunks=[SECRET[:3], SECRET[3:]], reasoning=SECRET)
        case "ask me":
            return Reply("what?", calls=[Call("ask_user", {}, id="call-1")])
        case "ask me with it":
            return Reply("what?", calls=[Call("ask_user", {"about": SECRET}, id="call-1")])
        case "report":
            return Reply(calls=[Call("reporting", {}, id="call-1")])
        case "break":
            raise ValueError(SECRET)
    return Reply("well")


def _engine(store: ChatStore) -> Engine:
    return Engine(store, model=ScriptedModel([_reply] * 9), tools=[reporting_tool()])


def reporting_tool() -> Any:
    @tool(name="reporting")
    async def report(ctx: ToolContext) -> str:
        """Report."""
        ctx.report({"seen": SECRET})
        return SECRET

    return report


@pytest.mark.parametrize("secret_chat", few(PLACES, 5))
async def test_erased_content_is_stored_nowhere(either_url: str, secret_chat: SecretChat) -> None:
    """Nor in a write-ahead log or in an export; the log still verifies."""
    async with _engine(store_of(either_url)) as engine:
        chat_id, what = await secret_chat(engine)
        assert SECRET in (await stored_text(either_url)).replace('\\\\"', "")
        report = await engine.erase(chat_id, **what)
        assert report.overwritten is either_url.startswith("sqlite")
        assert SECRET not in await stored_text(either_url)
        assert SECRET not in await everywhere(engine, chat_id)
        assert (await engine.verify(chat_id)).ok, await engine.verify(chat_id)
        assert verify_export(await engine.export_audit(chat_id)).ok
    async with Engine(store_of(either_url), model="demo", settings=IDLE) as engine:
        assert SECRET not in await everywhere(engine, chat_id)


@pytest.mark.parametrize("either_url", ["sqlite", "postgres"], indirect=True)
async def test_erasing_everything_of_a_rich_chat(either_url: str) -> None:
    async with engine_on(store_of(either_url), prefix=SECRET) as engine:
        chat_id = await live(engine, prefix=SECRET)
        assert SECRET in await stored_text(either_url)
        report = await engine.erase(chat_id, what=["everything"])
        assert SECRET not in await stored_text(either_url)
        assert SECRET not in await everywhere(engine, chat_id)
        assert (await engine.verify(chat_id)).ok, await engine.verify(chat_id)
        assert report.labels == ("errors", "metadata", "reasons", "system", "title")
        assert report.may_quote == ()
        assert len(report.queued) == 2


async def test_erased_message_loses_its_salt(either_url: str) -> None:
    """With the salt, the digest in the log would reveal a short secret; a remaining salt is found."""
    async with _engine(store_of(either_url)) as engine:
        chat_id, what = await _in_a_message(engine)
        (name,) = what["messages"]
        ask = f"SELECT salt FROM messages WHERE id = '{name}'"  # noqa: S608 - an id of ours
        ((salt,),) = await by_hand(either_url, ask)
        assert salt in await stored_text(either_url)
        await engine.erase(chat_id, **what)
        assert await by_hand(either_url, ask) == [("",)]
        assert salt not in await stored_text(either_url)
        await by_hand(either_url, f"UPDATE messages SET salt = '{salt}' WHERE id = '{name}'")  # noqa: S608 - as above
        verdict = await engine.verify(chat_id)
        assert (verdict.ok, verdict.place) == (False, f"messages[{name}].salt")
        assert "the message was erased, and its salt is still there" in str(verdict.problem)


async def test_digests_do_not_reveal_short_secrets(tmp_path: Path) -> None:
    """A reader of the export who knows all but a PIN must not find the PIN by trying."""
    async with engine_on(SQLiteStore(tmp_path / "chats.db")) as engine:
        chat_id = await live(engine)
        log = await engine.export_audit(chat_id)
    with closing(sqlite3.connect(tmp_path / "chats.db")) as on:
        bodies = [body for (body,) in on.execute("SELECT body FROM messages UNION SELECT body FROM profiles")]
        calls = [json.loads(body) for (body,) in on.execute("SELECT body FROM calls")]
        salts = [salt for (salt,) in on.execute("SELECT salt FROM messages UNION SELECT salt FROM queue")]
        salts += [on.execute("SELECT salt FROM chats").fetchone()[0], *(call["salt"] for call in calls)]
    guesses = {salted("", body) for body in bodies}
    guesses |= {digest([fields_of(TextPart(text=text))]) for text in ("cut away", "waits", "edited")}
    guesses |= {digest(["red", False]), salted("", canonical("waits"))}
    assert not [guess for guess in guesses if guess in log]
    assert all(salt and salt not in log for salt in salts)
