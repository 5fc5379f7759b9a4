"""Files: what messages refer to, stored for one chat."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from starlette.requests import Request
from starlette.responses import StreamingResponse

from turnwise.service.caller import CHAT_ID, Sender
from turnwise.service.routes.streamed import streamed
from turnwise.states.messages import FilePart

OfChat = Annotated[str, Query(description="The chat that holds the file.", examples=[CHAT_ID])]
Digest = Annotated[
    str, Path(description="The SHA-256 of the file's bytes.", pattern="^[0-9a-f]{64}$", examples=["0" * 64])
]


async def put_file(
    caller: Sender,
    request: Request,
    chat: OfChat,
    name: Annotated[str | None, Query(description="The file's name, for people.", examples=["receipt.pdf"])] = None,
) -> FilePart:
    """Keep a file for a chat: its bytes are the body. The answer is the part by which its messages refer to it."""
    await caller.chat(chat)
    return await caller.engine.put_file(
        chat, request.stream(), media_type=request.headers.get("content-type"), name=name
    )


async def get_file(caller: Sender, digest: Digest, chat: OfChat) -> StreamingResponse:
    """Return the bytes of a file that a chat holds."""
    await caller.check_sees(chat)
    headers = {
        "Content-Disposition": f'attachment; filename="{digest}"',
        "ETag": f'"{digest}"',
        "X-Content-Type-Options": "nosniff",
    }
    pieces = caller.engine.open_file(chat, digest)
    return await streamed(pieces, media_type="application/octet-stream", headers=headers)
