"""Erased and deleted files are gone from the tables, the raw files and the folder."""

import json
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from support.exploring import few
from support.files import BIG, digest_of, whole
from support.sql_by_hand import stored_text
from turnwise import Engine, FileNotFound, FilePart, FolderFiles, ImportRefused, Settings, StoreError, TextPart
from turnwise.persistence.archive.format import chain_hash
from turnwise.persistence.audit.record import GENESIS
from turnwise.persistence.blobs.protocol import Blob, IsUnreferenced
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.testing import ManualClock
from turnwise.testing.conformance.files import blob_of, of

WORD = b"hunter2-xyzzy-"
SECRET = WORD * 100_000
"""It spans more than one piece."""
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
    """The test searches every byte of the database, its log and the folder."""
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
    """On PostgreSQL, where the server removes old rows."""
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
    """Erasing one message does not."""
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
    """Until then log and events refer to the message."""
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
    """A folder that deletes nothing."""

    async def remove(self, digest: str, is_unreferenced: IsUnreferenced) -> None:
        raise StoreError(f"the folder is out of reach: {digest} stays, loose or not: {is_unreferenced}")


async def test_sweep_finishes_erasure_of_an_unreachable_file(either_url: str, tmp_path: Path) -> None:
    """The caller learns that bytes may remain."""
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
    """Write access to the database must not allow removal of other files."""
    url, folder, victim = f"sqlite:///{tmp_path}/chats.db", tmp_path / "files", tmp_path / "victim.txt"
    victim.write_text("not turnwise's")
    async with Engine(url, model=MODEL, files=FolderFiles(folder), settings=IDLE) as engine:
        chat = await engine.create_chat()
        await engine.put_file(chat.id, SECRET, media_type="text/plain")
    written = note.format(victim=victim) if isinstance(note, str) else note
    with closing(sqlite3.connect(tmp_path / "chats.db")) as connection, connection:
        connection.execute("INSERT INTO unreferenced_files (digest) VALUES (?)", (written,))
    async with Engine(url, model=MODEL, files=FolderFiles(folder), settings=IDLE) as engine:
        await engine.delete_chat(chat.id)
        assert await engine._chats().unreferenced_files(limit=10) == []
    assert victim.exists()
    assert WORD not in raw(folder)
    assert "unreferenced_file_unreadable" in caplog.text


async def test_swept_slow_put_fails(either_url: str) -> None:
    """The put returns no reference: half of its pieces are gone."""
    async with Engine(either_url, model=MODEL, settings=IDLE) as engine:
        chat = await engine.create_chat()
        blobs = engine._store.file_store()

        async def note(blob: Blob) -> None:
            await blobs.tidy(0)
            await engine._store.note_file(chat.id, blob, kept_in="database")

        with pytest.raises(StoreError, match="swept while it was put"):
            await blobs.put(of(SECRET), note)
        assert await blobs.size(blob_of(SECRET).digest) is None


# Moved files


LARGE = BIG * 8
"""Several pieces."""


async def live(engine: Engine) -> str:
    """Return a chat with a file in its history, one in its queue, and one that was never sent."""
    chat = await engine.create_chat()
    await engine.put_file(chat.id, b"unsent", media_type="image/png")
    await engine.send_message(chat.id, [TextPart(text="look"), FilePart.from_bytes(LARGE, "image/png")])
    await engine.send_message(chat.id, [await engine.put_file(chat.id, b"queued", media_type="image/png")])
    return chat.id


async def exported(engine: Engine, chat_id: str) -> list[str]:
    return [line async for line in engine.export_chat(chat_id)]


