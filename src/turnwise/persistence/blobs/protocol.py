"""What a file store promises, what a chat store keeps about the blobs that its chats hold, and the bytes of these."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, Protocol, TypeVar

from turnwise.states.errors import StoreError, TurnwiseError


class Blob(NamedTuple):
    """The bytes of a file, as a file store keeps them."""

    digest: str
    """Their SHA-256, as hex: their name."""
    size: int
    """How many there are, at least one."""


Note = Callable[[Blob], Awaitable[None]]
"""Writes down who holds a blob: awaited once all of the bytes have come, before they stand under their name."""
IsUnreferenced = Callable[[], Awaitable[bool]]
"""Returns whether no chat holds a blob."""

SWEPT: Final = "what was there of a file was swept while it was put: it went on too slowly; put it again"


class BlobGone(TurnwiseError):
    """There is no blob of that digest, or its bytes are not those that it is named after."""

    def __init__(self, digest: str, problem: str = "is not there") -> None:
        self.digest = digest
        self.problem = problem
        super().__init__(f"the blob {digest} {problem}")


class FilesElsewhere(StoreError):
    """The files of a chat store are in another file store than the one that was given. Nothing was written."""

    def __init__(self, known: str, given: str) -> None:
        self.known = known
        self.given = given
        super().__init__(
            f"the files of this store are kept in {known!r}, and this engine was given {given!r}; give it the right"
            " file store with Engine(files=...); nothing was written"
        )


class FileStore(Protocol):
    """Keeps blobs: bytes under their own SHA-256.

    What stands under a name is whole: a crash leaves remains of a `put` elsewhere, which `tidy` removes. No method
    holds more than a piece of a blob in memory. Methods raise what their arguments raise, and otherwise only
    `StoreError`s and `BlobGone`. Every method is safe to call from many tasks and processes at once.
    """

    @property
    def name(self) -> str:
        """A name that no other file store has, once it is open. A chat store remembers where its files are by it."""
        ...

    async def open(self) -> None:
        """Make it ready, once before anything else."""

    async def close(self) -> None:
        """Let everything go that was opened."""

    async def put(self, content: AsyncIterable[bytes], note: Note) -> Blob:
        """Keep bytes, and return the blob that they are. The same bytes again change nothing.

        If `content` or `note` raises, the store fails, or the caller is cancelled, no blob comes of it; a chat that was
        noted then holds one that is not there, until it is put again or `let_go`.
        """

    def read(self, digest: str) -> AsyncIterator[bytes]:
        """Yield a blob piece by piece.

        Raises:
            BlobGone: it is not there, from the first piece on or, if it is removed meanwhile, from a later one on.
        """

    async def size(self, digest: str) -> int | None:
        """Return the size of a blob in bytes; `None` if it is missing."""

    async def remove(self, digest: str, is_unreferenced: IsUnreferenced) -> None:
        """Remove a blob for good unless a chat holds it, however closely a `put` of the same bytes follows.

        Chats that hold it can read it meanwhile.
        """

    async def tidy(self, seconds: float) -> None:
        """Remove what is left of a `put` that went on for the last time `seconds` ago or longer, and never ended."""


class HeldFiles(Protocol):
    """What a chat store keeps about blobs: which chat holds which. It is a part of `ChatStore`.

    A chat holds a blob from `note_file` on, or from the commit of a message that refers to it. A blob that a message
    has referred to is held until an erasure takes it out of the last message, or the chat is deleted; one that was
    never sent is held until `let_go`. A blob that a chat no longer holds is noted in the same transaction.
    What is about to be sent holds its blobs under a name of its own, as a chat would: until its commit they stay,
    even if everything is erased of the chat.
    """

    def file_store(self) -> FileStore:
        """Return the file store in the chat store's own database. It is opened and closed with the chat store."""

    async def files_kept_in(self) -> str | None:
        """Return the name of the file store that keeps the blobs; `None` before the first."""

    async def note_file(self, chat_id: str, blob: Blob, *, kept_in: str, arriving: bool = False) -> None:
        """Let a chat hold a blob; if it does so already, as of now.

        Args:
            chat_id: the chat, or the name of what is about to be sent.
            blob: the blob.
            kept_in: the name of the file store. All blobs are in one, until the last has been removed.
            arriving: whether there is no chat of that id yet: it is still to be imported, or it is no chat.

        Raises:
            ChatNotFound: there is no such chat, and it is not `arriving`.
            ChatDeleted: there was one.
            StoreError: blobs are in another file store.
        """

    async def held_files(self, chat_id: str, digests: Collection[str] | None = None) -> Mapping[str, int]:
        """Return the sizes of the blobs that a chat holds, by digest: of all, or of those named.

        Of a chat that does not exist there are none.
        """

    async def let_go(self, *, seconds: float, limit: int, chat_id: str | None = None) -> int:
        """Let go of blobs that no message refers to and that were put `seconds` ago or longer; return of how many.

        Of all such blobs of one chat, or of up to `limit` holdings of all chats, what was put longest ago first. With
        0 seconds no clock is asked: what was put before a clock was set back is let go of, too.
        """

    async def unreferenced_files(self, *, limit: int) -> list[tuple[int, str]]:
        """Return up to `limit` notes of blobs that a chat has let go of: the number and digest of each, in order."""

    async def is_unreferenced(self, digest: str) -> bool:
        """Whether no chat holds a blob."""

    async def settle_unreferenced(self, number: int) -> None:
        """Forget a note: what it stands for was done."""


T = TypeVar("T")

PIECE: Final = 512 * 1024
"""Bytes that a row holds; the last row of a blob holds fewer."""


@asynccontextmanager
async def closing(items: AsyncIterable[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Yield an iterator over the items, and close it in the end if it can be closed: it may have a file open.

    A generator that is left in the middle, as by a full disk, is else closed by a garbage collection.
    """
    iterator = aiter(items)
    try:
        yield iterator
    finally:
        close = getattr(iterator, "aclose", None)
        if close is not None:
            await close()


async def in_pieces(content: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the same bytes in pieces of `PIECE` bytes, the last one shorter; none is empty."""
    waiting = bytearray()
    async with closing(content) as given:
        async for data in given:
            for first in range(0, len(data), PIECE):
                waiting += data[first : first + PIECE]
                if len(waiting) >= PIECE:
                    yield bytes(waiting[:PIECE])
                    del waiting[:PIECE]
    if waiting:
        yield bytes(waiting)


async def intact(digest: str, pieces: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of a blob.

    Raises:
        BlobGone: after the last piece, if all of them together are not what the digest says.
    """
    sha256 = hashlib.sha256()
    async with closing(pieces) as given:
        async for piece in given:
            sha256.update(piece)
            yield piece
    if sha256.hexdigest() != digest:
        raise BlobGone(digest, "is damaged: its bytes are not those that it is named after")
