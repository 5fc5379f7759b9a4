"""Files: refusals, notes to the model, and retention."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from support.clock import pass_time
from support.engines import OpenChat, OpenEngine
from support.files import BIG, digest_of, loaded, whole
from turnwise import Engine, FilePart, FolderFiles, ModelPart, Settings, TextPart, ToolContext, ToolOutput, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.errors import ChatNotFound, FileNotFound, InvalidArgument, InvalidContent, StoreError
from turnwise.states.messages import ToolResultPart
from turnwise.testing import ManualClock


async def _streamed() -> AsyncIterator[bytes]:
    yield b"one "
    yield b"two"


@pytest.mark.parametrize("is_stored", [False, True])
async def test_model_reads_the_chosen_lines_only(open_chat: OpenChat, is_stored: bool) -> None:
    text = b"one\ntwo\r\nthree\nfour"
    async with open_chat(["Read."] * 3) as (engine, chat, model):
        file = FilePart.from_bytes(text, "text/plain", name="a.txt")
        if is_stored:
            file = await engine.put_file(chat.id, text, media_type="text/plain", name="a.txt")
        for lines in ((2, 3), (4, 9), (5, 9)):
            await engine.ask(chat.id, [replace(file, lines=lines)])
        sent = [message.parts[0] for message in model.requests[-1].messages if message.role == "user"]
        read = [(b64decode(one.data or ""), one.name) for one in sent if isinstance(one, FilePart)]
        assert read == [(b"two\r\nthree\n", "a.txt, lines 2 to 3"), (b"four", "a.txt, lines 4 to 9")]
        assert isinstance(sent[-1], TextPart)
        assert "it has 4 lines, and the part begins at line 5" in sent[-1].text
        stored = [one.parts[0] for one in await engine.messages(chat.id) if one.role == "user"]
        assert [(one.lines, await whole(engine, chat.id, one)) for one in stored if isinstance(one, FilePart)] == [
            ((2, 3), text), ((4, 9), text), ((5, 9), text)
        ]  # fmt: skip


@pytest.mark.parametrize("content", [b"one two", [b"one ", b"two"], _streamed, Path])
async def test_put_file_takes_bytes_paths_and_iterables(content: Any, tmp_path: Path, open_chat: OpenChat) -> None:
    """Also at exactly the largest allowed size."""
    if content is Path:
        content = tmp_path / "notes.txt"
        content.write_bytes(b"one two")
    async with open_chat(ScriptedModel([]), settings=Settings(file_limit_bytes=7)) as (engine, chat, _):
        source = content() if callable(content) else content
        kind = None if isinstance(source, Path) else "text/plain"
        file = await engine.put_file(chat.id, source, media_type=kind)
        assert file == FilePart(
            media_type="text/plain",
            name="notes.txt" if isinstance(source, Path) else None,
            blob=digest_of(b"one two"),
            size=7,
        )
        assert await whole(engine, chat.id, file) == b"one two"
        assert await whole(engine, chat.id, FilePart.from_bytes(b"hi", "image/png")) == b"hi", "inline"


def _breaks() -> Iterator[bytes]:
    yield b"one"
    raise ConnectionError("gone")


@pytest.mark.parametrize(
    ("content", "options", "problem"),
    [
        (b"", {"media_type": "image/png"}, "must not be empty"),
        (b"x", {}, "give media_type="),
        (b"x", {"media_type": "png"}, "needs a media type"),
        (
            b"x",
            {"media_type": "text/html"},
            r"'text/html' are not allowed here \(Settings.file_types: image/\*, text/pl",
        ),
        (b"x" * 11, {"media_type": "image/png"}, r"at most 10 bytes \(Settings.file_limit_bytes\); this one has 11"),
        ([b"x" * 6, b"x" * 6], {"media_type": "image/png"}, "at most 10 bytes .* this one has more"),
        (["text"], {"media_type": "image/png"}, "must yield bytes; it yielded 'text'"),
        (3, {"media_type": "image/png"}, "must be a path, bytes, or something that yields bytes; it was 3"),
        ("nowhere.png", {}, "cannot be read: FileNotFoundError"),
        ("/dev/zero", {"media_type": "image/png"}, "cannot be read: it is no file"),
        ("a\0b.png", {}, "cannot be read"),
        (_breaks, {"media_type": "image/png"}, "cannot be read to its end: ConnectionError: gone"),
    ],
)
async def test_invalid_file_is_refused_and_not_stored(
    content: Any, options: Any, problem: str, open_chat: OpenChat
) -> None:
    settings = Settings(file_limit_bytes=10, file_types=["image/*", "text/plain"])
    async with open_chat(ScriptedModel([]), settings=settings) as (engine, chat, _):
        with pytest.raises(InvalidContent, match=f"(?s){problem}.*nothing was written"):
            await engine.put_file(chat.id, content() if callable(content) else content, **options)
        assert await engine._store.held_files(chat.id) == {}
        assert await engine._store.file_store().size(digest_of(b"one")) is None


@pytest.mark.parametrize("file", ["../../etc/passwd", "half \ud800", "x" * 500, FilePart(media_type="a/b", url="x:y")])
async def test_opening_an_unknown_file_raises(file: Any, open_chat: OpenChat) -> None:
    """Every terminal and log can show the text of the error."""
    async with open_chat(ScriptedModel([])) as (engine, chat, _):
        with pytest.raises((InvalidArgument, FileNotFound)) as refused:
            await whole(engine, chat.id, file)
        assert len(str(refused.value).encode()) < 500
        with pytest.raises((InvalidArgument, ChatNotFound)):
            await whole(engine, "nobody", file)


async def test_file_limits_apply_to_inline_files(open_chat: OpenChat) -> None:
    """Nothing of a message with one good and one bad file is stored."""
    settings = Settings(file_types=["image/*"], file_limit_bytes=400_000)
    async with open_chat(ScriptedModel([]), settings=settings) as (engine, chat, _):
        good = FilePart.from_bytes(BIG, "image/png")
        content = b64encode(bytes(400_001)).decode()
        for bad, problem in (
            (FilePart.from_bytes(b"x", "text/html"), "not allowed here"),
            (FilePart(media_type="video/mp4", url="https://example.org/x"), "not allowed here"),
            (FilePart.from_bytes(bytes(400_001), "image/png"), "at most 400,000 bytes"),
            (FilePart(media_type="image/png", url=f"data:image/png;base64,{content}"), "at most 400,000 bytes"),
        ):
            for command in (engine.send_message(chat.id, [good, bad]), engine.create_chat(message=[good, bad])):
                with pytest.raises(InvalidContent, match=problem):
                    await command
        assert await engine._store.held_files(chat.id) == {}
        assert await engine.chat_ids() == [chat.id]


async def test_large_data_url_is_stored_as_a_reference(open_chat: OpenChat) -> None:
    async with open_chat(ScriptedModel([])) as (engine, chat, _):
        url = f"data:text/plain;base64,{b64encode(BIG).decode()}"
        await engine.send_message(chat.id, [FilePart(media_type="image/png", url=url, name="a.png")])
        (part,) = (await engine.messages(chat.id))[0].parts
        assert (part.url, part.data, part.media_type, part.name) == (None, None, "image/png", "a.png")
        assert await whole(engine, chat.id, part) == BIG


async def test_inline_limit_is_inclusive(open_engine: OpenEngine) -> None:
    async with open_engine(ScriptedModel([]), settings=Settings(inline_file_bytes=10, run_worker=False)) as engine:
        chat = await engine.create_chat()
        most, more = (FilePart.from_bytes(b"x" * size, "image/png") for size in (10, 11))
        away = FilePart(media_type="image/png", url="https://example.org/a.png")
        await engine.send_message(chat.id, [most, away, more])
        for one in (chat, await engine.create_chat(message=[most, away, more])):
            (message,) = await engine.messages(one.id)
            assert message.parts == (most, away, FilePart(media_type="image/png", blob=digest_of(b"x" * 11), size=11))
            assert await whole(engine, one.id, message.parts[2]) == b"x" * 11


BAD_ATTACHMENTS = {
    FilePart(media_type="image/png", blob="0" * 64, name="foreign.png"): "the file 0000",
    FilePart.from_bytes(b"<p>", "text/html", name="page.html"): "files of the type 'text/html' are not allowed here",
    FilePart(media_type="image/png", data="no base64", name="broken.png"): "the data of a file must be base64",
    FilePart(media_type="image/png", name="empty.png"): "a file is given inline (data, base64), by address (url) or by",
    FilePart(
        media_type="image/png", data="eA==", name="a\0b"
    ): "what is said of a file must not hold the character NUL",
}


@tool
async def misuse(context: ToolContext) -> ToolOutput:
    """Attach files that are refused, and one that is accepted."""
    good = await context.put_file(b"good", media_type="image/png")
    return ToolOutput({"pages": 3}, (*BAD_ATTACHMENTS, good))


@tool
async def overdo(context: ToolContext) -> ToolOutput:
    """Attach too much."""
    return ToolOutput("never", (await context.put_file(bytes(2_000_000), media_type="image/png"),))


async def test_bad_attachment_becomes_a_note(open_chat: OpenChat) -> None:
    """For foreign, forbidden, malformed and too large files the turn continues."""
    model = ScriptedModel([Reply(calls=[Call("misuse", {}), Call("overdo", {})]), "I see"])
    settings = Settings(file_types=["image/*"], file_limit_bytes=1_000_000)
    async with open_chat(model, tools=[misuse, overdo], settings=settings) as (engine, chat, _):
        done = await engine.ask(chat.id, "go")
        assert done.chat.state == "waiting"
        first, second = [
            part for message in model.requests[1].messages for part in message.parts if isinstance(part, ToolResultPart)
        ]
        output, *notes = str(first.output).split("\n")
        assert output == '{"pages":3}'
        for note, (file, problem) in zip(notes, BAD_ATTACHMENTS.items(), strict=True):
            assert note.startswith(f"[the file {file.name} was left out: {problem}")
        assert [b64decode(file.data or "") for file in first.attachments] == [b"good"]
        assert second.is_error
        assert "at most 1,000,000 bytes" in str(second.output)


async def test_missing_or_damaged_file_becomes_a_note(tmp_path: Path, open_chat: OpenChat) -> None:
    """The file was deleted from the folder or changed there."""
    async with open_chat(lambda _request: Reply("ok"), files=FolderFiles(tmp_path / "files")) as (engine, chat, model):
        gone = await engine.put_file(chat.id, b"gone", media_type="image/png", name="gone.png")
        damaged = await engine.put_file(chat.id, b"damaged", media_type="image/png", name="damaged.png")
        await engine.ask(chat.id, [TextPart(text="look"), gone, damaged])
        for path in (tmp_path / "files").rglob("*"):
            if path.name == gone.blob:
                path.unlink()
            elif path.name == damaged.blob:
                path.write_bytes(b"DAMAGED")
        done = await engine.ask(chat.id, "and now?")
        assert done.chat.state == "waiting"
        notes = " ".join(part.text for part in model.requests[-1].messages[0].parts if isinstance(part, TextPart))
        assert "The file gone.png (image/png) is left out here: it is gone." in notes
        assert "The file damaged.png (image/png) is left out here: it is damaged" in notes
        with pytest.raises(FileNotFound, match="is not there"):
            await whole(engine, chat.id, gone)
        with pytest.raises(FileNotFound, match="is damaged"):
            await whole(engine, chat.id, damaged)
        with pytest.raises(FileNotFound, match="is gone from the file store"):
            await engine.send_message(chat.id, [gone])


async def test_request_holds_the_newest_files_up_to_a_limit(open_chat: OpenChat) -> None:
    """A note replaces each older file."""
    model = ScriptedModel(lambda _request: Reply("ok"))
    async with open_chat(model, settings=Settings(request_file_bytes=1_000)) as (engine, chat, _):
        for name, times in (("small", 1), ("first", 80), ("second", 80), ("third", 80)):
            file = await engine.put_file(chat.id, name.encode() * times, media_type="text/plain", name=name)
            await engine.ask(chat.id, [TextPart(text="read"), file])
        assert loaded(model.requests[-1]) == [b"second" * 80, b"third" * 80]
        for name, place in (("small", 0), ("first", 2)):
            note = f"The file {name} (text/plain) is left out here: newer files"
            assert note in str(model.requests[-1].messages[place].parts)


async def test_repeated_file_counts_once_towards_the_limit(open_chat: OpenChat) -> None:
    """Files that the model refuses are not loaded; the model's capability is read once per request."""
    model = Choosy(lambda _request: Reply("ok"))
    async with open_chat(model, settings=Settings(request_file_bytes=900)) as (engine, chat, _):
        early, late = [
            await engine.put_file(chat.id, name * 100, media_type="text/plain") for name in (b"soon", b"later")
        ]
        film = await engine.put_file(chat.id, bytes(1_000), media_type="video/mp4", name="film")
        await engine.ask(chat.id, [early, film])
        for _ in range(2):
            await engine.ask(chat.id, [late, film])
        assert loaded(model.requests[-1]) == [b"soon" * 100, b"later" * 100, b"later" * 100]
        note = "The file film (video/mp4) is left out here: no video/mp4 of 1000."
        assert str(model.requests[-1].messages).count(note) == 3
        assert model.asked_about.count("video/mp4") == len(model.requests)


