"""Files that a command reads: whole or line by line, and why one is refused."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from turnwise.cli import input as input_
from turnwise.cli.input import InputLines, read_file
from turnwise.states.errors import ImportRefused, SettingsError


def test_a_file_is_read_byte_by_byte(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xff\r\n")
    assert read_file("--key", tmp_path / "file") == b"\xff\r\n"


def open_lines(option: str, path: Path) -> None:
    with InputLines(option, str(path)).opened() as source:
        source.read()


@pytest.mark.parametrize("command", [read_file, open_lines])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("missing", "there is no file '{}/missing'"),
        ("folder", "'{}/folder' cannot be read: Is a directory"),
        ("a\0b", r"'{}/a\x00b' cannot be read: embedded null byte"),
    ],
)
def test_a_name_that_is_wrong_is_refused_with_what_is_wrong_about_it(
    tmp_path: Path, command: Callable[[str, Path], object], name: str, told: str
) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(SettingsError) as refused:
        command("--this", tmp_path / name)
    assert told.format(tmp_path) in str(refused.value)
    assert "--this" in str(refused.value)


async def lines_of(path: Path) -> list[str]:
    lines = InputLines("FILE", str(path))
    with lines.opened() as source:
        return [line async for line in lines.read(source)]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"one\ntwo", ["one", "two"]),
        (b"one\r\n\ntwo\n", ["one\r", "", "two"]),
        ("naïve\n".encode(), ["naïve"]),
        (b"\xff\n", ["\udcff"]),
        (b"{}\n" + b"a" * 600_000 + b"\nb", ["{}", "a" * 600_000, "b"]),
    ],
    ids=["nothing", "an empty line", "no line feed at the end", "other line ends", "text", "no text", "in pieces"],
)
async def test_lines_come_without_their_line_feeds(tmp_path: Path, content: bytes, lines: list[str]) -> None:
    (tmp_path / "file").write_bytes(content)
    assert await lines_of(tmp_path / "file") == lines


async def test_a_first_line_that_never_ends_is_refused_before_it_is_held(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(2**33)  # eight GiB that take no room
    with pytest.raises(ImportRefused, match=r"line 1.*does not end after \S+ bytes"):
        await lines_of(tmp_path / "file")


async def test_the_first_line_has_at_most_64_kib(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a" * 65_536)
    assert await lines_of(tmp_path / "file") == ["a" * 65_536]
    (tmp_path / "file").write_bytes(b"a" * 65_537)
    with pytest.raises(ImportRefused, match=r"line 1.*does not end after 65,537 bytes"):
        await lines_of(tmp_path / "file")


async def test_a_later_line_has_at_most_a_gib_and_is_named_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert input_._LONGEST == 1_073_741_824
    monkeypatch.setattr(input_, "_LONGEST", 10)
    (tmp_path / "file").write_bytes(b"longer than that\n\n" + b"a" * 10)
    assert await lines_of(tmp_path / "file") == ["longer than that", "", "a" * 10]
    (tmp_path / "file").write_bytes(b"one\n\n" + b"a" * 11)
    with pytest.raises(ImportRefused, match=r"line 3.*does not end after 11 bytes"):
        await lines_of(tmp_path / "file")


def sockets() -> tuple[int, int]:
    here, there = socket.socketpair()
    return here.detach(), there.detach()


def files() -> tuple[int, int]:
    return os.open(__file__, os.O_RDONLY), os.open(os.devnull, os.O_WRONLY)


@pytest.mark.parametrize(("opened", "waits"), [(os.pipe, True), (os.openpty, True), (sockets, True), (files, False)])
def test_reading_waits_for_whoever_may_write_and_not_for_a_disk(
    opened: Callable[[], tuple[int, int]], *, waits: bool
) -> None:
    read, written = opened()
    with open(read, "rb") as source, open(written, "wb"):  # noqa: PTH123 - what is open already
        assert input_._waits(source) is waits


async def test_to_wait_for_a_pipe_holds_up_nothing_else() -> None:
    """Ctrl-C is such a thing: a loop that waits for bytes would not hear of it."""
    taken, given = os.pipe()
    with open(taken, "rb") as source, open(given, "wb", buffering=0) as pipe:  # noqa: ASYNC230, PTH123 - a pipe
        late = threading.Timer(20, pipe.write, [b"late\n"])  # or a loop that is held up would never end
        late.start()
        lines = InputLines("FILE", "-").read(source)
        with anyio.move_on_after(0.2) as patience:
            await anext(lines)
        late.cancel()
        assert patience.cancelled_caught
        pipe.write(b"one\ntwo")
        pipe.close()
        assert [line async for line in InputLines("FILE", "-").read(source)] == ["one", "two"]
