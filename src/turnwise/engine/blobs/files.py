"""Stores and reads the files of chats, and removes those that no chat holds any more."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final, TypeGuard

import msgspec

from turnwise.engine.blobs.streams import FileContent, Source, refusal_of, refusal_of_file, source_of
from turnwise.engine.config.settings import Settings
from turnwise.foreign import described
from turnwise.logger import logger
from turnwise.persistence.blobs.protocol import SWEPT, Blob, BlobGone, FilesElsewhere, FileStore, closing, intact
from turnwise.persistence.blobs.spool import Spool
from turnwise.persistence.protocol import ChatStore
from turnwise.states.errors import (
    ChatArchived,
    FileNotFound,
    InvalidArgument,
    InvalidContent,
    StoreError,
    TurnwiseError,
)
from turnwise.states.file_heads import HEAD_BYTES, fault_of_head
from turnwise.states.files import bytes_in, is_digest
from turnwise.states.messages import FilePart, Part, fault_of_part
from turnwise.states.values.plain import shown, well_formed
from turnwise.states.values.values import Json

_AT_ONCE: Final = 100
"""Unreferenced blobs that are read at a time."""


class Files(msgspec.Struct, frozen=True):
    """The files of the chats of an engine."""

    store: ChatStore
    blobs: FileStore
    settings: Settings

    async def put(self, chat_id: str, content: FileContent, media_type: str | None, name: str | None) -> FilePart:
        source = await source_of(content)
        async with aclosing(source.pieces):
            part = self._check_file(source, media_type, name)
            if (await self.store.facts(chat_id)).archived:
                raise ChatArchived(chat_id)
            return await self.keep(chat_id, part, self._check_pieces(source.pieces, part.media_type))

    async def _check_pieces(self, pieces: AsyncIterable[bytes], media_type: str) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of a file, unless its first bytes show another type, or a picture that is too large."""
        head, seen = b"", False
        async for piece in pieces:
            head = head if seen else head + piece
            if not seen and len(head) >= HEAD_BYTES:
                seen = True
                self._check_head(media_type, head)
            yield piece
        if not seen:
            self._check_head(media_type, head)

    def _check_head(self, media_type: str, head: bytes) -> None:
        problem = fault_of_head(media_type, head, self.settings.picture_limit_pixels)
        if problem is not None:
            raise InvalidContent(problem)

    def _check_file(self, source: Source, media_type: str | None, name: str | None) -> FilePart:
        """Return a file without its content, if it is allowed and its media type is known."""
        kind = media_type if media_type is not None else source.media_type
        if kind is None:
            reason = f"the name {source.name!r} does not tell what is in the file" if source.name else "what is in it?"
            raise InvalidContent(f"{reason}; give media_type=...", argument="media_type")
        part = FilePart(media_type=kind, blob="0" * 64, name=name if name is not None else source.name)
        problem = fault_of_part(part) or refusal_of_file(self.settings, kind, source.size)
        if problem is not None:
            raise InvalidContent(problem)
        return part

    def refusal(self, part: FilePart) -> str | None:
        """Return why a file of a message is not allowed; `None` if it is."""
        return refusal_of(self.settings, part)

    async def keep(
        self, holder: str, part: FilePart, pieces: AsyncIterable[bytes], *, arriving: bool = False
    ) -> FilePart:
        """Store the bytes of a file for a chat, or for an `arriving` message; return the part that refers to them."""

        async def note(blob: Blob) -> None:
            if blob.size == 0:
                raise InvalidContent("a file must not be empty")
            await self.note(holder, blob, arriving=arriving)

        async with closing(self._limit_size(pieces)) as limited:  # a store of others may leave it in the middle
            blob = await self.blobs.put(limited, note)
        is_unreferenced = partial(self.store.is_unreferenced, blob.digest)
        if await is_unreferenced():  # its chat was deleted before there was anything to remove
            await self.blobs.remove(blob.digest, is_unreferenced)
            if not arriving:
                await self.store.rest(holder)
            raise StoreError(SWEPT)
        return msgspec.structs.replace(part, data=None, blob=blob.digest, size=blob.size)

    async def _limit_size(self, pieces: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
        size, most = 0, self.settings.file_limit_bytes
        async with closing(_readable(pieces)) as readable:
            async for piece in readable:
                size += len(piece)
                if size > most:
                    limit = f"a file holds at most {most:,} bytes (Settings.file_limit_bytes)"
                    raise InvalidContent(f"{limit}; this one has more")
                yield piece

    async def read(self, chat_id: str, file: FilePart | str) -> AsyncGenerator[bytes, None]:
        if isinstance(file, FilePart) and file.data is not None:
            yield decoded(file)
            return
        digest = file.blob if isinstance(file, FilePart) else str.__str__(file)
        if digest is None:
            raise InvalidArgument("file", "is given by address; turnwise fetches nothing")
        await self.size_of(chat_id, digest)
        await self.check_place()
        try:
            async with closing(intact(digest, self.blobs.read(digest))) as pieces:
                async for piece in pieces:
                    yield piece
        except BlobGone as gone:
            raise FileNotFound(chat_id, digest, gone.problem) from gone

    async def size_of(self, chat_id: str, digest: str) -> int:
        held = await self.store.held_files(chat_id, [digest]) if is_digest(digest) else {}
        if digest not in held:
            await self.store.facts(chat_id)
            raise FileNotFound(chat_id, digest)
        return held[digest]

    def is_inline(self, part: Part) -> TypeGuard[FilePart]:
        """Whether a part is a file that is too large to stay in a message."""
        return (
            isinstance(part, FilePart)
            and part.data is not None
            and bytes_in(part.data) > self.settings.inline_file_bytes
        )

    async def import_spool(self, chat_id: str, spool: Spool) -> None:
        for digest in spool.blobs:
            await self.blobs.put(spool.read(digest), partial(self.note, chat_id, arriving=True))

    async def note(self, holder: str, blob: Blob, *, arriving: bool = False) -> None:
        """Let a chat, or an `arriving` message, hold a blob, as `HeldFiles.note_file` promises."""
        await self.store.note_file(holder, blob, kept_in=self.blobs.name, arriving=arriving)

    async def check_place(self) -> None:
        """Raise `FilesElsewhere` unless the file store is that of the chat store: files missing here are not lost."""
        place = await self.store.files_kept_in()
        if place is not None and place != self.blobs.name:
            raise FilesElsewhere(place, self.blobs.name)

    async def problem_with(self, digest: str) -> str | None:
        """Return the problem of a missing or corrupt blob; `None` if it is intact."""
        await self.check_place()
        try:
            async with closing(intact(digest, self.blobs.read(digest))) as pieces:
                async for _ in pieces:
                    pass
        except BlobGone as gone:
            return gone.problem
        return None

    async def collect(self) -> bool:
        """Remove the blobs that no chat holds any more; return whether all of them are removed."""
        try:
            await self.check_place()
            while unreferenced := await self.store.unreferenced_files(limit=_AT_ONCE):
                for number, digest in unreferenced:
                    await self._remove(digest)
                    await self.store.settle_unreferenced(number)
        except StoreError as error:
            logger.warning("files_not_removed", problem=str(error))
            return False
        return True

    async def _remove(self, digest: str) -> None:
        if not isinstance(digest, str) or not is_digest(digest):  # it may be the path of another file
            logger.error("unreferenced_file_unreadable", digest=shown(digest))
            return
        is_unreferenced = partial(self.store.is_unreferenced, digest)
        if await is_unreferenced():  # usually a chat still holds it: its sender releases it, too
            await self.blobs.remove(digest, is_unreferenced)

    async def sweep(self) -> None:
        """Release files that were never sent, and remove the remains of interrupted puts and removals."""
        seconds = self.settings.keep_unsent_files
        while await self.store.let_go(seconds=seconds, limit=_AT_ONCE) == _AT_ONCE:
            pass
        await self.blobs.tidy(seconds)
        await self.collect()


def append_notes(output: Json, notes: Sequence[str]) -> Json:
    if not notes:
        return output
    text: str = output if isinstance(output, str) else msgspec.json.encode(output).decode()
    return "\n".join(filter(None, [text, *map(well_formed, notes)]))


def decoded(file: FilePart) -> bytes:
    try:
        return b64decode(file.data or "")
    except binascii.Error:
        raise InvalidContent("the data of a file must be base64 that is not empty; see FilePart.from_bytes") from None


async def _readable(pieces: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield a caller's pieces; raise its errors as `InvalidContent`."""
    try:
        async with closing(pieces) as given:
            async for piece in given:
                yield piece
    except TurnwiseError:
        raise
    except Exception as error:
        problem = f"content: cannot be read to its end: {described(error)[:200]}"
        raise InvalidContent(problem, argument="content") from error
