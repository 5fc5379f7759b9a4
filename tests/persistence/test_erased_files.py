"""Files that were erased or deleted are gone: from the tables, from the raw files, from the folder."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import anyio
import asyncpg
import pytest
from obstore.store import MemoryStore

from support.files import whole
from support.postgres_locks import blocked
from turnwise import (
    BucketFiles,
    ChatArchived,
    ChatDeleted,
    Engine,
    FileNotFound,
    FilePart,
    FolderFiles,
    ModelPart,
    ModelRequest,
    Settings,
    StoreError,
    TextPart,
    Tombstone,
    ToolOutput,
    tool,
)
from turnwise.engine.apply import Applier
from turnwise.persistence.conformance.files import blob_of, of
from turnwise.persistence.files.protocol import Blob, FileStore, IsLoose
from turnwise.persistence.protocol import Committed
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.providers.scripted import Call, Reply, ScriptedModel
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
    assert isinstance(left, Tombstone)
    return left.overwritten


Gone = Callable[[Engine, str, str], Awaitable[bool]]
EVERY_WAY: list[Gone] = [_erase_message, _erase_everything, _delete]


@pytest.mark.parametrize("go", EVERY_WAY)
@pytest.mark.parametrize("kept_in", ["database", "folder"])
async def test_no_file_of_the_disk_holds_what_is_gone(go: Gone, kept_in: str, tmp_path: Path) -> None:
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
async def test_no_table_holds_what_is_gone(go: Gone, postgres_url: str, beside: asyncpg.Connection) -> None:
    """On PostgreSQL, whose old rows the server removes."""
    async with Engine(postgres_url, model=MODEL) as engine:
        chat = await engine.create_chat()
        receipt = await engine.send_message(chat.id, [FilePart.from_bytes(SECRET, "text/plain")])
        await engine.wait(chat.id)
        assert await beside.fetchval("SELECT count(*) FROM blob_pieces") > 1
        assert not await go(engine, chat.id, receipt.message_id)
        for table in await beside.fetch("SELECT relname FROM pg_class WHERE relkind = 'r' AND relname !~ '^(pg|sql)_'"):
            for row in await beside.fetch(f"SELECT * FROM {table['relname']}"):  # noqa: S608 - a name
                assert WORD.decode() not in str(row)
                assert blob_of(SECRET).digest not in str(row), table
        assert await beside.fetchval("SELECT count(*) FROM blob_pieces") == 0


async def test_everything_takes_along_what_was_put_and_never_sent(either_url: str) -> None:
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


async def test_everything_takes_along_what_was_put_before_the_clock_was_set_back(either_url: str) -> None:
    clock = ManualClock()
    async with Engine(either_url, model=MODEL, settings=IDLE, clock=clock) as engine:
        chat = await engine.create_chat()
        files = [await engine.put_file(chat.id, text, media_type="text/plain") for text in (b"one", b"two")]
        clock.step(-5)
        await engine.erase(chat.id, what=["everything"])
        for file in files:
            with pytest.raises(FileNotFound):
                await whole(engine, chat.id, file)


@pytest.mark.parametrize("way", ["cut", "queued", "deleted from the queue", "edited in the queue"])
async def test_a_file_is_erased_wherever_its_message_was(way: str, either_url: str) -> None:
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


async def test_an_archived_chat_deleted_by_retention_takes_its_files_along(either_url: str) -> None:
    clock = ManualClock()
    settings = Settings(archive_after=10, delete_after=10)
    async with Engine(either_url, model=MODEL, settings=settings, clock=clock) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, [FilePart.from_bytes(SECRET, "text/plain")])
        blobs = engine._store.file_store()
        while await blobs.size(blob_of(SECRET).digest) is not None:
            clock.advance(15)
        assert await engine.tombstone(chat.id) is not None


class Away(FolderFiles):
    """A folder that lets nothing leave."""

    async def remove(self, digest: str, is_loose: IsLoose) -> None:
        raise StoreError(f"the folder is out of reach: {digest} stays, loose or not: {is_loose}")


async def test_an_erasure_counts_although_the_file_store_is_away_and_a_sweep_finishes_it(
    either_url: str, tmp_path: Path
) -> None:
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


@pytest.mark.parametrize("place", ["database", "folder"])
async def test_a_file_that_is_put_while_its_chat_is_deleted_leaves_nothing(
    either_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The deletion finds nothing to remove yet, and the file gets its name afterwards."""
    files = FolderFiles(tmp_path / "files") if place == "folder" else None
    async with Engine(either_url, model=MODEL, files=files, settings=IDLE) as engine:
        chat = await engine.create_chat()
        blobs = engine._files.blobs
        put = blobs.put

        async def deleting(content: Any, note: Any) -> Any:
            async def noted(blob: Any) -> None:
                await note(blob)
                await engine.delete_chat(chat.id)

            return await put(content, noted)

        monkeypatch.setattr(blobs, "put", deleting)
        with pytest.raises(ChatDeleted):
            await engine.put_file(chat.id, SECRET, media_type="text/plain")
        assert await blobs.size(blob_of(SECRET).digest) is None
        assert await engine._chats().loose_files(limit=10) == []


