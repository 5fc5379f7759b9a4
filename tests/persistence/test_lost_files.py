"""A file that is gone or damaged is told by who looks, with its message and part; chats and their readers go on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import pytest

from support.files import digest_of, whole
from support.sql_by_hand import by_hand
from support.terminal import Terminal
from turnwise import ChatDeleted, Engine, FileNotFound, FilePart, FolderFiles, Settings, TextPart, Verdict
from turnwise.engine.diagnose import Diagnosis
from turnwise.engine.files.files import Files
from turnwise.engine.files.lost import FileSearch
from turnwise.persistence.files.pieces import PIECE
from turnwise.providers.scripted import Reply, ScriptedModel

MODEL: Final = ScriptedModel(lambda _request: Reply("ok"))
IDLE: Final = Settings(run_worker=False)
SCAN: Final = b"scan" * (PIECE // 4) + b"the end"
"""Two pieces of a database."""
QUEUED: Final = b"queued"


def opened(url: str, folder: Path | None, **options: Any) -> Engine:
    files = None if folder is None else FolderFiles(folder)
    return Engine(url, model=MODEL, settings=IDLE, files=files, **options)


async def live(engine: Engine) -> str:
    """Return a chat with a file in its history, one in its queue, and one that was never sent."""
    chat = await engine.create_chat()
    scan = await engine.put_file(chat.id, SCAN, media_type="image/png", name="scan.png")
    await engine.put_file(chat.id, b"unsent", media_type="image/png")
    await engine.send_message(chat.id, [TextPart(text="look"), scan])
    await engine.send_message(chat.id, [await engine.put_file(chat.id, QUEUED, media_type="image/png")])
    return chat.id


async def diagnosed(engine: Engine, *, files: bool = False) -> list[Diagnosis]:
    return [diagnosis async for diagnosis in engine.diagnose(files=files)]


Damage = Callable[[str, Path | None], Awaitable[None]]


async def gone(url: str, folder: Path | None) -> None:
    """Take the scan away."""
    if folder is not None:
        _path(folder).unlink()
    else:
        await by_hand(url, f"DELETE FROM blobs WHERE digest = '{digest_of(SCAN)}'")  # noqa: S608


async def shorter(url: str, folder: Path | None) -> None:
    """Take the last piece of the scan away."""
    if folder is not None:
        _path(folder).write_bytes(SCAN[:PIECE])
    else:
        await by_hand(url, f"DELETE FROM blob_pieces WHERE number = 1 AND place = {_PLACE}")  # noqa: S608


async def changed(url: str, folder: Path | None) -> None:
    """Change a byte of the scan, so that it has its size still."""
    if folder is not None:
        _path(folder).write_bytes(SCAN[:-1] + b"?")
        return
    data = "x'746865206e6f64'" if url.startswith("sqlite") else r"'\x746865206e6f64'"
    await by_hand(url, f"UPDATE blob_pieces SET data = {data} WHERE number = 1 AND place = {_PLACE}")  # noqa: S608


_PLACE: Final = f"(SELECT place FROM blobs WHERE digest = '{digest_of(SCAN)}')"  # noqa: S608
_SHORT: Final = f"is damaged: it has {PIECE:,} bytes, and had {len(SCAN):,}"
_CHANGED: Final = "is damaged: its bytes are not those that it is named after"


def _path(folder: Path) -> Path:
    (path,) = (folder / "blobs").rglob(digest_of(SCAN))
    return path


@pytest.fixture(params=["database", "folder"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """Return the folder that keeps the files, if the database does not."""
    return tmp_path / "files" if request.param == "folder" else None


@pytest.mark.parametrize(
    ("damage", "told", "told_by_reading"),
    [(gone, "is not there", "is not there"), (shorter, _SHORT, _SHORT), (changed, None, _CHANGED)],
)
async def test_a_lost_file_is_told_with_its_message_and_its_part(
    damage: Damage, told: str | None, told_by_reading: str, either_url: str, folder: Path | None
) -> None:
    """Whoever reads the chat goes on; another chat is not touched, and only who reads the bytes finds all damage."""
    async with opened(either_url, folder) as engine:
        other, chat_id = await engine.create_chat(), await live(engine)
        for files in (False, True):
            assert await diagnosed(engine, files=files) == []
        await damage(either_url, folder)
        for files, problem in ((False, told), (True, told_by_reading)):
            found = await diagnosed(engine, files=files)
            assert [(each.chat_id, each.flaws) for each in found] == ([(chat_id, ())] if problem else [])
            for (lost,) in (each.files for each in found):
                assert (lost.digest, lost.problem) == (digest_of(SCAN), problem)
                assert (lost.place, lost.part, lost.name, lost.media_type) == (
                    "messages[m1].body",
                    1,
                    "scan.png",
                    "image/png",
                )
            assert all("turnwise erase CHAT MESSAGE" in each.advice for each in found)
            assert all("--repair" not in each.advice for each in found)
        assert (await engine.get_chat(chat_id)).unreadable is None
        assert (await engine.explain(chat_id)).unreadable == ()
        assert (await engine.verify(chat_id)).ok
        assert not (await engine.verify(chat_id, files=True)).ok
        assert await whole(engine, chat_id, digest_of(QUEUED)) == QUEUED
        await engine.send_message(other.id, "go on")
        await engine.erase(chat_id, messages=["m1"])
        assert await diagnosed(engine, files=True) == []


async def test_a_piece_that_is_no_bytes_is_a_damaged_file(tmp_path: Path) -> None:
    """Not a failing store, for which everybody would wait."""
    url = f"sqlite:///{tmp_path}/chats.db"
    async with opened(url, None) as engine:
        chat_id = await live(engine)
    await by_hand(url, f"UPDATE blob_pieces SET data = CAST(data AS TEXT) WHERE number = 1 AND place = {_PLACE}")  # noqa: S608
    async with opened(url, None) as engine:
        (told,) = await diagnosed(engine, files=True)
        assert [lost.problem for lost in told.files] == ["is damaged: there is something else than bytes"]
        assert not (await engine.verify(chat_id, files=True)).ok
        with pytest.raises(FileNotFound, match="is damaged"):
            await whole(engine, chat_id, digest_of(SCAN))


async def test_a_reference_that_is_none_is_left_out_of_what_the_model_is_sent(either_url: str) -> None:
    """Somebody has damaged a message: a database that takes no such text must not be asked for it."""
    async with opened(either_url, None) as engine:
        chat_id = await live(engine)
    await by_hand(either_url, f"UPDATE messages SET body = replace(body, '{digest_of(SCAN)}', '\\u0000')")  # noqa: S608
    model = ScriptedModel(lambda _request: Reply("seen"))
    async with Engine(either_url, model=model) as engine:
        chat = await engine.wait(chat_id, timeout=60)
    assert chat.state == "waiting"
    assert "The file scan.png (image/png) is left out here: it is gone." in model.requests[0].messages[0].text


async def test_who_puts_the_same_bytes_again_has_the_file_again(either_url: str, folder: Path | None) -> None:
    async with opened(either_url, folder) as engine:
        chat_id = await live(engine)
        await gone(either_url, folder)
        assert len(await diagnosed(engine)) == 1
        await engine.put_file(chat_id, SCAN, media_type="image/png")
        assert await diagnosed(engine, files=True) == []
        assert await whole(engine, chat_id, digest_of(SCAN)) == SCAN


async def test_a_file_that_the_chat_no_longer_holds_is_told_also_of_the_queue(either_url: str) -> None:
    async with opened(either_url, None) as engine:
        chat_id = await live(engine)
        await by_hand(either_url, f"DELETE FROM chat_files WHERE digest = '{digest_of(QUEUED)}'")  # noqa: S608
        ((lost,),) = [each.files for each in await diagnosed(engine)]
        assert (lost.digest, lost.problem, lost.part) == (digest_of(QUEUED), "is not held by the chat", 0)
        assert lost.place == f"queue[{(await engine.queued(chat_id))[0].id}].body"


async def test_what_is_erased_while_the_doctor_looks_is_not_lost(either_url: str) -> None:
    """The rows were read before the erasure, and the files are looked for after it."""
    async with opened(either_url, None) as engine:
        chat_id = await live(engine)
        before = await engine._store.raw_rows(chat_id)
        await engine.erase(chat_id, what=["messages"])
        assert await engine._files.blobs.size(digest_of(SCAN)) is None
        assert await FileSearch(engine._files, read=True).lost_by(chat_id, before) == ()


@pytest.mark.parametrize("before", ["the chat is asked what it holds", "a file is read"])
async def test_what_is_erased_while_the_files_are_verified_is_not_lost(
    before: str, either_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(either_url, None) as engine:
        chat_id = await live(engine)
        with monkeypatch.context() as patch:
            _do_before(patch, engine, before, partial(engine.erase, chat_id, what=["messages"]))
            assert await engine.verify(chat_id, files=True) == Verdict(ok=True)
        assert await engine._files.blobs.size(digest_of(SCAN)) is None


async def test_a_chat_that_is_deleted_while_its_files_are_verified_is_told_to_be_deleted(
    either_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(either_url, None) as engine:
        chat_id = await live(engine)
        await engine.interrupt(chat_id)
        _do_before(monkeypatch, engine, "a file is read", partial(engine.delete_chat, chat_id))
        with pytest.raises(ChatDeleted):
            await engine.verify(chat_id, files=True)


def _do_before(patch: pytest.MonkeyPatch, engine: Engine, before: str, act: Callable[[], Awaitable[object]]) -> None:
    """Let something happen once, in the middle of a check."""
    place, name = (Files, "problem_with") if before == "a file is read" else (engine._files.store, "held_files")
    original, done = getattr(place, name), list[object]()

    async def late(*given: Any) -> Any:
        if not done:
            done.append(await act())
        return await original(*given)

    patch.setattr(place, name, late)


async def test_a_search_asks_once_for_the_place_of_the_files_and_nothing_more_once_it_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be a million chats, each of whose files would wait for a store that is away."""
    asked: list[str] = []
    check = Files.check_place

    async def counted(files: Files) -> None:
        asked.append(files.blobs.name)
        await check(files)

    monkeypatch.setattr(Files, "check_place", counted)
    async with opened("sqlite://", tmp_path / "files") as engine:
        chat_id = await live(engine)
        rows = await engine._store.raw_rows(chat_id)
        for files, failed in ((engine._files, False), (_elsewhere(engine._files, tmp_path), True)):
            search = FileSearch(files, read=False)
            asked.clear()
            assert [await search.lost_by(chat_id, rows) for _ in range(2)] == [(), ()]
            assert (len(asked), search.failure is not None) == (1, failed)


