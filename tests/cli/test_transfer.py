"""`turnwise export` and `import`: a chat goes from one store to another, all of it or nothing."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import stat
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from support.terminal import Terminal
from turnwise import Engine, Settings
from turnwise.cli.app import main
from turnwise.providers.scripted import ScriptedModel

OTHER = ("--store", "sqlite:///other.db")
LARGE = 18_000_000
"""Bytes of a chat's file, more than a command may hold at once even if it did not spell them in base64."""
ALLOWED = 15_000_000
"""Bytes that a command may hold: some copies of a line."""


def begun(terminal: Terminal) -> str:
    """Begin a chat, let it rest, make another store, and return the chat's id."""

    async def begin() -> str:
        async with Engine(f"sqlite:///{terminal.folder}/turnwise.db", model=ScriptedModel(["Grüße\u2028…"])) as engine:
            chat = await engine.create_chat(title="the-title")
            await engine.ask(chat.id, "the-question")
            return chat.id

    assert terminal.run("migrate", *OTHER).code == 0
    return anyio.run(begin)


def test_chat_moves_as_a_file(terminal: Terminal) -> None:
    chat_id = begun(terminal)
    written = terminal.run("export", "last", "--output", "chat.jsonl")
    assert written.code == 0, written.err
    count = len((terminal.folder / "chat.jsonl").read_bytes().splitlines())
    assert f"wrote {count} lines to chat.jsonl" in written.words
    done = terminal.run("import", "chat.jsonl", *OTHER)
    assert (done.code, f"✓ chat {chat_id} is imported" in done.words) == (0, True), done.words
    assert "Grüße" in terminal.run("show", chat_id, *OTHER).words
    assert terminal.run("verify", chat_id, *OTHER).code == 0
    log = json.loads(terminal.run("audit", chat_id, "--json", *OTHER).out)
    assert (log[-1]["trigger"], log[-1]["actor"]) == ("imported", "operator")


def test_signed_export_needs_its_key(terminal: Terminal) -> None:
    begun(terminal)
    (terminal.folder / "key").write_text("secret\n")
    (terminal.folder / "wrong").write_text("another\n")
    signed = terminal.run("export", "last", "-o", "chat.jsonl", "--key", "key")
    assert "signed" in signed.words
    refused = terminal.run("import", "chat.jsonl", "--key", "wrong", *OTHER)
    assert (refused.code, "not made with this key" in refused.words) == (1, True), refused.words
    assert terminal.run("import", "chat.jsonl", "--key", "key", *OTHER).code == 0
    assert terminal.run("import", "chat.jsonl", "--key", "key", *OTHER).code == 1


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "line 1 of the exported chat: the header is missing"),
        (b"nonsense\n", "line 1 of the exported chat: it is no line of JSON"),
        (b"\xff\xfe\n", "line 1 of the exported chat: it is no line of JSON"),
        (b'{"format":"turnwise-audit/1"}\n', "the header of an exported chat belongs here"),
    ],
)
def test_import_refuses_other_files(terminal: Terminal, content: bytes, told: str) -> None:
    begun(terminal)
    (terminal.folder / "chat.jsonl").write_bytes(content)
    refused = terminal.run("import", "chat.jsonl", *OTHER)
    assert (refused.code, told in refused.words) == (1, True), refused.words
    assert json.loads(terminal.run("list", "--json", *OTHER).out) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("import", "nowhere.jsonl"), "there is no file"),
        (("import", "chat.jsonl", "--store", "sqlite:///nowhere.db"), "there is no file"),
        (("export", "last", "-o", "nowhere/chat.jsonl"), "there is no folder"),
        (("export", "last", "-o", "-"), "'-' is no name of a file here; /dev/stdout is what a pipe reads"),
        (("export", "nobody"), "there is no chat"),
    ],
)
def test_transfer_misuse_is_named(terminal: Terminal, words: tuple[str, ...], told: str) -> None:
    begun(terminal)
    Path(terminal.folder / "chat.jsonl").write_text("{}")
    refused = terminal.run(*words)
    assert (refused.code, told in refused.words) == (2, True), refused.words


# Large chats


