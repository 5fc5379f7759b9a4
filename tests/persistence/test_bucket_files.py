"""The conformance suite over files in buckets, and cases that only buckets have."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from obstore.store import LocalStore, MemoryStore
from tests.persistence.s3_server import S3Server, s3_store

from support.files import digest_of
from turnwise import BucketFiles, SettingsError, StoreError
from turnwise.persistence.blobs.protocol import Blob
from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.testing.conformance import FilesConformance, plans
from turnwise.testing.conformance.files import blob_of, holding, of, read
from turnwise.testing.conformance.plans import failure_of


@pytest.fixture
async def store() -> AsyncIterator[ChatStore]:
    store = SQLiteStore(None)
    await store.open()
    yield store
    await store.close()


@pytest.fixture(params=["memory", "local", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    match request.param:
        case "memory":
            return MemoryStore()
        case "local":
            return LocalStore(tmp_path / "bucket", mkdir=True)
    server: S3Server = request.getfixturevalue("s3_server")
    return s3_store(server.port, server.new_bucket())


class TestBucket(FilesConformance):
    @pytest.fixture(autouse=True)
    def bucket(self, objects: Any) -> None:
        self._objects = objects

    async def files_beside(self, store: ChatStore) -> BucketFiles:
        files = BucketFiles(self._objects, prefix="chats/files")
        await files.open()
        return files


CONTENT = bytes(range(256)) * 40_000
"""More than one part of an upload."""
DIGEST = digest_of(CONTENT)


async def opened(objects: Any, prefix: str = "") -> BucketFiles:
    files = BucketFiles(objects, prefix=prefix)
    await files.open()
    return files


async def ignore(blob: Blob) -> None:
    """Note nothing."""


async def is_unreferenced() -> bool:
    return True


def keys_in(objects: Any, folder: str = "") -> list[str]:
    """Return all keys except the one that names the bucket."""
    return sorted(one["path"] for one in objects.list(folder or None).collect() if one["path"] != "name")


async def test_same_content_is_stored_once(objects: Any) -> None:
    files = await opened(objects)
    for _ in range(3):
        assert await files.put(of(CONTENT), ignore) == blob_of(CONTENT)
        assert [key.partition("/")[0] for key in keys_in(objects)] == ["blobs"]
        assert await read(files, DIGEST) == CONTENT
    await files.remove(DIGEST, is_unreferenced)
    assert keys_in(objects) == []
    await files.remove(DIGEST, is_unreferenced)


async def test_aborted_put_leaves_nothing() -> None:
    """For an error of the content or the note, and for a cancelled caller."""
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

    await failure_of(files.put(broken(), ignore), ConnectionError)
    await failure_of(files.put(of(CONTENT), refuse), StoreError)
    with anyio.CancelScope() as scope:
        await files.put(of(CONTENT), cancel)
    assert keys_in(objects) == []


async def test_removal_asks_again_after_listing(store: ChatStore, objects: Any) -> None:
    """The last check comes after the listing."""
    files = await opened(objects)
    await plans.created(store, "chat")
    blob = await files.put(of(b"content"), ignore)

    async def held_in_between() -> bool:
        await files.put(of(b"content"), holding(store, "chat"))
        return await store.is_unreferenced(blob.digest)

    await files.remove(blob.digest, held_in_between)
    assert await read(files, blob.digest) == b"content"

    async def held_afterwards() -> bool:
        await store.let_go(seconds=0, limit=10)
        answer = await store.is_unreferenced(blob.digest)
        await files.put(of(b"content"), holding(store, "chat"))
        return answer

    await files.remove(blob.digest, held_afterwards)
    assert await read(files, blob.digest) == b"content"


async def test_unusable_bucket_is_a_store_error(s3_server: S3Server, tmp_path: Path) -> None:
    """The error names the bucket and the fault, and no secret."""
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
    for call in (files.put(of(b"content"), ignore), files.size(DIGEST)):
        with pytest.raises(StoreError, match=r"the bucket LocalStore.*bucket.* of files"):
            await call


@pytest.mark.parametrize("prefix", ["/a", "a/", "a//b", "..", "a/../b", "a b", "\0", "é", "x" * 513])
def test_invalid_bucket_or_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(SettingsError, match=r"prefix"):
        BucketFiles(MemoryStore(), prefix=prefix)
    with pytest.raises(SettingsError, match=r"must be one of obstore.store: S3Store, .*; it was"):
        BucketFiles(object())
