"""The marks of puts that go on in a bucket: by them is found what a process that was killed has left there."""

from __future__ import annotations

import secrets
from itertools import groupby
from typing import TYPE_CHECKING, Final

from turnwise.persistence.blobs.protocol import SWEPT
from turnwise.states.errors import StoreError

if TYPE_CHECKING:
    from turnwise.persistence.blobs.objects import Found, Objects

_ARRIVING: Final = "arriving"
_STARTED, _NAMED, _SWEPT = "started", "named", "swept"


class Arrivals:
    """Marks of the places at which blobs of several pieces arrive.

    A put writes `started` before its first piece, and `named`, which holds the key of the name, before that name. Once
    the name stands, it looks whether the place is swept: for `swept`, then for `started`. In the end it deletes
    `started`, then `named`. A sweep writes `swept`, then looks for `named` and the name, and for `started`; it deletes
    `swept` last. So of a put and a sweep of the same place, one notices the other in any order:

    - If the put finds no sweep, its name stood before `swept` did, and the sweep looks later. It finds `named` and the
      name, or neither `named` nor `started`: they are deleted in the other order. In both cases it leaves the pieces.
    - If the sweep finds `started` and no `named`, or `named` and no name, the name comes after `swept`. Then the put
      finds that, or finds that `started` is gone if the sweep is over, and takes the name away.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def begin(self, place: str) -> None:
        """Mark that pieces arrive at a place."""
        await self._objects.put(_mark(place, _STARTED), b"")

    async def announce(self, place: str, name: str) -> None:
        """Mark by which key the pieces of a place will have their name."""
        await self._objects.put(_mark(place, _NAMED), name.encode())

    async def check(self, place: str) -> None:
        """Check that a place, which has its name now, is not swept.

        Raises:
            StoreError: it is.
        """
        is_swept = await self._objects.is_there(_mark(place, _SWEPT))
        if is_swept or not await self._objects.is_there(_mark(place, _STARTED)):
            raise StoreError(SWEPT)

    async def end(self, place: str) -> None:
        """Take the marks of a put away."""
        for mark in (_STARTED, _NAMED):
            await self._objects.delete([_mark(place, mark)])

    async def tidy(self, seconds: float) -> None:
        """Delete the pieces of places without a name at which nothing was put for so long.

        The marks stay until the next call that comes so much later: it deletes what a put has added that did not know
        yet that it was swept.
        """
        if not await self._objects.listed(_ARRIVING):
            return
        # The times of objects are those of the object store, so it is asked for the present, too.
        clock = secrets.token_hex(16)
        await self.begin(clock)
        arriving = {place: [*marks] for place, marks in groupby(await self._objects.listed(_ARRIVING), _to_place)}
        await self.end(clock)
        now = max((mark.at for mark in arriving.pop(clock, ())), default=None)
        if now is None:
            return  # another process is tidying
        for place, marks in arriving.items():
            pieces = await self._objects.listed(pieces_of(place))
            if (now - max(one.at for one in (*marks, *pieces))).total_seconds() >= seconds:
                await self._sweep(place, again=any(mark.key == _mark(place, _SWEPT) for mark in marks))

    async def _sweep(self, place: str, *, again: bool) -> None:
        if not again:
            await self._objects.put(_mark(place, _SWEPT), b"")
        name = await self._objects.get(_mark(place, _NAMED))
        is_over = name is None and not await self._objects.is_there(_mark(place, _STARTED))
        if not is_over and (name is None or not await self._objects.is_there(str(name, "ascii"))):
            await self._objects.delete([piece.key for piece in await self._objects.listed(pieces_of(place))])
            if not again:
                return
        await self.end(place)
        await self._objects.delete([_mark(place, _SWEPT)])


def pieces_of(place: str) -> str:
    """Return the folder in which the pieces of a place are, but for the last."""
    return f"pieces/{place}"


def _mark(place: str, mark: str) -> str:
    return f"{_ARRIVING}/{place}/{mark}"


def _to_place(mark: Found) -> str:
    return mark.key.split("/")[1]
