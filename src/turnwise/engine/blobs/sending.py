"""Stores the files of a message before its commit, and holds them until the message refers to them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from types import TracebackType
from typing import Self, TypeVar

from msgspec.structs import replace

from turnwise.engine.blobs.files import Files, append_notes, decoded
from turnwise.engine.blobs.streams import source_of
from turnwise.logger import logger
from turnwise.persistence.blobs.protocol import Blob
from turnwise.states.arguments import Partial
from turnwise.states.calls import CallOutcome
from turnwise.states.errors import FileNotFound, InvalidContent, StoreError, TurnwiseError
from turnwise.states.messages import FilePart, Part, ToolResultPart, sound_file

_AnyPart = TypeVar("_AnyPart", Part, FilePart)
_AnyPartial = TypeVar("_AnyPartial", Partial, Partial | None)


class Sending:
    """Holds files from their storage to the commit that refers to them.

    An erasure in another process may meanwhile remove the chat's last reference to the same bytes: so this context
    holds a reference of its own. If it is never left, a sweep releases its files after `Settings.keep_unsent_files`.
    With a `name` it can be left in another process than it was entered.
    """

    def __init__(self, files: Files, chat_id: str, name: str | None = None) -> None:
        self._files = files
        self.chat_id = chat_id
        self._name = name
        self._is_empty = True

    @cached_property
    def _holder(self) -> str:
        """The id under which the files are held; few messages have files."""
        return f"sending {self.chat_id} {self._name or secrets.token_hex(16)}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the files, unless the commit may still come after an error: then a sweep releases them."""
        is_refused = isinstance(exc, TurnwiseError) and not isinstance(exc, StoreError)
        if not self._is_empty and (exc is None or is_refused):
            await self.end()

    async def end(self) -> None:
        with suppress(StoreError):  # a sweep does it
            await self._files.store.let_go(seconds=0, limit=1, chat_id=self._holder)

    async def store_parts(self, parts: Sequence[_AnyPart]) -> tuple[_AnyPart, ...]:
        """Return parts of a user's message, or files of a tool, as they are stored: large files as references.

        Everything is checked before anything is written.
        """
        for part in parts:
            problem = self._files.refusal(part) if isinstance(part, FilePart) else None
            if problem is not None:
                raise InvalidContent(problem)
        if any(map(self._files.is_inline, parts)):
            await self._files.store.facts(self.chat_id)
        referred = {part.blob for part in parts if isinstance(part, FilePart)} - {None}
        sizes = {digest: await self._file_size(digest) for digest in referred if digest is not None}
        return tuple(
            [
                replace(part, size=sizes[part.blob])
                if isinstance(part, FilePart) and part.blob is not None
                else await self._store_file(part)
                for part in parts
            ]
        )

    async def _file_size(self, digest: str) -> int:
        """Return the size of a file that the chat holds, and hold it here, too.

        If the chat holds the file at the second check, it has held it all the time: no removal can have started.
        """
        size = await self._files.size_of(self.chat_id, digest)
        self._is_empty = False
        await self._files.note(self._holder, Blob(digest, size), arriving=True)
        await self._files.size_of(self.chat_id, digest)
        if await self._files.blobs.size(digest) is None:
            raise FileNotFound(self.chat_id, digest, "is gone from the file store")
        return size

    async def _store_file(self, part: _AnyPart) -> _AnyPart:
        """Return a part, as a reference if it is a large file."""
        if not self._files.is_inline(part):
            return part
        source = await source_of(decoded(part))
        self._is_empty = False
        return await self._files.keep(self._holder, part, source.pieces, arriving=True)

    async def imported(self, parts: Sequence[Part]) -> tuple[Part, ...]:
        """Return parts of an imported message as they are stored: large files, also of results, as references."""
        return tuple([await self._store_part(part) for part in parts])

    async def _store_part(self, part: Part) -> Part:
        if isinstance(part, ToolResultPart):
            files = tuple([await self._store_file(file) for file in part.attachments])
            return replace(part, attachments=files)
        return await self._store_file(part)

    async def reply_parts(self, parts: Sequence[Part]) -> tuple[Part, ...]:
        """Return the parts of a model's reply as they are stored: large files as references, if they can be stored."""
        return tuple([await self._reply_part(part) for part in parts])

    async def partial(self, reply: _AnyPartial) -> _AnyPartial:
        """Return an interrupted reply, if there is one, with its parts as they are stored."""
        return reply and replace(reply, parts=await self.reply_parts(reply.parts))

    async def _reply_part(self, part: Part) -> Part:
        try:
            return await self._store_file(part)
        except (InvalidContent, StoreError) as error:
            logger.warning("file_not_stored", chat_id=self.chat_id, problem=str(error))
            return part

    async def store_attachments(self, outcome: CallOutcome) -> CallOutcome:
        """Return a tool's outcome as it is stored: large files as references, refused ones left out with a note."""
        if not outcome.attachments:
            return outcome
        files: list[FilePart] = []
        left_out: list[str] = []
        for file in outcome.attachments:
            try:
                files += await self.store_parts([sound_file(file)])
            except TurnwiseError as error:
                problem = error.problem if isinstance(error, InvalidContent | FileNotFound) else "it cannot be stored"
                left_out.append(f"[the file {file.name or file.media_type} was left out: {problem}]")
                if isinstance(error, StoreError):
                    logger.warning("file_not_stored", chat_id=self.chat_id, problem=str(error))
        return replace(outcome, output=append_notes(outcome.output, left_out), attachments=tuple(files))