@pytest.fixture(scope="module")
def large_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a store whose chat has a large file."""

    async def fill(folder: Path) -> None:
        url = f"sqlite:///{folder / 'turnwise.db'}"
        async with Engine(url, model=ScriptedModel([]), settings=Settings(run_worker=False)) as engine:
            chat = await engine.create_chat()
            pieces = [bytes([number]) * (LARGE // 12) for number in range(12)]
            await engine.send_message(chat.id, [await engine.put_file(chat.id, pieces, media_type="image/png")])

    folder = tmp_path_factory.mktemp("large")
    anyio.run(fill, folder)
    return folder


@pytest.fixture
def large(large_folder: Path, terminal: Terminal) -> Terminal:
    """Return a terminal in a folder with that store."""
    shutil.copy(large_folder / "turnwise.db", terminal.folder)
    return terminal


def peak(*words: str) -> int:
    """Return how many bytes a command holds at most while it prints to nobody, besides what was there before."""
    with (
        pytest.MonkeyPatch.context() as patch,
        Path(os.devnull).open("w") as nobody,
        contextlib.redirect_stdout(nobody),
    ):
        patch.setattr(sys, "argv", ["turnwise", *words])
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        try:
            with pytest.raises(SystemExit) as exit_:
                main()
            assert not exit_.value.code
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()


@pytest.mark.deep
def test_transfer_streams_large_files(large: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    large.run("migrate", *OTHER)
    monkeypatch.chdir(large.folder)
    assert peak("export", "last", "-o", "chat.jsonl") < ALLOWED
    assert (large.folder / "chat.jsonl").stat().st_size > LARGE
    assert peak("import", "chat.jsonl", *OTHER) < ALLOWED
    assert large.run("verify", "last", "--files", *OTHER).code == 0


@contextlib.contextmanager
def quota(size: int) -> Iterator[None]:
    """Let no file grow beyond a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_keeps_the_old_export(large: Terminal) -> None:
    (large.folder / "chat.jsonl").write_text("an older export")
    before = sorted(large.folder.iterdir())
    with quota(LARGE // 2):
        told = large.run("export", "last", "-o", "chat.jsonl")
    assert (told.code, "no file was written" in told.words) == (1, True), told
    assert (large.folder / "chat.jsonl").read_text() == "an older export"
    assert sorted(large.folder.iterdir()) == before


def test_import_names_the_bad_line(terminal: Terminal) -> None:
    begun(terminal)
    terminal.run("export", "last", "-o", "chat.jsonl")
    lines = (terminal.folder / "chat.jsonl").read_bytes().splitlines(keepends=True)
    wrong = next(number for number, line in enumerate(lines, 1) if b"the-question" in line)
    lines[wrong - 1] = lines[wrong - 1].replace(b"the-question", b"the-answer")
    (terminal.folder / "chat.jsonl").write_bytes(b"".join(lines))
    refused = terminal.run("import", "chat.jsonl", *OTHER)
    assert (refused.code, f"line {wrong} of the exported chat" in refused.words) == (1, True), refused
    assert json.loads(terminal.run("list", "--json", *OTHER).out) == []


@contextlib.contextmanager
def written_into(pipe: Path, content: Iterator[bytes]) -> Iterator[None]:
    """Write into a pipe that a command reads, until all of it is written or nobody reads any more."""

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), pipe.open("wb", buffering=0) as end:
            for piece in content:
                end.write(piece)

    os.mkfifo(pipe)
    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    yield
    thread.join(20)
    assert not thread.is_alive()


def test_transfer_through_pipes(terminal: Terminal) -> None:
    """A pipe stays what it is: it is no file of a disk that could take another's place."""
    chat_id = begun(terminal)
    content = terminal.run("export", chat_id).out.encode()
    halves = [content[: len(content) // 2], content[len(content) // 2 :]]
    with written_into(terminal.folder / "pipe", iter(halves)):
        assert terminal.run("import", "pipe", *OTHER).code == 0
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((terminal.folder / "pipe").read_bytes()), daemon=True)
    reader.start()
    assert terminal.run("export", chat_id, "-o", "pipe").code == 0
    reader.join(20)
    assert read == [content]
    assert stat.S_ISFIFO((terminal.folder / "pipe").stat().st_mode)
