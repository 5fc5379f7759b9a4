"""The tools that read a folder: what they give, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnwise.cli.files import file_tools


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    (folder / "below").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("hidden")
    (folder / ".env").write_text("hidden")
    (folder / "below" / "page.md").write_text("a page")
    (folder / "a.md").write_text("0123456789")
    (tmp_path / "outside.md").write_text("outside")
    (folder / "link.md").symlink_to(tmp_path / "outside.md")
    return folder


def tools(folder: Path, **options: Any) -> tuple[Any, Any]:
    list_files, read_file = file_tools(folder, **options)
    return list_files.run, read_file.run


def test_demo_tool_lists_visible_files(folder: Path) -> None:
    list_files, _ = tools(folder)
    assert list_files() == ["a.md", "below/", "link.md"]
    assert list_files("below") == ["page.md"]


def test_long_file_is_truncated(folder: Path) -> None:
    assert [tools(folder, max_characters=most)[1]("a.md") for most in (9, 10)] == [
        "012345678\n[cut: the file goes on]",
        "0123456789",
    ]
    (folder / "long.md").write_text("x" * 20_001)
    assert tools(folder)[1]("long.md") == "x" * 20_000 + "\n[cut: the file goes on]"
    assert tools(folder)[1]("below/../a.md") == "0123456789"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("../outside.md", "lies outside the folder 'folder'"),
        ("link.md", "lies outside"),
        ("/etc/passwd", "lies outside"),
        (".env", "is hidden"),
        (".git/config", "is hidden"),
    ],
)
def test_hidden_and_outside_files_are_refused(folder: Path, path: str, words: str) -> None:
    for tool in tools(folder):
        with pytest.raises(PermissionError, match=words):
            tool(path)
