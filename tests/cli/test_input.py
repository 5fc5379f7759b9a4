"""Files that a command reads: whole or line by line, and why one is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from turnwise.cli import input as input_
from turnwise.cli.input import InputLines, read_file
from turnwise.states.errors import ImportRefused, SettingsError


def test_input_is_read_as_bytes(tmp_path: Path) -> None:
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
def test_unusable_input_is_explained(
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
async def test_lines_lose_line_feeds(tmp_path: Path, content: bytes, lines: list[str]) -> None:
    (tmp_path / "file").write_bytes(content)
    assert await lines_of(tmp_path / "file") == lines


async def test_endless_first_line_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(2**33)  # eight GiB that take no room
    with pytest.raises(ImportRefused, match=r"line 1.*does not end after \S+ bytes"):
        await lines_of(tmp_path / "file")


async def test_overlong_line_is_named_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert input_._LONGEST == 1_073_741_824
    monkeypatch.setattr(input_, "_LONGEST", 10)
    (tmp_path / "file").write_bytes(b"longer than that\n\n" + b"a" * 10)
    assert await lines_of(tmp_path / "file") == ["longer than that", "", "a" * 10]
    (tmp_path / "file").write_bytes(b"one\n\n" + b"a" * 11)
    with pytest.raises(ImportRefused, match=r"line 3.*does not end after 11 bytes"):
        await lines_of(tmp_path / "file")
