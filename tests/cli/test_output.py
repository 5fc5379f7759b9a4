"""Files that are named on the command line: what is written, and why a name is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from turnwise.cli.output import WholeFile, make_folder, write_file
from turnwise.states.errors import SettingsError


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
def test_unusable_output_is_explained(
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


def test_output_file_is_replaced_atomically(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SettingsError("x", "y"), OSError("odd")])
def test_failed_write_keeps_the_old_file(tmp_path: Path, error: BaseException) -> None:
    """And the error is what it was."""
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(type(error)), WholeFile("--out", path) as file:  # noqa: PT012 - the block writes
        file.write("half")
        raise error
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("file", "before")]


def test_output_is_synced_before_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    sync = os.fsync

    def look(number: int) -> None:
        seen.extend(path.read_bytes() for path in tmp_path.iterdir() if path.name != "file")
        sync(number)

    monkeypatch.setattr("os.fsync", look)
    write("--out", tmp_path / "file")
    assert seen[:1] == [b"text"]
    assert (tmp_path / "file").read_text() == "text"


def test_read_only_file_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder would let it be replaced. Where tests run as root everything may be written: the answer is made up."""
    monkeypatch.setattr("os.access", lambda path, mode: (Path(path).name, mode) != ("kept", os.W_OK))
    (tmp_path / "kept").write_text("before")
    with pytest.raises(SettingsError, match="may not be written by this user"):
        write("--out", tmp_path / "kept")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("kept", "before")]
