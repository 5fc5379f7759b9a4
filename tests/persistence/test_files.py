"""Files on each store: streamed in, referred to by messages, loaded for requests, gone with who referred to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

from support.files import BIG, digest_of, loaded, whole
from turnwise import Engine, FileNotFound, FilePart, FolderFiles, Settings, TextPart, ToolContext, ToolOutput, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel

SETTINGS = Settings(run_worker=False)


@pytest.fixture(params=["database", "folder"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> FolderFiles | None:
    """Return where files are kept."""
    return FolderFiles(tmp_path / "files") if request.param == "folder" else None


@pytest.mark.parametrize("either_url", ["sqlite", "postgres"], indirect=True)
async def test_file_reaches_the_model_and_is_read_back(either_url: str, files: FolderFiles | None) -> None:
    """On both stores: the history, the events and the log hold a reference, the model gets the bytes."""
    model = ScriptedModel("seen")
    async with Engine(either_url, model=model, files=files) as engine:
        chat = await engine.create_chat()
        file = await engine.put_file(chat.id, BIG, media_type="image/png", name="cat.png")
        assert file == FilePart(media_type="image/png", name="cat.png", blob=digest_of(BIG), size=len(BIG))
        await engine.ask(chat.id, [TextPart(text="look"), file])
        assert (await engine.messages(chat.id))[0].parts[1] == file
        assert loaded(model.requests[0]) == [BIG]
        assert await whole(engine, chat.id, file) == await whole(engine, chat.id, digest_of(BIG)) == BIG
        told = "".join([event.model_dump_json() async for event in engine.events(chat.id, follow=False)])
        assert len(told) < 10_000
        assert (await engine.verify(chat.id)).ok


async def test_files_of_other_chats_are_not_found(either_url: str) -> None:
    """Who knows a digest has not got the bytes: it is refused in the same words as one that never was."""
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
    """Sent, queued, edited, and edited in the queue; small ones stay as they are."""
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
