"""Versions as entity tags: `ETag` of what is answered, `If-Match` and `If-None-Match` of what is asked.

The tags are weak: at the same version `last_seq` goes on while a reply is written. A change names the version alone, so
`If-Match` takes them all the same.
"""

from __future__ import annotations

import re
from typing import Annotated, Final
from urllib.parse import quote

from fastapi import Header
from starlette.responses import Response

from turnwise.engine.config.results import Chat
from turnwise.http_problems import InvalidRequest

_TAG: Final = re.compile(r'(?:W/)?"?(\d{1,16})"?')

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        description="The client's own id of the request: sent again, it is taken once.",
        examples=["tab-1-message-7"],
    ),
]
IfMatch = Annotated[
    str | None,
    Header(alias="If-Match", description='The version that the caller has seen, as in `"7"`.', examples=['"7"', "*"]),
]
IfNoneMatch = Annotated[
    str | None,
    Header(alias="If-None-Match", description="Answer 304 if this is the version.", examples=['"7"']),
]


def parse_version(if_match: str | None) -> int | None:
    """Return the version that a caller has seen; `None` for any."""
    if if_match is None or if_match.strip() == "*":
        return None
    match = _TAG.fullmatch(if_match.strip())
    if match is None:
        raise InvalidRequest([{"field": "header.If-Match", "problem": 'must be one version, as in "7", or *'}])
    return int(match[1])


def is_known(tag: str, if_none_match: str | None) -> bool:
    """Whether a caller already has the version of the tag. Weak and strong tags are equal here."""
    if if_none_match is None:
        return False
    tags = [one.strip().removeprefix("W/") for one in if_none_match.split(",")]
    return "*" in tags or tag.removeprefix("W/") in tags


def with_etag(response: Response, chat: Chat) -> Chat:
    """Return the chat, with its version as the response's tag."""
    response.headers["ETag"] = build_etag(chat)
    return chat


def build_etag(chat: Chat) -> str:
    """Return a chat's version as an entity tag."""
    return f'W/"{chat.version}"'


def build_location(path: str, chat: Chat) -> str:
    """Return the address of a new chat, relative to the path by which it was created."""
    above = path.count("/") - 2
    return f"chats/{quote(chat.id)}" if above < 0 else f"{'../' * above}{quote(chat.id)}"
