"""Files move with their chats between stores, are checked on the way, and can be verified where they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.exploring import few
from support.files import BIG, digest_of, whole
from turnwise import Engine, FilePart, FolderFiles, ImportRefused, Settings, TextPart
from turnwise.persistence.audit.record import GENESIS
from turnwise.persistence.chat_file.format import chain_hash
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
async def test_chat_moves_with_its_files(back: bool, postgres_url: str, tmp_path: Path) -> None:
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
    """Although all hashes were made anew."""
    async with Engine("sqlite://", model=MODEL, settings=IDLE) as engine:
        chat_id = await live(engine)
        lines = _chain(change(await exported(engine, chat_id)))
    async with Engine(f"sqlite:///{tmp_path / 'chats.db'}", model=MODEL, settings=IDLE) as engine:
        with pytest.raises(ImportRefused, match=problem):
            await engine.import_chat(lines)
        assert await engine._store.held_files(chat_id) == {}
        assert await engine._store.file_store().size(digest_of(LARGE)) is None
