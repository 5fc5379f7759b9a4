"""The objects of a bucket: put whole, listed, read and deleted by obstore, whose errors become store errors."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Collection
from typing import IO, Final, NamedTuple, TypeVar

import anyio

from turnwise.extras import needing
from turnwise.states.errors import SettingsError, StoreError
from turnwise.states.values.plain import shown

with needing("bucket", __name__):
    from obstore.exceptions import AlreadyExistsError, PermissionDeniedError, UnauthenticatedError
    from obstore.store import AzureStore, GCSStore, LocalStore, MemoryStore, ObjectStore, S3Store

_T = TypeVar("_T")
_KINDS: Final = (S3Store, GCSStore, AzureStore, LocalStore, MemoryStore)
_PREFIX: Final = re.compile(r"(?!\.\.?(/|$))[\w.-]+(/(?!\.\.?(/|$))[\w.-]+)*", re.ASCII)
_LONGEST: Final = 512
"""Characters of a prefix, so that a whole key stays below the 1,024 bytes that S3 allows."""
_AT_ONCE: Final = 2
"""Parts of a large file that are sent, and held in memory, at a time."""
_ANSWER: Final = re.compile(r"<Code>(.*?)</Code>\s*<Message>(.*?)</Message>", re.DOTALL)
"""What is wrong, in the words of a server."""


class Found(NamedTuple):
    """An object that a listing shows."""

    key: str
    size: int
    """In bytes."""


class Objects:
    """The objects of a bucket whose keys begin with a prefix. Keys are given and returned without it.

    Raises:
        SettingsError: that is no object store which can be written to, or no prefix.
    """

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        if not isinstance(store, _KINDS):
            kinds = ", ".join(kind.__name__ for kind in _KINDS)
            raise SettingsError("store", f"must be one of obstore.store: {kinds}; it was {shown(store)}")
        if prefix and (len(prefix) > _LONGEST or not _PREFIX.fullmatch(prefix)):
            problem = (
                f"must be names of letters, digits, '.', '-' and '_' with '/' between, {_LONGEST} characters at most"
            )
            raise SettingsError("prefix", f"{problem}; it was {shown(prefix)}")
        self._store = store
        self._before = f"{prefix}/" if prefix else ""

    def __str__(self) -> str:
        within = f" below {self._before!r}" if self._before else ""
        return f"the bucket {self._store!r}{within} of files"

    async def put(self, key: str, file: IO[bytes]) -> None:
        """Put a file as an object. Who is cancelled meanwhile waits for the answer: it might arrive later."""
        with anyio.CancelScope(shield=True):
            await self._do(self._store.put_async(self._before + key, file, max_concurrency=_AT_ONCE))

    async def create(self, key: str, data: bytes) -> None:
        """Put an object unless there is one of that key."""
        try:
            await self._do(self._store.put_async(self._before + key, data, mode="create"))
        except AlreadyExistsError:
            return

    async def get(self, key: str) -> memoryview | None:
        try:
            answer = await self._do(self._store.get_async(self._before + key), may_lack=True)
            return memoryview(await self._do(answer.bytes_async()))
        except FileNotFoundError:
            return None

    async def get_range(self, key: str, start: int, end: int) -> memoryview | None:
        try:
            data = await self._do(self._store.get_range_async(self._before + key, start=start, end=end), may_lack=True)
        except FileNotFoundError:
            return None
        return memoryview(data)

    async def listed(self, folder: str) -> list[Found]:
        """Return the objects whose keys begin with `folder` and a slash, in the order of the keys."""
        entries = await self._do(self._store.list(f"{self._before}{folder}").collect_async())
        first = len(self._before)
        return sorted(Found(one["path"][first:], one["size"]) for one in entries)

    async def delete(self, keys: Collection[str]) -> None:
        """Delete objects, in any order. Those that are not there are deleted already."""
        if not keys:
            return
        try:
            await self._do(self._store.delete_async([self._before + key for key in keys]), may_lack=True)
        except FileNotFoundError:  # some stores say so, and leave the rest
            for key in keys if len(keys) > 1 else ():
                await self.delete([key])

    async def _do(self, work: Awaitable[_T], *, may_lack: bool = False) -> _T:
        """Send a request and return the object store's answer.

        Raises:
            AlreadyExistsError: there is such an object.
            FileNotFoundError: there is none, where it `may_lack`.
            StoreError: the object store refused, or cannot be reached.
        """
        try:
            return await work
        except AlreadyExistsError:
            raise
        except Exception as error:
            if may_lack and isinstance(error, FileNotFoundError):
                raise
            raise StoreError(f"{self}: {_problem(error)}") from error


def _problem(error: Exception) -> str:
    """Describe an error without the request's address, which may contain secrets."""
    words_of_store = str(error).partition("\n\nDebug source")[0]
    answer = _ANSWER.search(words_of_store)
    words = ": ".join(answer.groups()) if answer else re.sub(r"\?\S*", "", words_of_store)
    refused = isinstance(error, PermissionDeniedError | UnauthenticatedError)
    needed = "; its credentials must allow to put, get, list and delete objects" if refused else ""
    return " ".join(words.split())[:400] + needed
