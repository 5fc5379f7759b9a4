"""Pages of lists: no answer is longer than its reader may have to keep, and a header leads to the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
from fastapi import Depends, Query
from starlette.requests import Request
from starlette.responses import Response

ANSWER_BYTES: Final = 8_388_608
"""A list ends with the item that brings it to so many bytes."""
T = TypeVar("T")


def page_of(items: Sequence[T]) -> Sequence[T]:
    """Return the first of the items, about as many as an answer may hold, but at least one."""
    size = 0
    for count, item in enumerate(items, start=1):
        size += len(msgspec.json.encode(item, enc_hook=_spelled))
        if size >= ANSWER_BYTES:
            return items[:count]
    return items


def _spelled(value: Any) -> str:
    return str(value)


class _Paging:
    """Cuts the list of an answer, and names the rest in its header `Link` (RFC 8288), with `rel="next"`."""

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
            following = self._request.url.include_query_params(skip=self._skip + len(page))
            self._response.headers["Link"] = f'<?{following.query}>; rel="next"'
        return [*page]


Paging = Annotated[_Paging, Depends()]
"""Of an endpoint that answers with a list."""
