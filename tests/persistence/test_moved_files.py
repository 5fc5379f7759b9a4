"""Files move with their chats between stores, are checked on the way, and can be verified where they are."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.files import BIG, digest_of, whole
from turnwise import (
    Chat,
    ChatExists,
    ChatUnreadable,
    Engine,
    FilePart,
    FolderFiles,
    ImportRefused,
    Settings,
    SettingsError,
    StoreError,
    TextPart,
)
from turnwise.persistence.audit.record import GENESIS
from turnwise.persistence.chat_file.format import chain_hash
from turnwise.persistence.files.spool import Spool
from turnwise.providers.scripted import Reply, ScriptedModel

MODEL = ScriptedModel(lambda _request: Reply("ok"))
IDLE = Settings(run_worker=False)
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
async def test_a_chat_moves_with_its_files_between_stores_of_any_kind(
    back: bool,  # noqa: FBT001
    postgres_url: str,
    tmp_path: Path,
) -> None:
    """From the database into a folder beside another database, and the other way. What was never sent stays behind."""
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


async def test_a_chat_that_is_there_is_not_imported_again_and_keeps_its_files(either_url: str) -> None:
    async with Engine(either_url, model=MODEL, settings=IDLE) as engine:
        chat_id = await live(engine)
        lines = await exported(engine, chat_id)
        before = await engine._store.held_files(chat_id)
        with pytest.raises(ChatExists):
            await engine.import_chat(lines)
        assert await engine._store.held_files(chat_id) == before
        assert await whole(engine, chat_id, digest_of(LARGE)) == LARGE


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (SettingsError("owner", "is unknown"), "owner: is unknown; nothing was stored"),
        (PermissionError("no"), "permit: refuses the chat: PermissionError: no; nothing was written"),
        (SystemExit("no"), "permit: refuses the chat: SystemExit: no; nothing was written"),
        (asyncio.CancelledError("no"), "permit: refuses the chat: CancelledError: no; nothing was written"),
    ],
)
async def test_a_chat_that_is_not_permitted_is_not_imported_nor_are_its_files(
    either_url: str, refusal: BaseException, told: str, *, is_async: bool
) -> None:
    """Whoever takes in lines of strangers may look at the chat first, as it was exported."""
    seen: list[Chat] = []

    def at_once(chat: Chat) -> None:
        seen.append(chat)
        if len(seen) == 1:
            raise refusal

    async def later(chat: Chat) -> None:
        at_once(chat)

    permit = later if is_async else at_once

    async with Engine("sqlite://", model=MODEL, settings=IDLE) as engine:
        chat_id = await live(engine)
        before, lines = await engine.get_chat(chat_id), await exported(engine, chat_id)
    async with Engine(either_url, model=MODEL, settings=IDLE) as engine:
        with pytest.raises(SettingsError) as refused:
            await engine.import_chat(lines, permit=permit)
        assert str(refused.value) == told
        assert await engine.chat_ids() == []
        assert await engine._store.held_files(chat_id) == {}
        assert await engine._store.file_store().size(digest_of(LARGE)) is None
        taken = await engine.import_chat(lines, permit=permit)
        assert await whole(engine, chat_id, digest_of(LARGE)) == LARGE
    assert seen == [before, before]
    assert (taken.version, taken.owner) == (before.version + 1, before.owner)


async def test_files_that_are_gone_do_not_come_along_and_the_rest_does(tmp_path: Path) -> None:
    """The chat goes on elsewhere as it did here: the model is told what is gone."""
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    async with Engine(url, model=MODEL, files=FolderFiles(tmp_path / "files"), settings=IDLE) as engine:
        chat_id = await live(engine)
        for path in [*(tmp_path / "files").rglob(digest_of(LARGE))]:
            path.unlink()
        verdict = await engine.verify(chat_id, files=True)
        assert not verdict.ok
        assert verdict.problem == f"The file {digest_of(LARGE)} is not there."
        assert (verdict.place, verdict.position) == ("messages[m1].body", 2)
        assert (await engine.verify(chat_id)).ok
        lines = await exported(engine, chat_id)
    model = ScriptedModel(lambda _request: Reply("ok"))
    async with Engine("sqlite://", model=model) as engine:
        await engine.import_chat(lines)
        await engine.wait(chat_id)
        assert "is left out here: it is gone" in str(model.requests[0].messages)
        assert await whole(engine, chat_id, digest_of(b"queued")) == b"queued"


async def test_an_export_whose_file_goes_while_it_is_read_says_so_and_does_not_end_as_if_it_were_whole(
    tmp_path: Path,
) -> None:
    async with Engine("sqlite://", model=MODEL, files=FolderFiles(tmp_path / "files"), settings=IDLE) as engine:
        chat_id = await live(engine)
        lines = engine.export_chat(chat_id)
        await anext(lines)
        for path in [*(tmp_path / "files").rglob(digest_of(LARGE))]:
            path.unlink()
        with pytest.raises(ChatUnreadable, match="is not there, since the export began; export the chat again"):
            [line async for line in lines]


async def test_a_damaged_file_is_found_by_who_verifies(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chats.db'}"
    async with Engine(url, model=MODEL, files=FolderFiles(tmp_path / "files"), settings=IDLE) as engine:
        chat_id = await live(engine)
        assert (await engine.verify(chat_id, files=True, family=True)).ok
        for path in [*(tmp_path / "files").rglob(digest_of(LARGE))]:
            path.write_bytes(LARGE[:-1] + bytes([LARGE[-1] ^ 1]))
        verdict = await engine.verify(chat_id, files=True, family=True)
        assert "is damaged: its bytes are not those that it is named after" in (verdict.problem or "")


def _chain(lines: list[str]) -> list[str]:
    """Make the hashes of the lines anew."""
    prev, made = GENESIS, []
    for line in lines:
        fields = json.loads(line)
        fields.pop("hash")
        prev = chain_hash(prev, fields)
        made.append(json.dumps(fields | {"hash": prev}))
    return made


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
)
async def test_files_that_are_not_the_chats_are_refused_and_nothing_is_written(
    change: Callable[[list[str]], list[str]], problem: str, tmp_path: Path
) -> None:
    """Although all hashes were made anew."""
    async with Engine("sqlite://", model=MODEL, settings=IDLE) as engine:
        chat_id = await live(engine)
        lines = _chain(change(await exported(engine, chat_id)))
    async with Engine(f"sqlite:///{tmp_path / 'chats.db'}", model=MODEL, settings=IDLE) as engine:
        with pytest.raises(ImportRefused, match=problem):
            await engine.import_chat(lines)
        assert await engine._store.held_files(chat_id) == {}
        assert await engine._store.file_store().size(digest_of(LARGE)) is None


async def test_an_import_that_is_given_up_leaves_what_a_sweep_removes(either_url: str) -> None:
    """Whoever gives the lines may never come to an end."""
    async with Engine("sqlite://", model=MODEL, settings=IDLE) as engine:
        lines = await exported(engine, await live(engine))

    async def endless(begun: anyio.Event) -> AsyncIterator[str]:
        for line in lines[:-1]:
            yield line
        begun.set()
        await anyio.sleep_forever()

    async with Engine(either_url, model=MODEL, settings=IDLE) as engine:
        async with anyio.create_task_group() as tasks:
            begun = anyio.Event()
            tasks.start_soon(engine.import_chat, endless(begun))
            await begun.wait()
            tasks.cancel_scope.cancel()
        assert await engine._store.loose_files(limit=10) == []
        assert await engine._store.file_store().size(digest_of(LARGE)) is None


@pytest.mark.parametrize("problem", ["No such file", "No space left"])
async def test_a_temporary_folder_that_takes_no_files_refuses_a_chat_with_files_and_no_other(
    problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the operating system is no error that a caller, or a client of the service, is told of."""
    async with Engine("sqlite://", model=MODEL, settings=IDLE) as engine:
        with_files = await exported(engine, await live(engine))
        without = await exported(engine, (await engine.create_chat()).id)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    if problem == "No space left":
        monkeypatch.setattr(Spool, "_path", lambda _spool, _digest: Path("/dev/full"))
    async with Engine("sqlite://", model=MODEL, settings=IDLE) as engine:
        await engine.import_chat(without)
        with pytest.raises(StoreError, match=f"the temporary folder.*{problem}.*nothing was written"):
            await engine.import_chat(with_files)
        assert len((await engine.list_chats()).items) == 1
