"""What a repair has put aside may be what somebody said: an erasure takes it, and the raw files hold it no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.exploring import few
from support.sql_by_hand import by_hand, raw
from turnwise import Engine, Settings, verify_export
from turnwise.providers.scripted import Reply, ScriptedModel

pytestmark = pytest.mark.anyio

SECRET = "hunter2-put-aside"  # noqa: S105 - the word that is searched
IDLE = Settings(run_worker=False)


async def _put_aside(url: str, sql: str) -> tuple[str, str]:
    """Say the secret, break a row that tells it, repair the chat; return the chat and the message."""
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
    """By the message's id, as a whole, or by itself; the answer counts the rows."""
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
    """The mark that stands for it is no answer of its step, which would keep what followers were shown of it."""
    async with Engine(either_url, model=ScriptedModel([Reply(f"{SECRET} it is")])) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "what was it?")
        assert SECRET in str([event async for event in engine.events(chat.id, follow=False) if event.kind == "part"])
    await by_hand(either_url, BROKEN_MESSAGE.replace("user", "assistant"))
    async with Engine(either_url, model=ScriptedModel(()), settings=IDLE) as engine:
        await engine.repair(chat.id)
        await engine.erase(chat.id, what=["quarantine"])
        assert [event async for event in engine.events(chat.id, follow=False) if event.kind == "part"] == []
