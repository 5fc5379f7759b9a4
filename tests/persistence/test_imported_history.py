"""What was said elsewhere is stored like what is said here, by every store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.files import BIG, digest_of, loaded, whole
from support.sql_by_hand import raw
from turnwise import ChatDeleted, ClientTool, Engine, FilePart, Settings
from turnwise.persistence.audit.verify import verify_stored
from turnwise.providers.scripted import Call, Reply
from turnwise.testing.strict import StrictModel

ASK = ClientTool("ask", "Ask.", {"type": "object"})
SECRET = "hunter2-imported"  # noqa: S105 - the word that is searched
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Look.", "created_at": "2020-01-01T10:00:00+02:00"},
    {"role": "assistant", "parts": [{"type": "tool_call", "call_id": "a", "name": "ask", "arguments": {"at": SECRET}}]},
    {"role": "tool", "parts": [{"type": "tool_result", "call_id": "a", "name": "ask", "output": [1, {"b": None}]}]},
    {"role": "assistant", "content": "A door."},
]


async def test_a_chat_that_was_imported_in_part_lives_on_another_engine(either_url: str) -> None:
    async with Engine(either_url, model=StrictModel([]), settings=Settings(run_worker=False)) as engine:
        chat = await engine.create_chat(history=HISTORY, client_tools=[ASK])
        await engine.send_message(chat.id, "And now?")
    model = StrictModel([Reply(calls=[Call("ask", {}, id="a")]), "done"])
    async with Engine(either_url, model=model) as engine:
        asked = await engine.wait(chat.id)
        assert [call.call_id for call in asked.open_calls] == ["a-3"]
        await engine.interrupt(chat.id)
        await engine.ask(chat.id, "Go on")
        messages = await engine.messages(chat.id)
        assert [one.imported for one in messages] == [True] * 4 + [False] * 5
        assert messages[2].result is not None
        assert messages[2].result.output == [1, {"b": None}]
        assert (await engine.verify(chat.id)).ok

        edited = await engine.edit_message(chat.id, "m1", "Else")
        assert edited.turn == 4
        assert (await engine.verify(chat.id)).ok
    assert model.faults == []


async def test_its_large_files_are_kept_beside_it_whoever_said_them(either_url: str) -> None:
    """And given to the model; small ones stay inline. None is stored for a chat that is there already, or is gone."""
    small, big = FilePart.from_bytes(b"small", "image/png"), FilePart.from_bytes(BIG, "image/png", name="big.png")
    refers = FilePart(media_type="image/png", name="big.png", blob=digest_of(BIG), size=len(BIG))
    result = {"type": "tool_result", "call_id": "a", "name": "ask", "output": "seen", "attachments": [small, big]}
    history: list[dict[str, Any]] = [
        {"role": "user", "parts": [small, big]},
        HISTORY[1],
        {"role": "tool", "parts": [result]},
        {"role": "assistant", "parts": [{"type": "text", "text": "Here."}, big]},
    ]
    model = StrictModel(["seen"])
    async with Engine(either_url, model=model) as engine:
        chat = await engine.create_chat(history=history, client_id="once")
        assert chat == await engine.create_chat(history=history, client_id="once")
        said, _, seen, drawn = await engine.messages(chat.id)
        assert said.parts == (small, refers)
        assert seen.result is not None
        assert seen.result.attachments == (small, refers)
        assert drawn.parts[1] == refers
        await engine._files.sweep()
        assert await whole(engine, chat.id, refers) == BIG
        assert await engine._store.held_files(chat.id) == {digest_of(BIG): len(BIG)}
        await engine.ask(chat.id, "And now?")
        assert loaded(model.requests[0]) == [b"small", BIG, b"small", BIG, BIG]
        assert (await engine.verify(chat.id, files=True)).ok
        await engine.delete_chat(chat.id)
        with pytest.raises(ChatDeleted):
            await engine.create_chat(history=history, client_id="once")
        assert await engine._store.file_store().size(digest_of(BIG)) is None


async def test_its_export_is_taken_in_by_another_store(either_url: str) -> None:
    async with (
        Engine(either_url, model=StrictModel([])) as engine,
        Engine("sqlite://", model=StrictModel(["ok"])) as other,
    ):
        chat = await engine.create_chat(history=HISTORY)
        lines = [line async for line in engine.export_chat(chat.id)]
        await other.import_chat(lines)
        assert await other.messages(chat.id) == await engine.messages(chat.id)
        assert (await other.ask(chat.id, "And now?")).text == "ok"
        assert (await other.verify(chat.id)).ok


async def test_a_tampered_mark_or_word_is_found(either_url: str) -> None:
    """The log binds that a message was imported: nobody can pass it off as said here."""
    async with Engine(either_url, model=StrictModel([])) as engine:
        chat = await engine.create_chat(history=HISTORY)
        rows = await engine._store.rows(chat.id)
        (first, *_) = rows.tables["messages"]
        assert '"imported":true' in first["body"]
        first = {**first, "body": first["body"].replace('"imported":true', '"imported":false')}
        changed = replace(rows, tables={**rows.tables, "messages": [first, *rows.tables["messages"][1:]]})
        verdict = verify_stored(chat.id, changed)
        assert (verdict.ok, verdict.position) == (False, 1)


async def test_nothing_of_it_is_left_where_it_was_erased(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    async with Engine(f"sqlite:///{path}", model=StrictModel([])) as engine:
        chat = await engine.create_chat(history=HISTORY)
        assert SECRET.encode() in raw(path)
        await engine.erase(chat.id, what=["messages"])
        assert SECRET.encode() not in raw(path)
        assert (await engine.verify(chat.id)).ok
