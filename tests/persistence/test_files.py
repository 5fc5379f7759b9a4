"""Files on each store: uploaded, referenced by messages, loaded for requests, deleted with the last reference."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

from support.files import BIG, digest_of, loaded, whole
from support.sql_by_hand import by_hand
from turnwise import Engine, FileNotFound, FilePart, FolderFiles, Settings, TextPart, ToolContext, ToolOutput, tool
from turnwise.engine.admin.diagnose import Diagnosis
from turnwise.persistence.blobs.protocol import PIECE
from turnwise.providers.scripted import Call, Reply, ScriptedModel

SETTINGS = Settings(run_worker=False)


@pytest.fixture(params=["database", "folder"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> FolderFiles | None:
    """Return the place of files."""
    return FolderFiles(tmp_path / "files") if request.param == "folder" else None


@pytest.mark.parametrize("either_url", ["sqlite", "postgres"], indirect=True)
async def test_file_reaches_the_model_and_is_read_back(either_url: str, files: FolderFiles | None) -> None:
    """History, events and log hold a reference, the model gets the bytes."""
    model = ScriptedModel("seen")
    async with Engine(either_url, model=model, files=files) as engine:
        chat = await engine.create_chat()
        file = await engine.put_file(chat.id, BIG, media_type="image/png", name="cat.png")
        assert file == FilePart(media_type="image/png", name="cat.png", blob=digest_of(BIG), size=len(BIG))
        await engine.ask(chat.id, [TextPart(text="look"), file])
        assert (await engine.messages(chat.id))[0].parts[1] == file
        assert loaded(model.requests[0]) == [BIG]
        assert await whole(engine, chat.id, file) == await whole(engine, chat.id, digest_of(BIG)) == BIG
        events = "".join([event.model_dump_json() async for event in engine.events(chat.id, follow=False)])
        assert len(events) < 10_000
        assert (await engine.verify(chat.id)).ok


async def test_files_of_other_chats_are_not_found(either_url: str) -> None:
    """Files of other chats are indistinguishable from files that never existed."""
    async with Engine(either_url, model=ScriptedModel("ok"), settings=SETTINGS) as engine:
        mine, yours = await engine.create_chat(), await engine.create_chat()
        file = await engine.put_file(mine.id, BIG, media_type="image/png")
        never = FilePart(media_type="image/png", blob="0" * 64)
        for part in (file, never):
            for call in (
                engine.send_message(yours.id, [part]),
                engine.send_message(yours.id, [TextPart(text="hi"), part], when_busy="interrupt"),
                whole(engine, yours.id, part),
            ):
                with pytest.raises(FileNotFound, match=f"{part.blob} is not there.*nothing was written") as caught:
                    await call
                assert (caught.value.chat_id, caught.value.digest) == (yours.id, part.blob)
        assert await engine.messages(yours.id) == await engine.queued(yours.id) == []
        await engine.send_message(mine.id, [file])
        (waiting,) = await engine.messages(mine.id)
        with pytest.raises(FileNotFound):
            await engine.edit_message(yours.id, waiting.id, [file])


async def test_large_inline_files_become_references(either_url: str) -> None:
    """Sent, queued, edited, and edited in the queue; small ones stay inline."""
    small = FilePart.from_bytes(b"small", "image/png")
    big = FilePart.from_bytes(BIG, "image/png", name="big.png")
    refers = FilePart(media_type="image/png", name="big.png", blob=digest_of(BIG), size=len(BIG))
    async with Engine(either_url, model=ScriptedModel([]), settings=SETTINGS) as engine:
        chat = await engine.create_chat()
        sent = await engine.send_message(chat.id, [small, big])
        assert (await engine.messages(chat.id))[0].parts == (small, refers)
        waits = await engine.send_message(chat.id, [big])
        assert (await engine.queued(chat.id))[0].parts == (refers,)
        await engine.edit_queued(chat.id, waits.message_id, [small, big])
        assert (await engine.queued(chat.id))[0].parts == (small, refers)
        await engine.edit_message(chat.id, sent.message_id, [big, small])
        assert (await engine.messages(chat.id))[0].parts == (refers, small)
        assert await whole(engine, chat.id, refers) == BIG


@tool
async def draw(context: ToolContext) -> ToolOutput:
    """Draw a picture."""
    file = await context.put_file([BIG[:100_000], BIG[100_000:]], media_type="image/png", name="drawn.png")
    return ToolOutput("drawn", (file,))


@tool
def scan(context: ToolContext) -> ToolOutput:
    """Scan a picture, in a thread."""

    async def put() -> FilePart:
        return await context.put_file(BIG, media_type="image/png", name="scanned.png")

    return ToolOutput({"pages": 1}, (anyio.from_thread.run(put),))


@tool
async def hand_over() -> ToolOutput:
    """Hand over a picture as it is."""
    return ToolOutput("there", (FilePart.from_bytes(BIG, "image/png"), FilePart.from_bytes(b"tiny", "image/png")))


@pytest.mark.parametrize("made_by", [draw, scan, hand_over])
async def test_tool_attaches_files(made_by: Any, either_url: str) -> None:
    """The result refers to them, and the next request has the bytes."""
    model = ScriptedModel([Reply(calls=[Call(made_by.name, {})]), "I see"])
    async with Engine(either_url, model=model, tools=[made_by]) as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "go")
        result = next(message.result for message in await engine.messages(chat.id) if message.result is not None)
        assert result.attachments[0].blob == digest_of(BIG)
        assert loaded(model.requests[1])[0] == BIG
        assert await whole(engine, chat.id, result.attachments[0]) == BIG
        assert (await engine.verify(chat.id)).ok


# Files that are gone or damaged


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
    """Delete the scan."""
    if folder is not None:
        _path(folder).unlink()
    else:
        await by_hand(url, f"DELETE FROM blobs WHERE digest = '{digest_of(SCAN)}'")  # noqa: S608


async def shorter(url: str, folder: Path | None) -> None:
    """Delete the last piece of the scan."""
    if folder is not None:
        _path(folder).write_bytes(SCAN[:PIECE])
    else:
        await by_hand(url, f"DELETE FROM blob_pieces WHERE number = 1 AND place = {_PLACE}")  # noqa: S608


async def changed(url: str, folder: Path | None) -> None:
    """Change a byte of the scan; its size stays."""
    if folder is not None:
        _path(folder).write_bytes(SCAN[:-1] + b"?")
        return
    data = "x'746865206e6f64'" if url.startswith("sqlite") else r"'\x746865206e6f64'"
    await by_hand(url, f"UPDATE blob_pieces SET data = {data} WHERE number = 1 AND place = {_PLACE}")  # noqa: S608


_PLACE: Final = f"(SELECT place FROM blobs WHERE digest = '{digest_of(SCAN)}')"  # noqa: S608
_SHORT: Final = f"is damaged: {PIECE:,} bytes, expected {len(SCAN):,}"
_CHANGED: Final = "is damaged: its bytes are not those that it is named after"


def _path(folder: Path) -> Path:
    (path,) = (folder / "blobs").rglob(digest_of(SCAN))
    return path


@pytest.fixture(params=["database", "folder"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """Return the folder of files, unless the database holds them."""
    return tmp_path / "files" if request.param == "folder" else None


@pytest.mark.parametrize(
    ("damage", "problem_found", "problem_found_by_reading"),
    [(gone, "is not there", "is not there"), (shorter, _SHORT, _SHORT), (changed, None, _CHANGED)],
)
async def test_lost_file_is_reported_with_its_message(
    damage: Damage, problem_found: str | None, problem_found_by_reading: str, either_url: str, folder: Path | None
) -> None:
    """Other content and other chats stay readable; only reading the bytes reveals every damage."""
    async with opened(either_url, folder) as engine:
        other, chat_id = await engine.create_chat(), await live(engine)
        for files in (False, True):
            assert await diagnosed(engine, files=files) == []
        await damage(either_url, folder)
        for files, problem in ((False, problem_found), (True, problem_found_by_reading)):
            found = await diagnosed(engine, files=files)
            assert [(each.chat_id, each.issues) for each in found] == ([(chat_id, ())] if problem else [])
            for (lost,) in (each.files for each in found):
                assert (lost.digest, lost.problem) == (digest_of(SCAN), problem)
                assert (lost.place, lost.part) == ("messages[m1].body", 1)
                assert (lost.name, lost.media_type) == ("scan.png", "image/png")
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


async def test_invalid_reference_is_left_out_of_requests(either_url: str) -> None:
    """The message is damaged: a database may refuse such a text in a query."""
    async with opened(either_url, None) as engine:
        chat_id = await live(engine)
    await by_hand(either_url, f"UPDATE messages SET body = replace(body, '{digest_of(SCAN)}', '\\u0000')")  # noqa: S608
    model = ScriptedModel(lambda _request: Reply("seen"))
    async with Engine(either_url, model=model) as engine:
        chat = await engine.wait(chat_id, timeout=60)
    assert chat.state == "waiting"
    assert "The file scan.png (image/png) is left out here: it is gone." in model.requests[0].messages[0].text