async def test_a_file_that_is_put_while_the_same_bytes_are_being_removed_stays(
    postgres_url: str, beside: asyncpg.Connection
) -> None:
    """The removal has begun, and comes to the name after the file was noted."""
    async with (
        Engine(postgres_url, model=MODEL, settings=IDLE) as engine,
        Engine(postgres_url, model=MODEL, settings=IDLE) as other,
    ):
        one, two, is_put = await engine.create_chat(), await engine.create_chat(), anyio.Event()
        await engine.put_file(one.id, SECRET, media_type="text/plain")

        async def put() -> None:
            await other.put_file(two.id, SECRET, media_type="text/plain")
            is_put.set()

        async with anyio.create_task_group() as tasks, beside.transaction():
            await beside.execute("SELECT FROM blobs FOR UPDATE")
            tasks.start_soon(engine.delete_chat, one.id)
            await blocked(beside)
            tasks.start_soon(put)
            waiting = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted"
            with anyio.fail_after(60):
                while not is_put.is_set() and await beside.fetchval(waiting) == 1:
                    await anyio.lowlevel.checkpoint()
        assert await whole(engine, two.id, blob_of(SECRET).digest) == SECRET
        await engine.delete_chat(two.id)
        assert await engine._store.file_store().size(blob_of(SECRET).digest) is None


PICTURE = FilePart.from_bytes(SECRET, "image/png")
REFERENCE = FilePart(media_type="image/png", blob=blob_of(SECRET).digest)
PLACES: dict[str, Callable[[Path], FileStore | None]] = {
    "database": lambda _: None,
    "folder": FolderFiles,
    "bucket": lambda _: BucketFiles(MemoryStore()),
}