@pytest.mark.parametrize("back", [False, True])
async def test_chat_moves_with_its_files(back: bool, postgres_url: str, tmp_path: Path) -> None:
    """From a database into a folder beside another database, and back. Unsent files stay behind."""
    urls = [f"sqlite:///{tmp_path / 'chats.db'}", postgres_url]
    folder = FolderFiles(tmp_path / "files")
    source, target = reversed(urls) if back else urls
    async with Engine(source, model=MODEL, settings=IDLE, files=folder if back else None) as engine:
        chat_id = await live(engine)
        lines = await exported(engine, chat_id)
        assert max(map(len, lines)) < 1_000_000, "no line holds a whole file"
    async with Engine(target, model=MODEL, settings=IDLE, files=None if back else folder) as engine:
        await engine.import_chat(lines)
        assert await whole(engine, chat_id, digest_of(LARGE)) == LARGE
        assert await whole(engine, chat_id, digest_of(b"queued")) == b"queued"
        assert {*await engine._store.held_files(chat_id)} == {digest_of(LARGE), digest_of(b"queued")}
        assert (await engine.verify(chat_id, files=True)).ok
        assert await engine._store.let_go(seconds=0, limit=10) == 0
        assert (await exported(engine, chat_id))[0] == lines[0]
        await engine.interrupt(chat_id)
        await engine.delete_chat(chat_id)
        assert await engine._files.blobs.size(digest_of(LARGE)) is None


def _chain(lines: list[str]) -> list[str]:
    """Recompute the hashes of the lines."""
    prev, chained = GENESIS, []
    for line in lines:
        fields = json.loads(line)
        fields.pop("hash")
        prev = chain_hash(prev, fields)
        chained.append(json.dumps(fields | {"hash": prev}))
    return chained


def _pieces(lines: list[str]) -> list[int]:
    return [place for place, line in enumerate(lines) if "blob" in json.loads(line) and "data" in json.loads(line)]


def _with(place: int, **fields: Any) -> Callable[[list[str]], list[str]]:
    def change(lines: list[str]) -> list[str]:
        at = _pieces(lines)[place]
        return [*lines[:at], json.dumps(json.loads(lines[at]) | fields), *lines[at + 1 :]]

    return change


def _without_piece(lines: list[str]) -> list[str]:
    return [line for place, line in enumerate(lines) if place != _pieces(lines)[0]]


def _without_files(lines: list[str]) -> list[str]:
    return [line for place, line in enumerate(lines) if place not in _pieces(lines)]


def _row_after(lines: list[str]) -> list[str]:
    return [lines[0], *lines[2:-1], lines[1], lines[-1]]


def _of_another(lines: list[str]) -> list[str]:
    data = {"blob": digest_of(b"stray"), "number": 0, "data": "c3RyYXk=", "hash": ""}
    end = json.loads(lines[-1])
    return [*lines[:-1], json.dumps(data), json.dumps(end | {"blobs": end["blobs"] + 1})]


def _uncounted(lines: list[str]) -> list[str]:
    return [*lines[:-1], json.dumps({name: value for name, value in json.loads(lines[-1]).items() if name != "blobs"})]


@pytest.mark.parametrize(
    ("change", "problem"),
    few(
        [
            (_with(0, data="AAAA"), "the pieces before it are not the file|the next piece of a file belongs here"),
            (_with(-1, data="AAAA"), "the pieces before it are not the file"),
            (_with(0, data="?"), "must be base64"),
            (_with(0, data=""), "the next piece of a file belongs here"),
            (_with(0, data=3), "its data a string"),
            (_with(0, number="0"), "a whole number"),
            (_with(0, number=7), "the next piece of a file belongs here"),
            (_with(0, blob="../../etc/passwd"), "a piece of a file belongs here"),
            (_with(0, more=1), "a piece of a file belongs here"),
            (_without_piece, "the next piece of a file belongs here|are not the file|counts 2 files, and 1 are there"),
            (_without_files, "the checkpoint counts 2 files, and 0 are there"),
            (_uncounted, "the checkpoint counts 0 files, and 2 are there"),
            (_row_after, "a row stands after the files"),
            (_of_another, "no row refers to the file"),
        ],
        4,
    ),
)
async def test_wrong_files_are_refused(change: Callable[[list[str]], list[str]], problem: str, tmp_path: Path) -> None:
    """All hashes are valid."""
    async with Engine("sqlite://", model=MODEL, settings=IDLE) as engine:
        chat_id = await live(engine)
        lines = _chain(change(await exported(engine, chat_id)))
    async with Engine(f"sqlite:///{tmp_path / 'chats.db'}", model=MODEL, settings=IDLE) as engine:
        with pytest.raises(ImportRefused, match=problem):
            await engine.import_chat(lines)
        assert await engine._store.held_files(chat_id) == {}
        assert await engine._store.file_store().size(digest_of(LARGE)) is None
