"""Files: only valid ones become part of a message."""

import struct
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert

from turnwise import Engine, Settings
from turnwise.states.errors import InvalidArgument, InvalidContent
from turnwise.states.file_heads import fault_of_head, pages_of, pixels_of, type_of
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
        ({"media_type": "image/png", "url": "javascript:alert(1)"}, "an address of https, http, gs, s3"),
        ({"media_type": "image/png", "url": "data:image/png"}, "an address of https, http, gs, s3"),
        ({"media_type": "image/png", "url": "file:///etc/passwd"}, "an address of https, http, gs, s3"),
        ({"media_type": "image/png", "url": "\x01JavaScript:alert(1)"}, "an address of https, http, gs, s3"),
        ({"media_type": "png", "data": "aGk="}, "needs a media type such as 'image/png'; it was 'png'"),
        ({"media_type": "", "data": "aGk="}, "needs a media type"),
        ({"media_type": "text/plain", "data": "aGk=", "lines": (0, 1)}, "counted from 1; they were 0 and 1"),
        ({"media_type": "text/plain", "data": "aGk=", "lines": (3, 2)}, "the first and the last one"),
        ({"media_type": "image/png", "data": "aGk=", "lines": (1, 2)}, "only a text file"),
        ({"media_type": "text/plain", "url": "https://x/y", "lines": (1, 2)}, "only a text file"),
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
        ("https://example.org/data:,hi", None),
    ],
)
def test_data_url_becomes_inline_content(url: str, data: str | None) -> None:
    """Otherwise no limit would apply, and the message would hold the file whatever its size."""
    sent = parts_of([FilePart(media_type="image/png", url=url, name="n")])
    expected = {"url": url} if data is None else {"data": data}
    assert sent == (FilePart(media_type="image/png", name="n", **expected),)


def test_stored_file_is_not_validated_again() -> None:
    """An accepted file stays readable."""
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


# The first bytes of a file


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + b"\x08\x02\0\0\0"


def jpeg(width: int, height: int) -> bytes:
    beside = b"\xff\xe1" + struct.pack(">H", 40_000) + b"\xff\xc0" * 19_999
    return b"\xff\xd8" + beside + b"\xff\xff\xc2" + struct.pack(">HBHH", 11, 8, height, width) + b"\x01"


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height)


def webp(width: int, height: int) -> bytes:
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + size


def lossless(width: int, height: int) -> bytes:
    bits = (width - 1) | (height - 1) << 14
    return b"RIFF\0\0\0\0WEBPVP8L\x0a\0\0\0\x2f" + bits.to_bytes(4, "little") + b"\0" * 9


PICTURES = {png: "image/png", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp", lossless: "image/webp"}


@pytest.mark.parametrize("make", PICTURES)
def test_pixels_and_type_of_pictures(make: object) -> None:
    assert callable(make)
    for size in ((1, 8000), (8000, 700)):
        head = make(*size)
        assert (pixels_of(head), type_of(head)) == (size, PICTURES[make])  # type: ignore[index]
        assert fault_of_head(PICTURES[make], head, 8000) is None  # type: ignore[index]
        for end in range(len(head)):
            assert pixels_of(head[:end]) in (None, size)
    assert "this one has 8,001 x 9" in (fault_of_head(PICTURES[make], make(8001, 9), 8000) or "")  # type: ignore[index]
    assert fault_of_head(PICTURES[make], make(8001, 9), None) is None  # type: ignore[index]
    for other in {"image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"} - {PICTURES[make]}:  # type: ignore[index]
        assert "but its first bytes are those of" in (fault_of_head(other, make(9, 9), 8000) or "")


@pytest.mark.parametrize("content", [b"<!DOCTYPE html><p>404", b"\n<svg", b"%PDF-1.7", b"PK\x03\x04", b"....ftypheic"])
def test_what_is_no_picture_is_not_taken_for_one(content: bytes) -> None:
    assert fault_of_head("image/png", content, 8000) is not None
    assert fault_of_head("application/octet-stream", content, 8000) is None


def test_pages_that_can_be_counted() -> None:
    pages = b"".join(b"%d 0 obj\n<< /Type /Page /Parent 1 0 R >>\nendobj\n" % number for number in range(3, 153))
    assert pages_of(b"%PDF-1.4\n1 0 obj\n<< /Type /Pages /Count 150 >>\nendobj\n" + pages + pages) == 150
    assert pages_of(b"%PDF-1.7 all is packed") is None


async def test_engine_refuses_what_first_bytes_belie() -> None:
    """An inline or uploaded file is refused with the right type; nothing is stored."""
    async with Engine("sqlite://", model="demo") as engine:
        chat = await engine.create_chat()
        for head, problem in ((png(9000, 9000), "9,000 x 9,000"), (jpeg(9, 9), "give its true type")):
            with pytest.raises(InvalidContent, match=problem):
                await engine.send_message(chat.id, [FilePart.from_bytes(head, "image/png")])
            for pieces in (head, [head[:5], head[5:], b"x" * 300_000]):
                with pytest.raises(InvalidContent, match=problem):
                    await engine.put_file(chat.id, pieces, media_type="image/png")
        assert await engine.messages(chat.id) == []
    async with Engine("sqlite://", model="demo", settings=Settings(picture_limit_pixels=9000)) as engine:
        chat = await engine.create_chat()
        await engine.send_message(chat.id, [FilePart.from_bytes(png(9000, 9000), "image/png")])
