"""Pagination of lists: a page holds about 8 MiB, and the header `Link` leads to the next one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Final, TypeVar

import msgspec
from fastapi import Depends, Query
from starlette.requests import Request
from starlette.responses import Response

ANSWER_BYTES: Final = 8_388_608
"""A page ends with the item that brings it to this size."""
T = TypeVar("T")


def page_of(items: Sequence[T]) -> Sequence[T]:
    """Return the items of the first page: at least one, and about `ANSWER_BYTES` of JSON."""
    size = 0
    for count, item in enumerate(items, start=1):
        size += size_of(item)
        if size >= ANSWER_BYTES:
            return items[:count]
    return items


def size_of(item: Any) -> int:
    """Return how many bytes of JSON an item has, about."""
    return len(msgspec.json.encode(item, enc_hook=_spelled))


def _spelled(value: Any) -> str:
    return str(value)


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
        page = page_of(rest)
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
                    size += size_of(item)
                left = max(left - len(items), 0)
        return page

    def _link(self, count: int) -> None:
        following = self._request.url.include_query_params(skip=self._skip + count)
        self._response.headers["Link"] = f'<?{following.query}>; rel="next"'


Paging = Annotated[_Paging, Depends()]
"""A parameter of an endpoint that returns a list."""