def _elsewhere(files: Files, folder: Path) -> Files:
    return Files(files.store, FolderFiles(folder / "other"), files.settings)


async def test_files_that_cannot_be_looked_at_are_told_once_and_everything_else_is_looked_at(
    either_url: str, tmp_path: Path
) -> None:
    """Another folder's files are not gone, and a folder that is away is not empty."""
    async with opened(either_url, tmp_path / "files") as engine:
        chats = [await live(engine) for _ in range(2)]
        await engine.check_files()
    await by_hand(either_url, f"UPDATE profiles SET body = '[' WHERE chat_id = '{chats[1]}'")  # noqa: S608
    for folder, problem in ((None, "was given 'database'"), (tmp_path / "other", "was given 'folder ")):
        async with opened(either_url, folder) as engine:
            flawed, last = await diagnosed(engine, files=True)
            assert (flawed.chat_id, flawed.files) == (chats[1], ())
            assert (last.chat_id, last.flaws[0].column, last.files) == (None, "file_store.name", ())
            assert problem in last.flaws[0].problem
            assert "--file-folder" in last.advice
    async with opened(either_url, tmp_path / "files") as engine:
        (tmp_path / "files").rename(tmp_path / "moved")
        flawed, last = await diagnosed(engine)
        assert "cannot be reached" in last.flaws[0].problem
        (tmp_path / "moved").rename(tmp_path / "files")
        assert [each.chat_id for each in await diagnosed(engine)] == [chats[1]]