async def test_large_file_made_by_a_model_is_stored_as_a_reference(
    open_engine: OpenEngine, open_chat: OpenChat
) -> None:
    """The model gets the bytes back; a file that cannot be stored stays in the message."""
    part = ModelPart(type="file", media_type="image/png", data=b64encode(BIG).decode())
    model = ScriptedModel(
        [Reply(parts=[part, ModelPart(type="finish")]), "again", Reply(parts=[part, ModelPart(type="finish")])]
    )
    async with open_chat(model) as (engine, chat, _):
        await engine.ask(chat.id, "draw")
        await engine.ask(chat.id, "what was it?")
        (file,) = (await engine.messages(chat.id))[1].parts
        assert file == FilePart(media_type="image/png", blob=digest_of(BIG), size=len(BIG))
        assert loaded(model.requests[1]) == [BIG]
    async with open_engine(model, settings=Settings(file_limit_bytes=1000)) as engine:
        await engine.ask(chat.id, "draw again")
        (file,) = (await engine.messages(chat.id))[-1].parts
        assert b64decode(file.data or "") == BIG


class Choosy(ScriptedModel):
    """A model that takes no videos."""

    def __init__(self, replies: Any) -> None:
        super().__init__(replies)
        self.asked_about: list[str] = []

    def refuses_file(self, media_type: str, size: int) -> str | None:
        self.asked_about.append(media_type)
        return f"no {media_type} of {size}" if media_type == "video/mp4" else None


