"""The conformance suite over files in buckets; and what only a bucket can meet."""

from __future__ import annotations

import http.server
import itertools
import shutil
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from obstore.store import HTTPStore, LocalStore, MemoryStore

from support.files import BIG, digest_of, whole
from support.processes.s3_server import S3Server, s3_store
from turnwise import BucketFiles, Engine, FileNotFound, FilePart, FolderFiles, Settings, SettingsError, StoreError
from turnwise.persistence.conformance import FilesConformance, plans
from turnwise.persistence.conformance.checks import failure_of
from turnwise.persistence.conformance.files import blob_of, holding, of, read
from turnwise.persistence.files import bucket
from turnwise.persistence.files.intact import intact
from turnwise.persistence.files.objects import Objects
from turnwise.persistence.files.protocol import Blob, BlobGone
from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.providers.scripted import Reply, ScriptedModel

SMALL = 500_000
"""Bytes of an object in tests that need several of them, and no megabytes."""


@pytest.fixture
async def store() -> AsyncIterator[ChatStore]:
    store = SQLiteStore(None)
    await store.open()
    yield store
    await store.close()


@pytest.fixture(params=["memory", "local", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return an empty bucket."""
    match request.param:
        case "memory":
            return MemoryStore()
        case "local":
            return LocalStore(tmp_path / "bucket", mkdir=True)
    server: S3Server = request.getfixturevalue("s3_server")
    return s3_store(server.port, server.new_bucket())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an object hold little."""
    monkeypatch.setattr(bucket, "PIECE", SMALL)


class TestBucket(FilesConformance):
    """An object holds more than the suite puts: in memory it does here, too, and elsewhere it holds less."""

    @pytest.fixture(autouse=True)
    def bucket(self, objects: Any, request: pytest.FixtureRequest) -> None:
        self._objects = objects
        if not isinstance(objects, MemoryStore):
            request.getfixturevalue("small")

    async def files_beside(self, store: ChatStore) -> BucketFiles:
        files = BucketFiles(self._objects, prefix="chats/files")
        await files.open()
        return files


CONTENT = bytes(range(256)) * 5_000
"""Three objects, if they are small."""
DIGEST = digest_of(CONTENT)


async def opened(objects: Any, prefix: str = "") -> BucketFiles:
    files = BucketFiles(objects, prefix=prefix)
    await files.open()
    return files


async def nobody(blob: Blob) -> None:
    """Note nothing."""


async def loose() -> bool:
    return True


def keys_in(objects: Any, folder: str = "") -> list[str]:
    """Return the keys of all objects but the one with the name of the bucket."""
    return sorted(one["path"] for one in objects.list(folder or None).collect() if one["path"] != "name")


async def test_the_same_content_again_leaves_one_blob_that_the_last_removal_takes(objects: Any, small: None) -> None:
    """Neither copies of it stay, nor marks of puts."""
    files = await opened(objects)
    for _ in range(3):
        assert await files.put(of(CONTENT), nobody) == blob_of(CONTENT)
        assert [key.partition("/")[0] for key in keys_in(objects)] == ["blobs", "pieces", "pieces"]
    await files.remove(DIGEST, loose)
    assert keys_in(objects) == []
    await files.remove(DIGEST, loose)


async def test_a_put_that_is_given_up_leaves_no_bytes_and_its_mark_is_tidied(small: None) -> None:
    """Whether its content breaks, or its note, or the caller is cancelled."""
    objects = MemoryStore()
    files = await opened(objects)

    async def broken() -> AsyncIterator[bytes]:
        yield CONTENT
        raise ConnectionError

    async def refuse(_: Blob) -> None:
        raise StoreError("nobody may hold it")

    async def cancel(_: Blob) -> None:
        scope.cancel()
        await anyio.sleep_forever()

    await failure_of(files.put(broken(), nobody), ConnectionError)
    await failure_of(files.put(of(CONTENT), refuse), StoreError)
    with anyio.CancelScope() as scope:
        await files.put(of(CONTENT), cancel)
    assert {key.partition("/")[0] for key in keys_in(objects)} == {"arriving"}
    await files.tidy(3600)
    assert len(keys_in(objects)) == 5
    await files.tidy(0)
    await files.tidy(0)
    assert keys_in(objects) == []


async def test_a_put_that_was_tidied_away_because_it_went_on_too_slowly_says_so(small: None) -> None:
    """It names nothing: half of its pieces are gone. What it has added since goes with the next call."""
    objects = MemoryStore()
    files = await opened(objects)

    async def note(_: Blob) -> None:
        await files.tidy(0)
        assert keys_in(objects, "pieces") == []

    with pytest.raises(StoreError, match=r"swept while it was put"):
        await files.put(of(CONTENT), note)
    assert await files.size(DIGEST) is None
    await files.tidy(0)
    assert keys_in(objects) == []


async def test_a_reader_goes_on_where_the_same_content_was_put_again(objects: Any, small: None) -> None:
    """And is told if the blob was removed."""
    files = await opened(objects)
    await files.put(of(CONTENT), nobody)
    reading = files.read(DIGEST)
    found = await anext(reading)
    before = keys_in(objects, "pieces")
    await files.put(of(CONTENT), nobody)
    assert {*before}.isdisjoint(keys_in(objects, "pieces"))
    assert found + b"".join([piece async for piece in reading]) == CONTENT

    reading = files.read(DIGEST)
    await anext(reading)
    await files.remove(DIGEST, loose)
    with pytest.raises(BlobGone, match=r"was removed while it was read"):
        [piece async for piece in reading]


async def test_a_removal_hears_of_whoever_has_begun_to_hold_the_blob_meanwhile(store: ChatStore, objects: Any) -> None:
    """It asks after it has listed what it would delete."""
    files = await opened(objects)
    await plans.created(store, "chat")
    blob = await files.put(of(b"content"), nobody)

    async def held_in_between() -> bool:
        await files.put(of(b"content"), holding(store, "chat"))
        return await store.is_loose(blob.digest)

    await files.remove(blob.digest, held_in_between)
    assert await read(files, blob.digest) == b"content"

    async def held_afterwards() -> bool:
        await store.let_go(seconds=0, limit=10)
        answer = await store.is_loose(blob.digest)
        await files.put(of(b"content"), holding(store, "chat"))
        return answer

    await files.remove(blob.digest, held_afterwards)
    assert await read(files, blob.digest) == b"content"


async def test_what_somebody_has_damaged_is_found_out(small: None) -> None:
    """Bytes by who checks them; an object that is lost by everyone, from the beginning on."""
    objects = MemoryStore()
    files = await opened(objects)
    await files.put(of(CONTENT), nobody)
    first = keys_in(objects, "pieces")[0]
    objects.put(first, bytes(SMALL))
    assert len(await read(files, DIGEST)) == len(CONTENT)
    with pytest.raises(BlobGone, match=r"is damaged"):
        [piece async for piece in intact(DIGEST, files.read(DIGEST))]
    objects.delete(first)
    assert await files.size(DIGEST) is None
    with pytest.raises(BlobGone, match=r"is not there"):
        await anext(files.read(DIGEST))
    await files.put(of(CONTENT), nobody)
    assert await read(files, DIGEST) == CONTENT
    assert len(keys_in(objects)) == 3


async def test_a_bucket_has_one_name_whoever_opens_it_first(objects: Any) -> None:
    """Another part of it is another file store."""
    several = [BucketFiles(objects) for _ in range(4)]
    async with anyio.create_task_group() as tasks:
        for files in several:
            tasks.start_soon(files.open)
    (name,) = {files.name for files in several}
    assert (await opened(objects)).name == name
    assert (await opened(objects, "other")).name != name


async def test_a_bucket_that_is_not_the_one_is_a_store_error() -> None:
    """What was there is not gone, and nothing is put where nobody will find it."""
    objects = MemoryStore()
    files = await opened(objects)
    objects.delete("name")
    for call in (
        files.put(of(b"content"), nobody),
        files.size(DIGEST),
        read(files, DIGEST),
        files.remove(DIGEST, loose),
    ):
        with pytest.raises(StoreError, match=r"is no longer 'bucket .*': somebody has changed or emptied it"):
            await call
    objects.put("name", b"mine")
    with pytest.raises(StoreError, match=r"'name' is not of turnwise; choose another prefix"):
        await files.open()
    assert keys_in(objects) == []


async def test_a_file_that_is_still_there_is_read_though_the_name_of_the_bucket_is_gone() -> None:
    objects = MemoryStore()
    files = await opened(objects)
    await files.put(of(CONTENT), nobody)
    objects.delete("name")
    assert await read(files, DIGEST) == CONTENT


async def test_a_name_that_another_process_gives_is_looked_for_until_it_can_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S3 refuses to create it a second time before it shows it."""
    objects = MemoryStore()
    objects.put("name", b"bucket 0123456789abcdef")
    get, looks = Objects.get, itertools.count()

    async def late(self: Objects, key: str) -> memoryview | None:
        return None if next(looks) < 3 else await get(self, key)

    monkeypatch.setattr(Objects, "get", late)
    assert (await opened(objects)).name == "bucket 0123456789abcdef"
    looks = itertools.count(-1)  # one look more than there are
    with pytest.raises(StoreError, match="is not of turnwise"):
        await opened(objects)


async def test_a_bucket_that_cannot_be_used_is_a_store_error(s3_server: S3Server, tmp_path: Path) -> None:
    """It says which, and what is wrong there; no secret."""
    with pytest.raises(
        StoreError, match=r'the bucket S3Store\(bucket="nowhere"\) of files: NoSuchBucket: The specified'
    ):
        await opened(s3_store(s3_server.port, "nowhere"))
    with pytest.raises(StoreError, match=r"of files: .*error sending request") as caught:
        await opened(s3_store(1, "bucket"))
    assert "hunter2" not in str(caught.value)
    folder = tmp_path / "bucket"
    files = await opened(LocalStore(folder, mkdir=True))
    shutil.rmtree(folder)
    folder.write_text("a file")
    for call in (files.put(of(b"content"), nobody), files.size(DIGEST), files.tidy(0)):
        with pytest.raises(StoreError, match=r"the bucket LocalStore.*bucket.* of files"):
            await call


class _Refusing(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(403)
        self.end_headers()
        self.wfile.write(b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>")

    def log_message(self, *given: Any) -> None:
        """Say nothing."""


async def test_a_bucket_that_refuses_says_what_it_must_allow() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(
            StoreError, match=r"AccessDenied: Access Denied; its credentials must allow to put, get, list"
        ):
            await opened(s3_store(server.server_port, "bucket"))
        server.shutdown()


@pytest.mark.parametrize("objects", ["bucket", None, 3, MemoryStore, HTTPStore.from_url("https://host"), object()])
def test_what_is_no_bucket_is_refused(objects: Any) -> None:
    with pytest.raises(SettingsError, match=r"must be one of obstore.store: S3Store, .*; it was") as caught:
        BucketFiles(objects)
    assert caught.value.field == "store"


@pytest.mark.parametrize(
    "prefix", ["/a", "a/", "a//b", "..", "a/../b", "a/.", "a b", "a\n", "\0", "é", "x" * 513, 3, None]
)
def test_what_is_no_prefix_is_refused(prefix: Any) -> None:
    with pytest.raises(SettingsError, match=r"prefix"):
        BucketFiles(MemoryStore(), prefix=prefix)


def test_without_its_extra_a_bucket_is_answered_with_the_extras_name(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = MemoryStore()
    for module in [name for name in sys.modules if name.startswith(("obstore", "turnwise.persistence.files.objects"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(SettingsError, match=r"pip install 'turnwise\[bucket\]'") as caught:
        BucketFiles(objects)
    assert caught.value.field == "turnwise.persistence.files.objects"


MODEL = ScriptedModel(lambda _request: Reply("ok"))
IDLE = Settings(run_worker=False)


async def test_an_engine_keeps_its_files_in_a_bucket(objects: Any, small: None, tmp_path: Path) -> None:
    """They are sent, verified, moved with their chat, and gone with its erasure; another file store is refused."""
    url, big = f"sqlite:///{tmp_path / 'chats.db'}", BIG * 2
    async with Engine(url, model=MODEL, files=BucketFiles(objects)) as engine:
        chat = await engine.create_chat()
        file = await engine.put_file(chat.id, big, media_type="image/png")
        await engine.ask(chat.id, [file])
        assert await whole(engine, chat.id, file) == big
        assert (await engine.verify(chat.id, files=True)).ok
        lines = [line async for line in engine.export_chat(chat.id)]
    assert max(map(len, lines)) < 1_000_000
    for wrong in (None, BucketFiles(objects, prefix="other"), FolderFiles(tmp_path / "files")):
        async with Engine(url, model=MODEL, files=wrong, settings=IDLE) as engine:
            with pytest.raises(StoreError, match=r"the files of this store are kept in 'bucket"):
                await whole(engine, chat.id, file)
    async with Engine("sqlite://", model=MODEL, files=BucketFiles(objects, prefix="other"), settings=IDLE) as engine:
        await engine.import_chat(lines)
        assert await whole(engine, chat.id, file) == big
    async with Engine(url, model=MODEL, files=BucketFiles(objects), settings=IDLE) as engine:
        first = (await engine.messages(chat.id))[0]
        assert isinstance(first.parts[0], FilePart)
        assert (await engine.erase(chat.id, messages=[first.id])).overwritten
        with pytest.raises(FileNotFound):
            await whole(engine, chat.id, file)
        assert keys_in(objects, "blobs") == keys_in(objects, "pieces") == []


@pytest.mark.parametrize("missing", [1, 2, 3])
async def test_of_what_is_to_be_deleted_some_may_be_gone_already(tmp_path: Path, missing: int) -> None:
    """A store that says so at the first one has not looked at the others."""
    objects = Objects(LocalStore(tmp_path), "")
    for key in ("a", "z"):
        await objects.put(key, b"kept")
    gone = [f"gone{number}" for number in range(missing)]
    await objects.delete(["a", *gone, "z"])
    await objects.put("b", b"kept")
    await objects.delete([gone[0], "b"])
    await objects.delete(gone)
    assert await objects.listed("") == []