async def test_a_reference_in_a_message_that_cannot_be_read_is_told_with_its_row(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    async with opened(url, None) as engine:
        await live(engine)
        await gone(url, None)
        await by_hand(url, "UPDATE messages SET body = '!' || body")
        ((lost,),) = [each.files for each in await diagnosed(engine)]
        assert (lost.place, lost.part, lost.name) == ("messages[m1].body", None, None)


async def test_a_chat_with_files_moves_through_the_command_line_between_both_stores(
    postgres_url: str, tmp_path: Path
) -> None:
    """From a folder beside PostgreSQL into a SQLite file, and checked on both sides."""
    folder = tmp_path / "files"
    async with opened(postgres_url, folder) as engine:
        chat_id = await live(engine)
    here, there = Terminal(tmp_path, store=postgres_url), Terminal(tmp_path)

    def move() -> list[tuple[int, str]]:
        named = ("--file-folder", "files")
        done = [
            here.run("verify", chat_id, "--files", *named),
            here.run("export", chat_id, "-o", "chat.jsonl", *named),
            there.run("migrate"),
            there.run("import", "chat.jsonl"),
            there.run("doctor", "--files"),
            there.run("export", chat_id, *named),
            here.run("doctor"),
            here.run("doctor", "--files", *named),
        ]
        return [(one.code, one.words) for one in done]

    done = await anyio.to_thread.run_sync(move)
    assert [code for code, _ in done] == [0, 0, 0, 0, 0, 2, 1, 0], done
    assert "every file of the chat is there, byte for byte" in done[0][1]
    assert "every file is there, byte for byte" in done[4][1]
    assert "leave the option out" in done[5][1]
    assert "were not looked at" in done[6][1]
    async with opened(f"sqlite:///{tmp_path / 'turnwise.db'}", None) as engine:
        assert await whole(engine, chat_id, digest_of(SCAN)) == SCAN
        part = (await engine.messages(chat_id))[0].parts[1]
        assert isinstance(part, FilePart)
