"""Stores the files of what is about to be committed, and sees to it that they are there until that refers to them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from functools import cached_property
from types import TracebackType
from typing import Self, TypeVar

from msgspec.structs import replace

from turnwise.engine.blobs.files import Files, append_notes, decoded
from turnwise.logger import logger
from turnwise.persistence.blobs.protocol import Blob
from turnwise.states.arguments import Partial
from turnwise.states.calls import CallOutcome
from turnwise.states.errors import FileNotFound, InvalidContent, StoreError, TurnwiseError
from turnwise.states.messages import FilePart, Part, ToolResultPart, sound_file

_AnyPart = TypeVar("_AnyPart", Part, FilePart)
_AnyPartial = TypeVar("_AnyPartial", Partial, Partial | None)


class Sending:
    """Files between the moment in which they are stored and the commit that refers to them.

    An erasure in another process may meanwhile remove the last message that refers to the same bytes, and with it the
    chat's reference to them. This context therefore holds one of its own until it is left. If it is never left, a sweep
    releases its files after `Settings.keep_unsent_files`, like all files that were never sent.

    Args:
        files: the files of the engine.
        chat_id: the chat.
        name: of this holder among those of the chat, to leave it in another process than it was entered.
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
        """Enter."""
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let go of the files, unless the commit was given up, and may come still: a sweep lets go of them then."""
        is_refused = isinstance(exc, TurnwiseError) and not isinstance(exc, StoreError)
        if not self._is_empty and (exc is None or is_refused):
            await self.end()

    async def end(self) -> None:
        """Let go of the files: by now a message refers to them, or none will."""
        with suppress(StoreError):  # a sweep does it
            await self._files.store.let_go(seconds=0, limit=1, chat_id=self._holder)

    async def store_parts(self, parts: Sequence[_AnyPart]) -> tuple[_AnyPart, ...]:
        """Return parts of a user's message, or files of a tool, as they are stored: large files as references.

        Everything is checked before anything is written.

        Raises:
            InvalidContent: a file is too large, of a type that is not allowed, or large and no base64.
            FileNotFound: the chat does not hold a file that is referred to, or the file is gone.
            ChatNotFound: there is no such chat.
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
        """Return the size of a file that the chat holds, and that stays from now on.

        The chat is asked again once there is the other holder. If it holds the file still, it has held it all the time,
        and who removes blobs can have looked neither before nor in between. If it does not, the file may be leaving.
        """
        size = await self._files.size_of(self.chat_id, digest)
        self._is_empty = False
        await self._files.note(self._holder, Blob(digest, size), arriving=True)
        await self._files.size_of(self.chat_id, digest)
        if await self._files.blobs.size(digest) is None:
            raise FileNotFound(self.chat_id, digest, "is gone from the file store")
        return size

    async def _store_file(self, part: _AnyPart) -> _AnyPart:
        """Return a part, as a reference if it is a large file.

        Raises:
            InvalidContent: it is no base64.
            StoreError: it cannot be stored.
        """
        if not self._files.is_inline(part):
            return part
        whole = decoded(part)
        self._is_empty = False
        return await self._files.keep(self._holder, part, _in_one(whole), arriving=True)

    async def imported(self, parts: Sequence[Part]) -> tuple[Part, ...]:
        """Return parts of a message from elsewhere as they are stored: large files, also of results, as references.

        Raises:
            StoreError: a file cannot be stored.
        """
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
        """Return a reply that was cut off with its parts as they are stored; `None` as it is."""
        if reply is None:
            return reply
        return replace(reply, parts=await self.reply_parts(reply.parts))

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


async def _in_one(whole: bytes) -> AsyncGenerator[bytes, None]:
    yield whole
