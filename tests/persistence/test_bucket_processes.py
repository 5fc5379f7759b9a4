"""Files in a bucket, from several processes: killed, raced, and with files that no memory holds.

`BUCKET_ROUNDS=200 BUCKET_MEGABYTES=200 make test TESTS=tests/persistence/test_bucket_processes.py` for the whole claim.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from obstore.store import LocalStore

from support.files import whole
from support.processes.s3_server import S3Server, s3_store
from turnwise import BucketFiles, Engine, FilePart, Settings
from turnwise.persistence.conformance.files import blob_of
from turnwise.providers.scripted import ScriptedModel

ROUNDS: Final = int(os.environ.get("BUCKET_ROUNDS", "4"))
MEGABYTES: Final = int(os.environ.get("BUCKET_MEGABYTES", "48"))
ALLOWED: Final = 32 * 1024
"""Kibibytes by which a process may grow: a few objects, not all."""
TESTS: Final = Path(__file__).parent.parent
CONTENT: Final = b"hunter2-xyzzy-" * 100_000
IDLE: Final = Settings(run_worker=False)

_BEGIN: Final = """
import anyio, os, sys
from obstore.store import LocalStore
from support.processes.s3_server import s3_store
from turnwise import BucketFiles, Engine, Settings
from turnwise.persistence.files import bucket
from turnwise.providers.scripted import ScriptedModel

def objects(place):
    port, _, name = place.partition("/")
    return s3_store(int(port), name) if port else LocalStore(place)
"""
_KILLED: Final = """
place, moment = sys.argv[1:]
bucket.PIECE = 500_000

async def main():
    files = BucketFiles(objects(place))
    await files.open()

    async def content():
        for number in range(4):
            yield b"hunter2-xyzzy-" * 25_000
            if number == 2:
                if moment == "streaming":
                    os._exit(9)
                await files.tidy(0)

    async def note(blob):
        os._exit(9)

    await files.put(content(), note)

anyio.run(main)
"""
_RACING: Final = """
url, place, chat_id, rounds = sys.argv[1:]
bucket.PIECE = 500_000

async def main():
    files = BucketFiles(objects(place))
    async with Engine(url, model=ScriptedModel([]), files=files, settings=Settings(run_worker=False)) as engine:
        for number in range(int(rounds)):
            own = await engine.create_chat()
            file = await engine.put_file(own.id, b"hunter2-xyzzy-" * 100_000, media_type="text/plain")
            assert sum([len(piece) async for piece in engine.open_file(own.id, file)]) == 1_400_000
            await engine.delete_chat(own.id)
        file = await engine.put_file(chat_id, b"hunter2-xyzzy-" * 100_000, media_type="text/plain")
        await engine.send_message(chat_id, [file])
        print(files.name)

anyio.run(main)
"""
_LARGE: Final = """
import resource
place, megabytes = sys.argv[1:]

async def content(megabytes):
    for _ in range(megabytes):
        yield os.urandom(1_000_000)

async def note(blob):
    pass

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

async def main():
    files = BucketFiles(objects(place))
    await files.open()
    await files.put(content(1), note)
    before = peak()
    blob = await files.put(content(int(megabytes)), note)
    assert sum([len(piece) async for piece in files.read(blob.digest)]) == blob.size == int(megabytes) * 1_000_000
    await files.close()
    print(peak() - before)

anyio.run(main)
"""


def started(script: str, *arguments: object) -> subprocess.Popen[str]:
    words = [str(argument) for argument in arguments]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    return subprocess.Popen([sys.executable, "-c", _BEGIN + script, *words], text=True, env=environment, **pipes)


@pytest.fixture
def place(s3_server: S3Server) -> str:
    """Return an empty bucket of a server, as a process is told of it."""
    return f"{s3_server.port}/{s3_server.new_bucket()}"


def objects_at(place: str) -> Any:
    port, _, name = place.partition("/")
    return s3_store(int(port), name) if port else LocalStore(place)


def keys_in(objects: Any) -> list[str]:
    return sorted(one["path"] for one in objects.list().collect() if one["path"] != "name")


@pytest.mark.parametrize("moment", ["streaming", "swept"])
async def test_what_a_killed_process_leaves_is_tidied(moment: str, tmp_path: Path, s3_server: S3Server) -> None:
    """On a server, where it dies while it streams; in a folder, where it has put more although it was swept."""
    at_server = moment == "streaming"
    if not at_server:
        (tmp_path / "bucket").mkdir()
    place = f"{s3_server.port}/{s3_server.new_bucket()}" if at_server else str(tmp_path / "bucket")
    process = started(_KILLED, place, moment)
    assert (process.communicate()[1], process.returncode) == ("", 9)
    objects = objects_at(place)
    files = BucketFiles(objects)
    await files.open()
    left = keys_in(objects)
    assert any(key.startswith("pieces/") for key in left)
    await files.tidy(3600)
    assert keys_in(objects) == left
    await files.tidy(0)
    assert await files.size(blob_of(CONTENT).digest) is None
    assert not any(key.startswith("pieces/") for key in keys_in(objects))
    await files.tidy(0)
    assert keys_in(objects) == []


async def test_two_processes_put_and_delete_the_same_content(place: str, tmp_path: Path) -> None:
    """One deletes what the other has just put; what the last chat holds is there in the end. Both know one bucket."""
    url, files = f"sqlite:///{tmp_path / 'chats.db'}", BucketFiles(objects_at(place))
    async with Engine(url, model=ScriptedModel([]), settings=IDLE) as engine:
        chats = [await engine.create_chat() for _ in range(2)]
    running = [started(_RACING, url, place, chat.id, ROUNDS) for chat in chats]
    said = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    assert len({name for name, _ in said}) == 1
    async with Engine(url, model=ScriptedModel([]), files=files, settings=IDLE) as engine:
        for chat in chats:
            (file,) = (await engine.messages(chat.id))[0].parts
            assert isinstance(file, FilePart)
            assert await whole(engine, chat.id, file) == CONTENT
        for chat in chats:
            await engine.interrupt(chat.id)
            await engine.delete_chat(chat.id)
        await engine._files.sweep()
        assert [key for key in keys_in(objects_at(place)) if not key.startswith("arriving/")] == []


def test_memory_does_not_grow_with_a_file(place: str) -> None:
    """Neither while it is put nor while it is read."""
    process = started(_LARGE, place, MEGABYTES)
    said, problem = process.communicate()
    assert process.returncode == 0, problem
    assert int(said) < ALLOWED