class Meanwhile:
    """Lets something happen, once, in the moment before the next commit, when the files of that are stored."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.happens: Callable[[], Awaitable[object]] | None = None
        change = Applier.change

        async def after_it(*given: Any, **options: Any) -> Committed:
            happens, self.happens = self.happens, None
            if happens is not None:
                await happens()
            return await change(*given, **options)

        monkeypatch.setattr(Applier, "change", after_it)


@pytest.fixture(params=PLACES)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> FileStore | None:
    """Return where files are kept."""
    return PLACES[request.param](tmp_path / "files")


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    return Meanwhile(monkeypatch)


@pytest.mark.parametrize("what", ["messages", "everything"])
@pytest.mark.parametrize("part", [PICTURE, REFERENCE], ids=["inline", "by reference"])
async def test_a_message_has_its_file_although_the_last_other_one_is_erased_before_it_is_accepted(
    part: FilePart,
    what: Literal["messages", "everything"],
    files: FileStore | None,
    either_url: str,
    meanwhile: Meanwhile,
) -> None:
    """Sent, queued, edited and edited in the queue: the bytes are there for as long as the message, and no longer."""
    async with Engine(either_url, model=MODEL, files=files, settings=IDLE) as engine:
        chat = await engine.create_chat()

        async def erase() -> object:
            return await engine.erase(chat.id, what=[what])

        async def last_sent(sending: Awaitable[Any]) -> None:
            meanwhile.happens = erase
            await sending
            assert await whole(engine, chat.id, REFERENCE) == SECRET
            await engine._files.collect()
            assert await whole(engine, chat.id, REFERENCE) == SECRET

        first = await engine.send_message(chat.id, [PICTURE])
        await last_sent(engine.send_message(chat.id, [part]))
        (queued,) = await engine.queued(chat.id)
        await engine.edit_queued(chat.id, queued.id, [PICTURE])
        await engine.interrupt(chat.id)
        await last_sent(engine.edit_message(chat.id, first.message_id, [part]))
        await engine.interrupt(chat.id)
        await engine.erase(chat.id, what=["messages"])
        assert await engine._files.blobs.size(REFERENCE.blob or "") is None
        assert await engine._store.held_files(chat.id) == {}


async def test_a_message_that_is_refused_leaves_no_file(files: FileStore | None, either_url: str) -> None:
    """Nobody sends it any more, so nobody waits for a sweep that finds it too old."""
    async with Engine(either_url, model=MODEL, files=files, settings=IDLE) as engine:
        chat = await engine.create_chat()
        await engine.update_chat(chat.id, archived=True)
        with pytest.raises(ChatArchived):
            await engine.send_message(chat.id, [PICTURE])
        await engine._files.collect()
        assert await engine._files.blobs.size(REFERENCE.blob or "") is None


@pytest.mark.parametrize("made_by", ["tool", "model"])
async def test_what_a_turn_makes_is_there_although_the_last_message_with_it_is_erased_before_the_commit(
    made_by: str, files: FileStore | None, either_url: str, meanwhile: Meanwhile
) -> None:
    async with Engine(either_url, model=MODEL, files=files, settings=IDLE) as client:
        chat = await client.create_chat()
        first = await client.send_message(chat.id, [PICTURE])
        await client.interrupt(chat.id)

        async def erase() -> object:
            return await client.erase(chat.id, messages=[first.message_id])

        @tool
        def draw() -> ToolOutput:
            """Draw the picture again."""
            meanwhile.happens = erase
            return ToolOutput("drawn", (PICTURE,))

        def painted(_request: ModelRequest) -> Reply:
            meanwhile.happens = erase
            return Reply(
                parts=[ModelPart(type="file", media_type="image/png", data=PICTURE.data), ModelPart(type="finish")]
            )

        replies = [Reply(calls=[Call("draw", {})]), "done"] if made_by == "tool" else [painted]
        async with Engine(either_url, model=ScriptedModel(replies), tools=[draw], files=client._files.blobs) as engine:
            await engine.ask(chat.id, "again")
            assert meanwhile.happens is None
            assert await whole(engine, chat.id, REFERENCE) == SECRET
            await engine.erase(chat.id, what=["messages"])
            assert await engine._files.blobs.size(REFERENCE.blob or "") is None


_KILLED = """
import anyio, json, os, sys
from turnwise import Engine, Settings
from turnwise.persistence.sqlite.files import SQLiteFiles
from turnwise.providers.scripted import ScriptedModel

path, moment, chat_id = sys.argv[1:]

async def pieces():
    for number in range(4):
        if moment == "streaming" and number == 3:
            os._exit(9)
        yield b"hunter2-xyzzy-" * 40_000

async def main():
    async with Engine(f"sqlite:///{path}", model=ScriptedModel([]), settings=Settings(run_worker=False)) as engine:
        if moment == "naming":
            SQLiteFiles._name = lambda *given: os._exit(9)
        file = await engine.put_file(chat_id, pieces(), media_type="text/plain")
        print(json.dumps(file.model_dump()), flush=True)
        if moment == "sending":
            os._exit(9)

anyio.run(main)
"""


@pytest.mark.parametrize("moment", ["streaming", "naming", "sending", "never"])
async def test_a_process_killed_between_blob_and_message_leaves_what_a_sweep_removes(
    moment: str, tmp_path: Path
) -> None:
    """Nothing half stands under a name, and nothing stays for ever."""
    path, clock = tmp_path / "chats.db", ManualClock()
    async with Engine(f"sqlite:///{path}", model=MODEL, settings=IDLE) as engine:
        chat = await engine.create_chat()
    done = subprocess.run(  # noqa: ASYNC221 - the test has nothing else to do
        [sys.executable, "-c", _KILLED, str(path), moment, chat.id], capture_output=True, text=True, check=False
    )
    assert done.returncode == (0 if moment == "never" else 9), done.stderr
    digest = blob_of(WORD * 160_000).digest
    assert WORD in raw(tmp_path)
    store = SQLiteStore(path, now=clock.now)
    async with Engine(store, model=MODEL, clock=clock, settings=IDLE) as engine:
        if moment in ("streaming", "naming"):
            assert await store.file_store().size(digest) is None
        else:
            part = FilePart(**{name: value for name, value in json.loads(done.stdout).items() if name != "type"})
            assert await whole(engine, chat.id, part) == WORD * 160_000
        clock.advance(10 * 365 * 86400)
        await engine._files.sweep()
        assert await store.scrub()
        assert WORD not in raw(tmp_path)
        assert await store.held_files(chat.id) == {}


_PUTTING = """
import anyio, sys
from turnwise import Engine, FolderFiles, Settings
from turnwise.providers.scripted import ScriptedModel

