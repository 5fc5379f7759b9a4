"""The conformance suite over files in a folder, beside each chat store, and cases that only folders have."""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from turnwise.persistence.blobs.folder import FolderFiles
from turnwise.persistence.blobs.protocol import Blob
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.protocol import ChatStore
from turnwise.states.errors import StoreError
from turnwise.testing.conformance import FilesConformance, plans
from turnwise.testing.conformance.files import blob_of, of, read
from turnwise.testing.conformance.plans import failure_of


@pytest.fixture
async def store(either_url: str) -> AsyncIterator[ChatStore]:
    store = store_from_url(either_url, durability="normal", now=None)
    await store.open()
    yield store
    await store.close()


class TestFolder(FilesConformance):
    @pytest.fixture(autouse=True)
    def folder(self) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            self._folder = folder
            yield

    async def files_beside(self, store: ChatStore) -> FolderFiles:
        files = FolderFiles(self._folder)
        await files.open()
        return files


def files_in(folder: Path) -> list[Path]:
    """Return every file below a folder except the one that names it."""
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "name"]


async def ignore(blob: Blob) -> None:
    """Note nothing."""


async def test_swept_slow_put_fails(tmp_path: Path) -> None:
    files = FolderFiles(tmp_path / "files")
    await files.open()

    async def swept(_: Blob) -> None:
        await files.tidy(0)

    with pytest.raises(StoreError, match="was swept while it was put"):
        await files.put(of(b"slow"), swept)
    assert files_in(tmp_path / "files") == []


async def test_remains_of_a_crash_are_tidied(tmp_path: Path) -> None:
    """A killed process's partial file is no blob, and is deleted after a while."""
    files = FolderFiles(tmp_path / "files")
    await files.open()
    half = tmp_path / "files" / "incoming" / "half"
    half.write_bytes(b"cont")
    await files.tidy(3600)
    assert half.exists()
    await files.tidy(0)
    assert not half.exists()


async def test_interrupted_removal_is_finished_by_the_next(tmp_path: Path) -> None:
    """Whether the blob is still unreferenced or a chat refers to it by now."""
    files = FolderFiles(tmp_path)
    await files.open()
    blob = await files.put(of(b"content"), ignore)

    async def crash() -> bool:
        raise StoreError("the store is out of reach")

    for is_unreferenced in (False, True):
        await failure_of(files.remove(blob.digest, crash), StoreError)
        assert await read(files, blob.digest) == b"content", "whoever holds it must not miss it"

        async def look(answer: bool = is_unreferenced) -> bool:
            return answer

        await files.remove(blob.digest, look)
        assert (await files.size(blob.digest) is None) == is_unreferenced
    assert files_in(tmp_path) == []


async def test_unusable_folder_is_a_store_error(tmp_path: Path) -> None:
    """The error names the folder and the fault."""
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(StoreError, match=r"taken.*of files"):
        await FolderFiles(tmp_path / "taken").open()
    with pytest.raises(StoreError, match=r"nowhere.*of files"):
        await FolderFiles(tmp_path / "nowhere" / "files").open()
    files = FolderFiles(tmp_path / "files")
    await files.open()
    shutil.rmtree(tmp_path / "files")
    with pytest.raises(StoreError, match="cannot be reached"):
        await files.put(of(b"content"), ignore)
    with pytest.raises(StoreError, match="cannot be reached"):
        await files.size(blob_of(b"content").digest)


async def test_folder_name_is_synced_before_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database stores the name for good: without it, a power cut would make all files unreachable."""
    synced: list[tuple[int, int]] = []
    sync = os.fsync

    def noted(number: int) -> None:
        sync(number)
        synced.append((os.fstat(number).st_ino, os.fstat(number).st_nlink))

    monkeypatch.setattr(os, "fsync", noted)
    folder = tmp_path / "files"
    await FolderFiles(folder).open()
    places = [path.stat().st_ino for path in (folder / "name", folder)]
    assert [inode for inode, _ in synced] == places
    assert synced[0][1] == 1, "it had its name before it was on the disk"


@pytest.mark.parametrize("name", [b"", b"\xff\x00", b"elsewhere"], ids=["empty", "bytes", "a word"])
async def test_folder_without_its_name_is_refused(tmp_path: Path, name: bytes) -> None:
    """An empty name would match any other such folder."""
    folder = tmp_path / "files"
    await FolderFiles(folder).open()
    (folder / "name").write_bytes(name)
    with pytest.raises(StoreError, match=r"of files: its file 'name' holds none.*nothing was written"):
        await FolderFiles(folder).open()


async def test_removal_checks_after_taking_the_name(tmp_path: Path, store: ChatStore) -> None:
    """The check follows the removal of the name: a reference from the moment in between restores the blob."""
    files = FolderFiles(tmp_path)
    await files.open()
    await plans.created(store, "chat")
    blob = await files.put(of(b"content"), ignore)

    async def held_in_between() -> bool:
        assert [path.parent.name for path in files_in(tmp_path) if path.name == blob.digest] == ["leaving"]
        await store.note_file("chat", blob, kept_in="here")
        return await partial(store.is_unreferenced, blob.digest)()

    await files.remove(blob.digest, held_in_between)
    assert await read(files, blob.digest) == b"content"
