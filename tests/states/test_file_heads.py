"""What the first bytes of a file tell: its true type, and the pixels of a picture."""

from __future__ import annotations

import struct

import pytest

from turnwise import Engine, FilePart, InvalidContent, Settings
from turnwise.states.file_heads import fault_of_head, pages_of, pixels_of, type_of


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
    """Sent inline or put before, a file is refused with what would be right; nothing is stored."""
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
