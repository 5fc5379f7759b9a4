"""`--file-folder`: where a store's files are, in words that a command takes, and what is said if they are not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import anyio
import pytest

from support.files import digest_of
from support.terminal import Terminal
from turnwise import Engine, FolderFiles, Settings, TextPart

SCAN: Final = b"a page" * 1000
NAMED: Final = ("--file-folder", "files")


@pytest.fixture
def chat_id(terminal: Terminal) -> str:
    """Begin a chat whose file is in a folder, beside the folder of another store and one of nobody."""
    (terminal.folder / "nobodys").mkdir()
    (terminal.folder / "file").write_text("no folder")
    return anyio.run(_begun, terminal.folder)


async def _begun(folder: Path) -> str:
    settings = Settings(run_worker=False)
    for store, files in (("other.db", "others"), ("turnwise.db", "files")):
        async with Engine(
            f"sqlite:///{folder / store}", model="demo", files=FolderFiles(folder / files), settings=settings
        ) as engine:
            chat = await engine.create_chat()
            scan = await engine.put_file(chat.id, SCAN, media_type="image/png", name="scan.png")
            await engine.send_message(chat.id, [TextPart(text="look"), scan])
    return chat.id


def blob(terminal: Terminal, folder: str = "files") -> Path:
    (path,) = (terminal.folder / folder / "blobs").rglob(digest_of(SCAN))
    return path


def test_verify_reads_the_file_folder(terminal: Terminal, chat_id: str) -> None:
    sound = terminal.run("verify", chat_id, "--files", *NAMED)
    assert (sound.code, "every file of the chat is there" in sound.words) == (0, True), sound
    blob(terminal).write_bytes(SCAN[:-1] + b"?")
    assert terminal.run("verify", chat_id, *NAMED).code == 0
    damaged = terminal.run("verify", chat_id, "--files", *NAMED)
    assert (damaged.code, f"The file {digest_of(SCAN)} is damaged" in damaged.words) == (1, True), damaged
    assert json.loads(terminal.run("verify", chat_id, "--files", "--json", *NAMED).out)["place"] == "messages[m1].body"
    assert "every file of the chat is there" not in damaged.words
    log = terminal.run("verify", "file", "--files")
    assert (log.code, "an exported log holds no files" in log.words) == (2, True), log


WRONG: Final = {
    (): "and 'database' was to be used; name the folder that holds them",
    ("--file-folder", "others"): "name the folder that holds them",
    ("--file-folder", "nobodys"): "/nobodys' of files holds no files of a store",
    ("--file-folder", "nowhere"): "/nowhere' of files is not there",
    ("--file-folder", "file"): "/file' of files is not there",
}


def test_foreign_file_folder_is_refused(terminal: Terminal, chat_id: str) -> None:
    before = sorted(terminal.folder.iterdir())
    for words, told in WRONG.items():
        for command, *what in (("verify", "--files"), ("export", "-o", "chat.jsonl")):
            refused = terminal.run(command, chat_id, *what, *words)
            assert (refused.code, told in refused.words) == (2, True), refused
            assert "--file-folder" in refused.words
    assert sorted(terminal.folder.iterdir()) == before
    assert [*(terminal.folder / "nobodys").iterdir()] == []


def test_doctor_names_missing_files(terminal: Terminal, chat_id: str) -> None:
    """A doctor that cannot look at the files says that, and is not content."""
    sound = terminal.run("doctor", *NAMED)
    assert (sound.code, "keeps its promises; no file is missing" in sound.words) == (0, True), sound
    assert "every file is there, byte for byte" in terminal.run("doctor", "--files", *NAMED).words
    blind = terminal.run("doctor")
    assert (blind.code, "were not looked at" in blind.words) == (1, True), blind
    assert terminal.run("doctor", "--file-folder", "others").code == 2
    blob(terminal).unlink()
    told = terminal.run("doctor", *NAMED)
    assert told.code == 1
    line = f"messages[m1].body, part 1: the file scan.png (image/png), {digest_of(SCAN)} is not there"
    assert chat_id in told.words
    assert line in told.words
    assert "turnwise erase CHAT MESSAGE" in told.words
    (found,) = json.loads(terminal.run("doctor", "--json", *NAMED).out)
    assert (found["chat_id"], found["flaws"]) == (chat_id, [])
    assert [lost["digest"] for lost in found["files"]] == [digest_of(SCAN)]
    misuse = terminal.run("doctor", "--files", "--repair", chat_id)
    assert (misuse.code, "leave --repair and --export out" in misuse.words) == (2, True), misuse
    assert terminal.run("erase", chat_id, "m1", "--yes", *NAMED).code == 0
    assert terminal.run("doctor", "--files", *NAMED).code == 0


def test_erased_file_leaves_its_folder(terminal: Terminal, chat_id: str) -> None:
    path = blob(terminal)
    unnamed = terminal.run("erase", chat_id, "m1", "--yes")
    assert (unnamed.code, path.exists(), "a folder that --file-folder has to name" in unnamed.words) == (0, True, True)
    erased = terminal.run("erase", chat_id, "m1", "--yes", *NAMED)
    assert (erased.code, path.exists(), "--file-folder" in erased.words) == (0, False, False), erased
