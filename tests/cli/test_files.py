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


def test_what_is_not_hidden_is_listed_in_order(folder: Path) -> None:
    list_files, _ = tools(folder)
    assert list_files() == ["a.md", "below/", "link.md"]
    assert list_files("below") == ["page.md"]


@pytest.mark.parametrize(("count", "more"), [(60, []), (61, ["and 1 more"]), (75, ["and 15 more"])])
def test_of_many_names_the_first_are_listed(tmp_path: Path, count: int, more: list[str]) -> None:
    for number in range(count):
        (tmp_path / f"{number:02}").touch()
    list_files, _ = tools(tmp_path)
    assert list_files() == [*(f"{number:02}" for number in range(60)), *more]


def test_a_long_file_is_cut_and_says_so(folder: Path) -> None:
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
def test_what_is_hidden_or_outside_is_refused(folder: Path, path: str, words: str) -> None:
    for tool in tools(folder):
        with pytest.raises(PermissionError, match=words):
            tool(path)


def test_reading_may_be_done_again_and_side_by_side(folder: Path) -> None:
    assert [(tool.parallel_safe, tool.crash) for tool in file_tools(folder)] == [(True, "at_least_once")] * 2
