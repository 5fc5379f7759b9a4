"""Files for tests: uploads, and loads."""

import hashlib
import random
from base64 import b64decode

from turnwise import Engine, FilePart, ModelRequest
from turnwise.states.messages import files_in

BIG = random.Random(0).randbytes(300_000)  # noqa: S311 - contents, no secret
"""Larger than one piece, incompressible, and the same in every run."""


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


async def whole(engine: Engine, chat_id: str, file: FilePart | str) -> bytes:
    return b"".join([piece async for piece in engine.open_file(chat_id, file)])


def loaded(request: ModelRequest) -> list[bytes]:
    """Return the files that a request holds inline; it must refer to none."""
    files = [file for message in request.messages for file in files_in(message.parts)]
    assert all(file.blob is None for file in files)
    return [b64decode(file.data or "") for file in files]