url, folder, chat_id = sys.argv[1:]

async def main():
    files = FolderFiles(folder) if folder else None
    async with Engine(url, model=ScriptedModel([]), files=files, settings=Settings(run_worker=False)) as engine:
        for number in range(8):
            own = await engine.create_chat()
            file = await engine.put_file(own.id, b"x" * 600_000, media_type="text/plain")
            assert sum([len(piece) async for piece in engine.open_file(own.id, file)]) == 600_000
            await engine.delete_chat(own.id)
        file = await engine.put_file(chat_id, b"x" * 600_000, media_type="text/plain")
        await engine.send_message(chat_id, [file])

anyio.run(main)
"""


@pytest.mark.parametrize("kept_in", ["database", "folder"])
async def test_two_processes_put_and_delete_the_same_content(kept_in: str, either_url: str, tmp_path: Path) -> None:
    """One deletes what the other has just put; what the last chat holds is there in the end."""
    folder = str(tmp_path / "files") if kept_in == "folder" else ""
    files = FolderFiles(folder) if folder else None
    async with Engine(either_url, model=MODEL, files=files, settings=IDLE) as engine:
        chats = [await engine.create_chat() for _ in range(2)]
        running = [
            subprocess.Popen([sys.executable, "-c", _PUTTING, either_url, folder, chat.id])  # noqa: ASYNC220
            for chat in chats
        ]
        assert [one.wait() for one in running] == [0, 0]
        for chat in chats:
            (file,) = (await engine.messages(chat.id))[0].parts
            assert isinstance(file, FilePart)
            assert await whole(engine, chat.id, file) == b"x" * 600_000
        for chat in chats:
            await engine.interrupt(chat.id)
            await engine.delete_chat(chat.id)
        assert await engine._files.blobs.size(file.blob or "") is None


async def test_a_put_that_was_swept_because_it_went_on_too_slowly_says_so(either_url: str) -> None:
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


async def test_an_engine_with_the_wrong_file_store_forgets_nothing(either_url: str, tmp_path: Path) -> None:
    """An operator's command knows no folder: it erases, and the bytes are removed by a worker that knows it."""
    folder = tmp_path / "files"
    async with Engine(either_url, model=MODEL, files=FolderFiles(folder), settings=IDLE) as engine:
        chat = await engine.create_chat()
        receipt = await engine.send_message(chat.id, [FilePart.from_bytes(SECRET, "text/plain")])
        await engine.interrupt(chat.id)
    for wrong in (None, FolderFiles(tmp_path / "other")):
        async with Engine(either_url, model=MODEL, files=wrong, settings=IDLE) as engine:
            for call in (
                engine.put_file(chat.id, b"x", media_type="text/plain"),
                whole(engine, chat.id, blob_of(SECRET).digest),
                engine.verify(chat.id, files=True),
                anext(engine.export_chat(chat.id)),
            ):
                with pytest.raises(StoreError, match="the files of this store are kept in 'folder"):
                    await call
    async with Engine(either_url, model=MODEL, settings=IDLE) as engine:
        assert not (await engine.erase(chat.id, messages=[receipt.message_id])).overwritten
        await engine._files.collect()
    assert WORD in raw(folder)
    folder.rename(tmp_path / "moved")
    async with Engine(either_url, model=MODEL, files=FolderFiles(tmp_path / "moved"), settings=IDLE) as engine:
        await engine._files.sweep()
    assert WORD not in raw(tmp_path / "moved")


@pytest.mark.parametrize("note", ["{victim}", "../../victim.txt", "a\0b", b"\xff\x00", "A" * 64])
async def test_a_note_of_a_loose_file_that_is_no_digest_removes_nothing_and_holds_nothing_up(
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
