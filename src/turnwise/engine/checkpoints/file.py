"""A file to which checkpoints are appended, by any number of processes: each line names the hash of the one before."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import anyio.to_thread
import orjson

from turnwise.engine.checkpoints.destination import NotPublished
from turnwise.persistence.audit.checkpoints import Head, checkpoint_line, hash_of_line
from turnwise.persistence.audit.record import GENESIS
from turnwise.persistence.audit.signing import SigningKey
from turnwise.states.errors import SettingsError

_LOCK_TIMEOUT_S: Final = 1.0
"""Seconds to wait for another process that appends."""
_GLANCE: Final = 0.005
_PIECE: Final = 4096


class PublishedFile:
    """Appends under a lock, so that the lines of all processes make one chain, and syncs before it returns.

    It stays the same file wherever the process goes.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path).absolute()
        self.name = path

    async def check(self) -> None:
        """Raise a `SettingsError` if the file cannot be written."""
        try:
            await anyio.to_thread.run_sync(self._check)
        except OSError as error:
            raise SettingsError("checkpoints", f"{self.name!r} cannot be written: {error.strerror or error}") from error

    async def published_versions(self, chat_ids: Collection[str]) -> Mapping[str, int]:
        """Return up to which version chats were published."""
        return await anyio.to_thread.run_sync(
            partial(self._published_versions, frozenset(chat_ids)), abandon_on_cancel=True
        )

    async def publish(self, heads: Sequence[Head], *, at: datetime, key: SigningKey) -> None:
        """Append a line for each."""
        await anyio.to_thread.run_sync(partial(self._append, heads, at, key), abandon_on_cancel=True)

    def _check(self) -> None:
        if self._path.exists() and not self._path.is_file():  # a pipe or a device may keep whoever reads it for ever
            raise SettingsError("checkpoints", f"{self.name!r} cannot be written: it is no regular file")
        os.close(self._opened())

    def _opened(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def _published_versions(self, chat_ids: frozenset[str]) -> Mapping[str, int]:
        versions: dict[str, int] = {}
        with self._os_errors_explained(), self._path.open("rb") as lines:
            for line in lines:
                try:
                    fields = orjson.loads(line)
                    if fields["chat_id"] in chat_ids:
                        versions[fields["chat_id"]] = fields["count"]
                except (ValueError, TypeError, KeyError):  # half a line, of a process that was killed
                    continue
        return versions

    def _append(self, heads: Sequence[Head], at: datetime, key: SigningKey) -> None:
        with self._os_errors_explained(), self._locked() as file:
            last, is_whole = _last_line(file)
            prev = GENESIS if last is None else hash_of_line(last)
            written = bytearray() if is_whole else bytearray(b"\n")
            for stands in heads:
                line = checkpoint_line(stands, at=at, prev=prev, key=key)
                prev = hash_of_line(line)
                written += line.encode() + b"\n"
            while written:
                del written[: os.write(file, written)]
            os.fsync(file)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        file = self._opened()
        try:
            until = time.monotonic() + _LOCK_TIMEOUT_S
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(_GLANCE)
            yield file
        finally:
            os.close(file)

    @contextmanager
    def _os_errors_explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            busy = error.errno in (errno.EAGAIN, errno.EACCES) and isinstance(error, BlockingIOError)
            why = "another process holds its lock" if busy else error.strerror or str(error)
            raise NotPublished(f"{self.name!r} cannot be written: {why}") from error


def _last_line(file: int) -> tuple[bytes | None, bool]:
    """Return the last line that is not empty, and whether its end was written: its process may have been killed."""
    end = os.lseek(file, 0, os.SEEK_END)
    tail, start = b"", end
    while start > 0 and b"\n" not in tail.strip(b"\n"):
        start = max(0, start - _PIECE)
        tail = os.pread(file, end - start, start)
    lines = tail.strip(b"\n").split(b"\n")
    return lines[-1] or None, not tail or tail.endswith(b"\n")
