"""Files that were erased or deleted are gone: from the tables, from the raw files, from the folder."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest

from support.files import whole
from support.sql_by_hand import stored_text
from turnwise import Engine, FileNotFound, FilePart, FolderFiles, Settings, StoreError, TextPart
from turnwise.persistence.conformance.files import blob_of, of
from turnwise.persistence.files.protocol import Blob, IsLoose
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.testing import ManualClock

WORD = b"hunter2-xyzzy-"
SECRET = WORD * 100_000
"""More than one piece of it."""
MODEL = ScriptedModel(lambda _request: Reply("ok"))
IDLE = Settings(run_worker=False)


def raw(folder: Path) -> bytes:
    """Return every byte of every file below a folder."""
    while True:
        try:
            return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
        except FileNotFoundError:  # a sweep has taken one since the folder was listed
            continue


async def _erase_message(engine: Engine, chat_id: str, message_id: str) -> bool:
    return (await engine.erase(chat_id, messages=[message_id])).overwritten


async def _erase_everything(engine: Engine, chat_id: str, _: str) -> bool:
    return (await engine.erase(chat_id, what=["everything"])).overwritten


async def _delete(engine: Engine, chat_id: str, _: str) -> bool:
    left = await engine.delete_chat(chat_id)
    return left.overwritten


Gone = Callable[[Engine, str, str], Awaitable[bool]]
EVERY_WAY: list[Gone] = [_erase_message, _erase_everything, _delete]


@pytest.mark.parametrize("go", EVERY_WAY)
@pytest.mark.parametrize("kept_in", ["database", "folder"])
async def test_erased_file_leaves_no_byte_on_disk(go: Gone, kept_in: str, tmp_path: Path) -> None:
    """Neither the database, nor its log, nor the folder: every byte is searched."""
    files = FolderFiles(tmp_path / "files") if kept_in == "folder" else None
    async with Engine(f"sqlite:///{tmp_path / 'chats.db'}", model=MODEL, files=files) as engine:
        chat = await engine.create_chat()
        receipt = await engine.send_message(chat.id, [FilePart.from_bytes(SECRET, "text/plain"), TextPart(text="hi")])
        await engine.wait(chat.id)
        assert raw(tmp_path).count(WORD) >= 90_000
        assert await go(engine, chat.id, receipt.message_id)
        assert WORD not in raw(tmp_path)
        assert blob_of(SECRET).digest.encode() not in raw(tmp_path)


@pytest.mark.parametrize("go", EVERY_WAY)
async def test_erased_file_leaves_no_row_in_postgresql(go: Gone, postgres_url: str, beside: asyncpg.Connection) -> None:
    """On PostgreSQL, whose old rows the server removes."""
    async with Engine(postgres_url, model=MODEL) as engine:
        chat = await engine.create_chat()
        receipt = await engine.send_message(chat.id, [FilePart.from_bytes(SECRET, "text/plain")])
        await engine.wait(chat.id)
        assert await beside.fetchval("SELECT count(*) FROM blob_pieces") > 1
        assert not await go(engine, chat.id, receipt.message_id)
        stored = await stored_text(postgres_url)
        assert [word for word in (WORD.decode(), blob_of(SECRET).digest) if word in stored] == []
        assert await beside.fetchval("SELECT count(*) FROM blob_pieces") == 0


async def test_erasing_everything_removes_unsent_files(either_url: str) -> None:
    """An erasure of one message does not."""
    async with Engine(either_url, model=MODEL, settings=IDLE) as engine:
        chat = await engine.create_chat()
        receipt = await engine.send_message(chat.id, "hi")
        await engine.interrupt(chat.id)
        file = await engine.put_file(chat.id, SECRET, media_type="text/plain")
        await engine.erase_message(chat.id, receipt.message_id)
        assert await whole(engine, chat.id, file) == SECRET
        await engine.erase(chat.id, what=["everything"])
        with pytest.raises(FileNotFound):
            await whole(engine, chat.id, file)


@pytest.mark.parametrize("way", ["cut", "queued", "deleted from the queue", "edited in the queue"])
async def test_file_goes_with_its_erased_message(way: str, either_url: str) -> None:
    """It stays until then, because the log and the events still tell of the message."""
    async with Engine(either_url, model=MODEL, settings=IDLE) as engine:
        chat = await engine.create_chat()
        big = FilePart.from_bytes(SECRET, "text/plain")
        if way != "cut":
            await engine.send_message(chat.id, "first")
        receipt = await engine.send_message(chat.id, [big])
        match way:
            case "cut":
                await engine.edit_message(chat.id, receipt.message_id, "something else")
            case "deleted from the queue":
                await engine.delete_queued(chat.id, receipt.message_id)
            case "edited in the queue":
                await engine.edit_queued(chat.id, receipt.message_id, "something else")
        await engine.interrupt(chat.id)
        assert await whole(engine, chat.id, blob_of(SECRET).digest) == SECRET
        await engine.erase_message(chat.id, receipt.message_id)
        with pytest.raises(FileNotFound):
            await whole(engine, chat.id, blob_of(SECRET).digest)
        assert await engine._store.file_store().size(blob_of(SECRET).digest) is None
        assert (await engine.verify(chat.id)).ok


class Away(FolderFiles):
    """A folder that lets nothing leave."""

    async def remove(self, digest: str, is_loose: IsLoose) -> None:
        raise StoreError(f"the folder is out of reach: {digest} stays, loose or not: {is_loose}")


async def test_sweep_finishes_erasure_of_an_unreachable_file(either_url: str, tmp_path: Path) -> None:
    """The caller learns that bytes may be left."""
    folder = tmp_path / "files"
    async with Engine(either_url, model=MODEL, files=Away(folder), settings=IDLE) as engine:
        chat = await engine.create_chat()
        receipt = await engine.send_message(chat.id, [FilePart.from_bytes(SECRET, "text/plain")])
        await engine.interrupt(chat.id)
        erasure = await engine.erase(chat.id, messages=[receipt.message_id])
        assert not erasure.overwritten
        with pytest.raises(FileNotFound):
            await whole(engine, chat.id, blob_of(SECRET).digest)
        assert WORD in raw(folder)
    clock = ManualClock()
    async with Engine(either_url, model=MODEL, files=FolderFiles(folder), clock=clock) as engine:
        while WORD in raw(folder):
            clock.advance(100)
            await engine.get_chat(chat.id)


@pytest.mark.parametrize("note", ["{victim}", "../../victim.txt", "a\0b", b"\xff\x00", "A" * 64])
async def test_forged_removal_note_removes_nothing(
    tmp_path: Path, note: str | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever can write to the database must not have other files removed."""
    url, folder, victim = f"sqlite:///{tmp_path}/chats.db", tmp_path / "files", tmp_path / "victim.txt"
    victim.write_text("not turnwise's")
    async with Engine(url, model=MODEL, files=FolderFiles(folder), settings=IDLE) as engine:
        chat = await engine.create_chat()
        await engine.put_file(chat.id, SECRET, media_type="text/plain")
    written = note.format(victim=victim) if isinstance(note, str) else note
    with closing(sqlite3.connect(tmp_path / "chats.db")) as connection, connection:
        connection.execute("INSERT INTO loose_files (digest) VALUES (?)", (written,))
    async with Engine(url, model=MODEL, files=FolderFiles(folder), settings=IDLE) as engine:
        await engine.delete_chat(chat.id)
        assert await engine._chats().loose_files(limit=10) == []
    assert victim.exists()
    assert WORD not in raw(folder)
    assert "loose_file_unreadable" in caplog.text


async def test_swept_slow_put_fails(either_url: str) -> None:
    """It names nothing: half of its pieces are gone."""
    async with Engine(either_url, model=MODEL, settings=IDLE) as engine:
        chat = await engine.create_chat()
        blobs = engine._store.file_store()

        async def note(blob: Blob) -> None:
            await blobs.tidy(0)
            await engine._store.note_file(chat.id, blob, kept_in="database")

        with pytest.raises(StoreError, match="swept while it was put"):
            await blobs.put(of(SECRET), note)
        assert await blobs.size(blob_of(SECRET).digest) is None
