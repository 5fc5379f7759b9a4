"""Reads changed chats by the numbers of commits, without skipping commits that become visible late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Self

from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.reading import Numbers, StoredChange

CHANGES_PER_READ: Final = 500
_LOOK_BACK: Final = 10_000
"""More commits than can end while one commit, with its number, takes milliseconds to end."""


class SeenChange(NamedTuple):
    """A chat that was changed or deleted."""

    change: StoredChange
    resume: int
    """The number after which a reader can resume that has seen all changes up to this one."""


class ChangeReader:
    """Reads changes after a number. Each `read` returns the visible changes that were not returned before.

    In PostgreSQL a commit gets its number before it becomes visible, so a lower number may appear later. No number up
    to `settled` can appear any more: it was the highest visible one, and all transactions of that time have ended.
    """

    def __init__(self, store: ChatStore, after: int, *, owner: str | None = None) -> None:
        self._store = store
        self._owner = owner
        self.more = True
        """Whether the last page was full."""
        self._begin(after)

    def _begin(self, after: int) -> None:
        self._seen: set[int] = set()
        self._pending: Numbers | None = None
        self._proven = 0
        self.settled = after

    @classmethod
    async def at_end(cls, store: ChatStore) -> Self:
        numbers = await store.numbers()
        is_proven = numbers.oldest >= numbers.following
        reader = cls(store, numbers.last if is_proven else max(0, numbers.last - _LOOK_BACK))
        if not is_proven:
            reader._seen = set(await store.change_numbers(after=reader.settled))
        return reader

    async def read(self, limit: int = CHANGES_PER_READ) -> Sequence[SeenChange] | None:
        """Return the next changes, by number; `None`, once, if the database was restored to an earlier state."""
        numbers = await self._store.numbers()
        if numbers.last < self.settled:
            self._begin(0)
            return None
        found = await self._store.changes(after=self.settled, limit=limit, seen=sorted(self._seen), owner=self._owner)
        self.more = len(found) >= limit
        self._prove(numbers)
        reach = min(self._proven, found[-1].number) if self.more else self._proven
        self.settled = max(self.settled, reach)
        self._seen = {number for number in (*self._seen, *(one.number for one in found)) if number > self.settled}
        return [SeenChange(one, min(one.number, self.settled)) for one in found]

    def _prove(self, numbers: Numbers) -> None:
        pending = self._pending
        if numbers.oldest >= numbers.following:
            self._proven, self._pending = numbers.last, None
        elif pending is None or numbers.following < pending.following:  # or another server has taken over
            self._pending = numbers
        elif numbers.oldest >= pending.following:
            self._proven, self._pending = pending.last, numbers
