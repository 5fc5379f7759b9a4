"""Publishing of signed lengths and hashes of the logs outside of the store: its settings, and its destinations."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Protocol
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import orjson
from pydantic import SkipValidation

from turnwise.engine.isolation.clock import fail_after
from turnwise.persistence.audit.checkpoints import Head, checkpoint_line, hash_of_line
from turnwise.persistence.audit.record import GENESIS
from turnwise.persistence.audit.signing import SigningKey
from turnwise.states.errors import SettingsError, TurnwiseError
from turnwise.states.files import path_text
from turnwise.states.values.checked import checked
from turnwise.states.values.limits import Count, Positive
from turnwise.states.values.plain import shown

if TYPE_CHECKING:
    from urllib.request import OpenerDirector

_ACCEPTED: Final = range(200, 300)
_LOCK_TIMEOUT_S: Final = 1.0
"""Seconds to wait for another process that appends."""
_LOCK_RETRY_INTERVAL_S: Final = 0.005
_CHUNK_BYTES: Final = 4096


class NotPublished(TurnwiseError):
    """Checkpoints could not be published now. Nothing is lost: they are published later."""


class Destination(Protocol):
    """Takes checkpoints. Every method raises `NotPublished` if that fails now."""

    name: str
    """Its name in logs, without secrets."""

    async def check(self) -> None:
        """Raise a `SettingsError` if nothing can ever be published there."""

    async def published_versions(self, chat_ids: Collection[str]) -> Mapping[str, int]:  # noqa: ARG002 - by default
        """Return the published versions of chats, as far as they are known: none of what cannot be asked."""
        return {}

    async def publish(self, heads: Sequence[Head], *, at: datetime, key: SigningKey) -> None:
        """Sign and publish checkpoints, in this order. Called again with the same ones after it has failed."""


class PublishedFile(Destination):
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
        return await anyio.to_thread.run_sync(
            partial(self._published_versions, frozenset(chat_ids)), abandon_on_cancel=True
        )

    async def publish(self, heads: Sequence[Head], *, at: datetime, key: SigningKey) -> None:
        await anyio.to_thread.run_sync(partial(self._append, heads, at, key), abandon_on_cancel=True)

    def _check(self) -> None:
        if self._path.exists() and not self._path.is_file():  # reading a pipe or a device may block for ever
            raise SettingsError("checkpoints", f"{self.name!r} cannot be written: it is no regular file")
        os.close(self._open())

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def _published_versions(self, chat_ids: frozenset[str]) -> Mapping[str, int]:
        versions: dict[str, int] = {}
        with self._explain_os_errors(), self._path.open("rb") as lines:
            for line in lines:
                try:
                    fields = orjson.loads(line)
                    if fields["chat_id"] in chat_ids:
                        versions[fields["chat_id"]] = fields["count"]
                except (ValueError, TypeError, KeyError):  # half a line, of a process that was killed
                    continue
        return versions

    def _append(self, heads: Sequence[Head], at: datetime, key: SigningKey) -> None:
        with self._explain_os_errors(), self._lock() as file:
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
    def _lock(self) -> Iterator[int]:
        file = self._open()
        try:
            until = time.monotonic() + _LOCK_TIMEOUT_S
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(_LOCK_RETRY_INTERVAL_S)
            yield file
        finally:
            os.close(file)

    @contextmanager
    def _explain_os_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            busy = error.errno in (errno.EAGAIN, errno.EACCES) and isinstance(error, BlockingIOError)
            why = "another process holds its lock" if busy else error.strerror or str(error)
            raise NotPublished(f"{self.name!r} cannot be written: {why}") from error


def _last_line(file: int) -> tuple[bytes | None, bool]:
    """Return the last line that is not empty, and whether it is complete."""
    end = os.lseek(file, 0, os.SEEK_END)
    tail, start = b"", end
    while start > 0 and b"\n" not in tail.strip(b"\n"):
        start = max(0, start - _CHUNK_BYTES)
        tail = os.pread(file, end - start, start)
    lines = tail.strip(b"\n").split(b"\n")
    return lines[-1] or None, not tail or tail.endswith(b"\n")


class Address(Destination):
    """Posts lines; any answer of 2xx acknowledges them. Redirects are not followed.

    The lines of one engine form a chain that begins when the engine is entered. Lines without an acknowledgement are
    posted again unchanged, so a receiver may get some lines twice.
    """

    def __init__(self, address: str, headers: Mapping[str, str], timeout: float) -> None:
        url = urlsplit(address)
        port = "" if url.port is None else f":{url.port}"
        self.name = f"{url.scheme}://{url.hostname}{port}"
        self._address = address
        self._headers = {"Content-Type": "application/jsonl", "User-Agent": "turnwise", **headers}
        self._timeout = timeout
        self._thread = anyio.CapacityLimiter(1)
        """A server that sends its answer byte by byte may block a thread for long, but only one."""
        self._prev = GENESIS
        self._unacknowledged: list[str] = []
        _check(self._headers)

    async def check(self) -> None:
        """Do nothing: a server that is down now may answer later."""

    async def publish(self, heads: Sequence[Head], *, at: datetime, key: SigningKey) -> None:
        prev = self._prev
        if not self._unacknowledged:
            for head in heads:
                self._unacknowledged.append(checkpoint_line(head, at=at, prev=prev, key=key))
                prev = hash_of_line(self._unacknowledged[-1])
        body = "".join(f"{line}\n" for line in self._unacknowledged).encode()
        post = partial(_post, self._address, body, self._headers, self._timeout)
        try:
            with fail_after(self._timeout):
                status = await anyio.to_thread.run_sync(post, abandon_on_cancel=True, limiter=self._thread)
        except TimeoutError as error:
            raise NotPublished(f"{self.name} did not answer within {self._timeout:g} s") from error
        except (OSError, ValueError) as error:
            reason = type(getattr(error, "reason", None) or error).__name__  # the text may hold secrets of the address
            raise NotPublished(f"{self.name} cannot be reached: {reason}") from error
        if status not in _ACCEPTED:
            raise NotPublished(f"{self.name} answered {status}")
        self._prev, self._unacknowledged = hash_of_line(self._unacknowledged[-1]), []


def _post(address: str, body: bytes, headers: dict[str, str], timeout: float) -> int:
    """Return the status of the answer to one request, made in a thread."""
    from http.client import HTTPException  # noqa: PLC0415 - takes long to import, and few processes post
    from urllib.error import HTTPError, URLError  # noqa: PLC0415 - as above
    from urllib.request import Request  # noqa: PLC0415 - as above

    request = Request(address, data=body, headers=headers, method="POST")  # noqa: S310 - `Checkpoints` checks it
    try:
        with _opener().open(request, timeout=timeout) as answer:
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code
    except HTTPException as error:
        raise URLError(error) from error


@cache
def _opener() -> OpenerDirector:
    from urllib.request import HTTPRedirectHandler, build_opener  # noqa: PLC0415 - as above

    class NoRedirects(HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            """Follow none: a header may hold a secret that belongs to this address."""

    return build_opener(NoRedirects)


def _check(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        is_token = bool(name) and all(33 <= ord(letter) < 127 and letter != ":" for letter in name)  # noqa: PLR2004 - ASCII
        if not is_token or any(ord(letter) > 255 or letter in "\r\n" for letter in value):  # noqa: PLR2004 - Latin-1
            raise SettingsError("headers", "a name or value cannot be sent in a header of HTTP")


WEB: Final = ("http", "https")
Place = str | os.PathLike[str]


@checked
class Checkpoints:
    """Publishes signed lengths and hashes of the logs, so that a later rewrite of the database is found.

    The process that has committed does so in the background whenever the chat comes to rest: a turn never waits for it,
    and never fails by it. A failed attempt is logged and repeated.

    Args:
        key: signs.
        to: the path of a file to which lines are appended, an address (`https://...`) to which they are posted, or
            several of these. It must be where those who may write to the database may not. A relative path stays the
            file that it is now.
        every: also whenever a log has grown by so many records.
        headers: of each request to an address, such as `Authorization`.
        timeout: the seconds that a request may take.
        catch_up: how many of the latest chats are checked when the engine is entered, for commits that a killed
            process has not published.

    Raises:
        SettingsError: `to` is neither a path nor an address, or a header cannot be sent.
    """

    def __init__(
        self,
        key: SigningKey,
        to: Annotated[Place | Sequence[Place], SkipValidation],
        *,
        every: Positive | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10,
        catch_up: Count = 1000,
    ) -> None:
        if not 0 < timeout <= _LONGEST:
            raise SettingsError("timeout", f"must be above 0 and {_LONGEST:g} seconds at most; it was {timeout:g}")
        places = [to] if isinstance(to, str | os.PathLike) else to
        if not isinstance(places, list | tuple) or not places:
            raise SettingsError("to", f"must be a path or an address, or a list of them; it was {shown(to)}")
        self.key = key
        self.every = every
        self.catch_up = catch_up
        self._made = [_maker(place, headers or {}, timeout) for place in places]
        self._names = [one.name for one in self.destinations]

    @property
    def destinations(self) -> Sequence[Destination]:
        """The places to publish to: addresses anew for each engine that is entered, files as they were named once."""
        return [made() for made in self._made]

    def __repr__(self) -> str:
        return f"Checkpoints({self.key!r}, to={self._names})"


def _maker(place: object, headers: Mapping[str, str], timeout: float) -> Callable[[], Destination]:
    path = path_text(place)
    if path is None:
        raise SettingsError("to", f"must be a path or an address; one was {shown(place)}")
    if isinstance(place, str) and "://" in path:
        try:
            url = urlsplit(path)
            usable = url.scheme in WEB and bool(url.hostname) and url.port != 0 and path.isprintable()
        except ValueError:
            usable = False
        if not usable or " " in path:
            raise SettingsError("to", "must be an address as https://host/path, or a path; it was neither")
        if "@" in url.netloc:
            raise SettingsError("to", "must name no user and password: `headers` can hold an Authorization")
        return partial(Address, path, headers, timeout)
    if not path or "\0" in path:
        raise SettingsError("to", f"must be a path or an address; one was {shown(path)}")
    file = PublishedFile(path)
    return lambda: file


_LONGEST: Final = 600.0
