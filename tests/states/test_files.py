"""Files: only a sound one becomes part of a message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import convert

from turnwise.states.errors import InvalidArgument, InvalidContent
from turnwise.states.messages import FilePart, parts_of


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"media_type": "image/png"}, "inline .*, by address .* or by reference .*; it had neither"),
        ({"media_type": "image/png", "data": "aGk=", "url": "https://example.org/x"}, "it had both"),
        ({"media_type": "image/png", "url": "https://example.org/x", "blob": "0" * 64}, "it had both"),
        ({"media_type": "image/png", "data": "aGk=", "url": "x:y", "blob": "0" * 64}, "it had all three"),
        ({"media_type": "image/png", "blob": ""}, "must be a SHA-256"),
        ({"media_type": "image/png", "blob": "A" * 64}, "must be a SHA-256, 64 digits from 0 to f"),
        ({"media_type": "image/png", "blob": "0" * 63}, "must be a SHA-256"),
        ({"media_type": "image/png", "blob": "../" * 20 + "etc"}, "must be a SHA-256"),
        ({"media_type": "image/png", "blob": "0" * 64, "size": 0}, "at least 1 byte"),
        ({"media_type": "image/png", "data": "aGk=", "size": 2}, "a file without a blob has none"),
        ({"media_type": "image/png", "data": "not base64!"}, "must be base64"),
        ({"media_type": "image/png", "data": "aGk"}, "must be base64"),
        ({"media_type": "image/png", "data": ""}, "must be base64 that is not empty"),
        ({"media_type": "image/png", "url": ""}, "must be an address"),
        ({"media_type": "image/png", "url": "a b"}, "must be an address"),
        ({"media_type": "png", "data": "aGk="}, "needs a media type such as 'image/png'; it was 'png'"),
        ({"media_type": "", "data": "aGk="}, "needs a media type"),
    ],
)
def test_malformed_file_is_refused(fields: Any, problem: str) -> None:
    with pytest.raises(InvalidContent, match=f"{problem}.*nothing was written"):
        parts_of([FilePart(**fields)])


@pytest.mark.parametrize(
    ("url", "data"),
    [
        ("data:image/png;base64,aGk=", "aGk="),
        ("DATA:;name=a;BASE64,aGk%3D", "aGk="),
        ("data:text/plain,h%69", "aGk="),
        ("data:,hi", "aGk="),
        ("data:image/png", None),
        ("https://example.org/data:,hi", None),
    ],
)
def test_data_url_becomes_inline_content(url: str, data: str | None) -> None:
    """Or no limit would hold for it, and it would stay in its message however large it is."""
    sent = parts_of([FilePart(media_type="image/png", url=url, name="n")])
    expected = {"url": url} if data is None else {"data": data}
    assert sent == (FilePart(media_type="image/png", name="n", **expected),)


def test_stored_file_is_not_validated_again() -> None:
    """What was accepted once is never unreadable."""
    assert convert({"media_type": "png"}, FilePart).data is None


def test_file_from_bytes() -> None:
    assert FilePart.from_bytes(b"hi", "text/plain", name="n") == FilePart(
        media_type="text/plain", data="aGk=", name="n"
    )
    with pytest.raises(InvalidArgument, match="data: must be bytes; it was 'hi'"):
        FilePart.from_bytes("hi", "text/plain")  # type: ignore[arg-type]
    with pytest.raises(InvalidContent, match="not empty"):
        FilePart.from_bytes(b"", "text/plain")
    with pytest.raises(InvalidContent, match="needs a media type"):
        FilePart.from_bytes(b"hi", "text")


def test_file_from_path(tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(b"hi")
    cat = FilePart(media_type="image/png", data="aGk=", name="cat.png")
    assert FilePart.from_path(path) == FilePart.from_path(str(path)) == cat
    assert FilePart.from_path(path, media_type="image/gif", name="dog").media_type == "image/gif"


@pytest.mark.parametrize("path", ["nowhere.png", "\0", "", 3, None, b"x.png", "\ud800.png"])
def test_unreadable_path_is_refused(path: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidContent, match="nothing was written"):
        FilePart.from_path(path)
    with pytest.raises(InvalidContent, match="cannot be read"):
        FilePart.from_path(tmp_path)


def test_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "void.png").touch()
    with pytest.raises(InvalidContent, match=r"the file 'void\.png' is empty; nothing was written"):
        FilePart.from_path(tmp_path / "void.png")


def test_unknown_suffix_needs_a_media_type(tmp_path: Path) -> None:
    (tmp_path / "notes").write_bytes(b"hi")
    with pytest.raises(InvalidContent, match="'notes' does not tell what is in the file; give media_type="):
        FilePart.from_path(tmp_path / "notes")
    assert FilePart.from_path(tmp_path / "notes", media_type="text/plain").media_type == "text/plain"
