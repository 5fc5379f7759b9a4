"""Pagination: a page holds about 8 MiB. `Link` leads from a list's to the next one, `next` from one of chats."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any, Final, TypeVar

import msgspec
from fastapi import Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from turnwise.persistence.rows import micros_of
from turnwise.persistence.stored_chat import UNKNOWN_TIME
from turnwise.service.caller import Caller
from turnwise.states.errors import ChatNotFound, InvalidArgument

ANSWER_BYTES: Final = 8_388_608
"""A page ends with the item that brings it to this size."""
_CREATED: Final = re.compile(r"\A-?[0-9]+~")
"""In a place, before the chat's id: when it was created."""
T = TypeVar("T")


def first_page(items: Sequence[T]) -> Sequence[T]:
    """Return the items of the first page: at least one, and about `ANSWER_BYTES` of JSON."""
    size = 0
    for count, item in enumerate(items, start=1):
        size += json_size(item)
        if size >= ANSWER_BYTES:
            return items[:count]
    return items


def json_size(item: Any) -> int:
    """Return the approximate size of an item in bytes of JSON."""
    return len(msgspec.json.encode(item, enc_hook=str))


class _Paging:
    """Returns one page of a list, and sets the header `Link` (RFC 8288) with `rel="next"` if more items follow."""

    def __init__(
        self,
        request: Request,
        response: Response,
        skip: Annotated[int, Query(ge=0, le=2**53, description="Items before the page: see the header `Link`.")] = 0,
    ) -> None:
        self._request = request
        self._response = response
        self._skip = skip

    def page(self, items: Sequence[T]) -> list[T]:
        """Return the items of this page."""
        rest = items[self._skip :]
        page = first_page(rest)
        if len(page) < len(rest):
            self._link(len(page))
        return [*page]

    async def page_from(self, pages: AsyncGenerator[Sequence[T]]) -> list[T]:
        """Return the items of this page, of a list that is read in pages; what follows it is not read."""
        page, left, size = list[T](), self._skip, 0
        async with aclosing(pages):
            async for items in pages:
                for item in items[left:]:
                    if size >= ANSWER_BYTES:
                        self._link(len(page))
                        return page
                    page.append(item)
                    size += json_size(item)
                left = max(left - len(items), 0)
        return page

    def _link(self, count: int) -> None:
        following = self._request.url.include_query_params(skip=self._skip + count)
        self._response.headers["Link"] = f'<?{following.query}>; rel="next"'


Paging = Annotated[_Paging, Depends()]
"""A parameter of an endpoint that returns a list."""


# Pages of chats


def list_position(chat_id: str, created_at: datetime | None) -> str:
    """Return the place of a chat in lists: its id, and the microsecond of its creation, if that is known."""
    return chat_id if created_at in (None, UNKNOWN_TIME) else f"{micros_of(created_at)}~{chat_id}"


async def chat_at(caller: Caller, place: str) -> str:
    """Return the id of the chat at a place, after which a page begins.

    A deleted chat keeps its place, but has no owner any more. Then an owner must know the microsecond of its creation,
    which `next` holds: the id alone can be guessed. Other owners' chats are indistinguishable from missing ones.
    """
    chat_id = _CREATED.sub("", place)
    try:
        await caller.check_sees(chat_id)
    except ChatNotFound:
        if not await _was_there(caller, place, chat_id):
            await caller.wait_for_not_found()
            raise InvalidArgument("after", "must be `next` of a page, or the id of a chat that is listed") from None
    return chat_id


async def _was_there(caller: Caller, place: str, chat_id: str) -> bool:
    try:
        tombstone = await caller.engine.tombstone(chat_id)
    except ChatNotFound:
        return False
    if tombstone is None or caller.principal.sees_all:
        return tombstone is not None
    return place != chat_id and place == list_position(chat_id, tombstone.created_at)