class Failing(FolderFiles):
    """A folder that is unreachable at times."""

    away = False
    reads = 0
    """How often an existing file was read."""

    async def read(self, digest: str) -> AsyncIterator[bytes]:
        if self.away:
            raise OSError("stale handle")
        self.reads += 1
        async for piece in super().read(digest):
            yield piece


async def test_unreachable_file_store_is_retried(tmp_path: Path, open_chat: OpenChat) -> None:
    """The attempt is repeated, and the model sees no missing file. A foreign error is translated."""
    clock = ManualClock()
    files = Failing(tmp_path / "files")
    model = ScriptedModel(lambda _request: Reply("ok"))
    async with open_chat(model, files=files, clock=clock) as (engine, chat, _):
        file = await engine.put_file(chat.id, BIG, media_type="image/png")
        files.away = True
        with pytest.raises(StoreError, match="stale handle"):
            await whole(engine, chat.id, file)
        receipt = await engine.send_message(chat.id, [file])
        async for event in engine.events(chat.id, after=receipt.seq):
            if event.kind == "retry":
                files.away = False
                await pass_time(clock, event.delay)
                break
        await engine.wait(chat.id, until={"waiting"})
        assert [loaded(request) for request in model.requests] == [[BIG]]


async def test_unsent_file_is_deleted_later(open_chat: OpenChat) -> None:
    """A worker deletes it; files of messages stay."""
    clock = ManualClock()
    async with open_chat(ScriptedModel(lambda _request: Reply("ok")), clock=clock) as (engine, chat, _):
        sent = await engine.put_file(chat.id, b"sent", media_type="image/png")
        unsent = await engine.put_file(chat.id, b"unsent", media_type="image/png")
        await engine.ask(chat.id, [sent])
        blobs = engine._store.file_store()
        with anyio.fail_after(60):
            while await blobs.size(unsent.blob or "") is not None:
                clock.advance(20_000)
                await anyio.lowlevel.checkpoint()
        assert await whole(engine, chat.id, sent) == b"sent"
        with pytest.raises(FileNotFound):
            await engine.send_message(chat.id, [unsent])


