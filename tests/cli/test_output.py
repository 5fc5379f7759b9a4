"""Files that are named on the command line: what is written, and why a name is refused."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from turnwise.cli.output import FileFailed, WholeFile, make_folder, write_file
from turnwise.states.errors import SettingsError


@pytest.mark.parametrize(("content", "written"), [("naïve\n", "naïve\n".encode()), (b"\xff\r\n", b"\xff\r\n")])
def test_what_is_written_is_there_byte_by_byte(tmp_path: Path, content: str | bytes, written: bytes) -> None:
    write_file("--out", tmp_path / "file", content)
    assert (tmp_path / "file").read_bytes() == written


def write(option: str, path: Path) -> None:
    write_file(option, path, "text")


@pytest.mark.parametrize(
    ("command", "name", "told"),
    [
        (write, "missing/file", "there is no folder '{}/missing'; make it first"),
        (write, "folder", "'{}/folder' is a folder; name a file in it"),
        (write, "file/below", "'{}/file' is no folder"),
        (write, "circle", "'{}/circle' is a link that leads to itself"),
        (write, "n" * 256, "the name is longer than the file system takes"),
        (write, "a\0b", r"'{}/a\x00b' is no name of a file: "),
        (make_folder, "file", "'{}/file' is there already, and is no folder"),
        (make_folder, "file/below", "'{}/file' is no folder"),
        (make_folder, "a\0b", r"'{}/a\x00b' is no name of a folder: "),
    ],
)
def test_a_name_that_is_wrong_is_refused_with_what_is_wrong_about_it(
    tmp_path: Path, command: Callable[[str, Path], object], name: str, told: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(SettingsError) as refused:
        command("--this", tmp_path / name)
    assert told.format(tmp_path) in str(refused.value)
    assert "--this" in str(refused.value)
    assert (sorted(tmp_path.iterdir()), (tmp_path / "file").read_text()) == (before, "kept")


def test_a_file_that_is_not_whole_says_so_beside_the_reason() -> None:
    with pytest.raises(FileFailed, match=r"^'/dev/full': No space left on device; the file is not whole"):
        write("--out", Path("/dev/full"))
    assert str(FileFailed(Path("a"), OSError("odd"), outcome="gone")) == "'a': odd; gone"
    assert str(FileFailed(Path("a"), OSError(errno.EIO, "Broken disk"), outcome="gone")) == "'a': Broken disk; gone"


def test_folders_above_a_folder_are_made_too_and_what_is_there_stays(tmp_path: Path) -> None:
    make_folder("--out", tmp_path / "a" / "b")
    write("--out", tmp_path / "a" / "b" / "file")
    make_folder("--out", tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b" / "file").read_text() == "text"


def test_a_file_gets_its_name_once_it_is_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    """Through a link the file that it leads to is written, and the link stays."""
    secret, link = tmp_path / "secret", tmp_path / "link"
    secret.write_text("before")
    secret.chmod(0o600)
    link.symlink_to(secret)
    with WholeFile("--out", link) as file:
        file.write("af")
        assert secret.read_text() == "before"
        file.write(b"ter")
    assert (secret.read_text(), secret.stat().st_mode & 0o777, link.is_symlink()) == ("after", 0o600, True)
    write("--out", tmp_path / "n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "n", "secret"]


def test_a_pipe_is_written_to_by_the_name_that_it_has_in_this_process() -> None:
    """As `/dev/stdout` is one: what it leads to is no path."""
    reading, writing = os.pipe()
    try:
        with WholeFile("--export", Path(f"/dev/fd/{writing}")) as file:
            file.write("line\n")
        assert os.read(reading, 100) == b"line\n"
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SettingsError("x", "y"), OSError("odd")])
def test_what_ends_in_the_middle_leaves_what_was_there(tmp_path: Path, error: BaseException) -> None:
    """And the error is what it was."""
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(type(error)), WholeFile("--out", path) as file:  # noqa: PT012 - what comes in the middle
        file.write("half")
        raise error
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("file", "before")]


def test_what_ends_in_the_middle_is_told_although_the_rest_cannot_be_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: Path, **_options: object) -> None:
        raise PermissionError(errno.EACCES, "denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(ZeroDivisionError), WholeFile("--output", tmp_path / "a"):
        raise ZeroDivisionError


def test_a_file_has_its_name_only_once_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    sync = os.fsync

    def look(number: int) -> None:
        seen.extend(path.read_bytes() for path in tmp_path.iterdir() if path.name != "file")
        sync(number)

    monkeypatch.setattr("os.fsync", look)
    write("--out", tmp_path / "file")
    assert seen[:1] == [b"text"]
    assert (tmp_path / "file").read_text() == "text"


def test_a_file_that_may_not_be_written_is_not_replaced_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder would let it be replaced. Where tests run as root everything may be written: the answer is made up."""
    monkeypatch.setattr("os.access", lambda path, mode: (Path(path).name, mode) != ("kept", os.W_OK))
    (tmp_path / "kept").write_text("before")
    with pytest.raises(SettingsError, match="may not be written by this user"):
        write("--out", tmp_path / "kept")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("kept", "before")]