def open_handles(folder: Path) -> list[str]:
    """Return the files below a folder that this process has open."""
    links = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    return [link for link in links if link.startswith(str(folder))]


async def test_full_disk_leaves_no_file_open(tmp_path: Path) -> None:
    """Otherwise a process that copies files to a full disk runs out of descriptors before a garbage collection."""
    source, folder = tmp_path / "source.txt", tmp_path / "files"
    source.write_bytes(b"x" * 1_000_000)
    limits, refused = resource.getrlimit(resource.RLIMIT_FSIZE), list[Exception]()
    async with Engine("sqlite://", model=ScriptedModel([]), files=FolderFiles(folder)) as engine:
        chat = await engine.create_chat()
        gc.disable()
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limits[1]))
        try:
            for _ in range(3):
                try:
                    await engine.put_file(chat.id, source)
                except StoreError as error:
                    refused.append(error)
            assert ([type(error) for error in refused], open_handles(tmp_path)) == ([StoreError] * 3, [])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            gc.enable()


def test_erasing_needs_no_free_descriptor_to_import() -> None:
    code = """
import anyio, os, resource
from turnwise import Engine, StoreError
async def main():
    async with Engine("sqlite://", model="demo") as engine:
        chat = await engine.create_chat()
        await engine.ask(chat.id, "hello")
        (message, *_) = await engine.messages(chat.id)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, 4096))
        try:
            await engine.erase_message(chat.id, message.id)
        except StoreError as error:
            print(error)
        print("done")
anyio.run(main)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stdout.endswith("done\n"), ended.stderr
