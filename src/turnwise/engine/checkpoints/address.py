"""An address of HTTP to which checkpoints are posted, as lines of JSON."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from turnwise.engine.checkpoints.destination import NotPublished
from turnwise.engine.isolation.clock import fail_after
from turnwise.persistence.audit.checkpoints import Head, checkpoint_line, hash_of_line
from turnwise.persistence.audit.record import GENESIS
from turnwise.persistence.audit.signing import SigningKey
from turnwise.states.errors import SettingsError

_MEDIA_TYPE: Final = "application/jsonl"
_ACCEPTED: Final = range(200, 300)


class Address:
    """Posts lines; any answer of 2xx means that they are kept. Redirects are not followed.

    The lines of one engine make a chain, from when it was entered on. What was not acknowledged is posted again, the
    same lines: whoever receives them may get some twice.
    """

    def __init__(self, address: str, headers: Mapping[str, str], timeout: float) -> None:
        url = urlsplit(address)
        port = "" if url.port is None else f":{url.port}"
        self.name = f"{url.scheme}://{url.hostname}{port}"
        self._address = address
        self._headers = {"Content-Type": _MEDIA_TYPE, "User-Agent": "turnwise", **headers}
        self._timeout = timeout
        self._prev = GENESIS
        self._lines: list[str] = []
        """What was not acknowledged yet."""
        _check(self._headers)

    async def check(self) -> None:
        """Do nothing: what does not answer now may do so later."""

    async def published_versions(self, chat_ids: Collection[str]) -> Mapping[str, int]:  # noqa: ARG002 - nobody can be asked
        """Return nothing: what was published is not known here."""
        return {}

    async def publish(self, heads: Sequence[Head], *, at: datetime, key: SigningKey) -> None:
        """Post a line for each, in one request."""
        prev = self._prev
        if not self._lines:
            for stands in heads:
                self._lines.append(checkpoint_line(stands, at=at, prev=prev, key=key))
                prev = hash_of_line(self._lines[-1])
        body = "".join(f"{line}\n" for line in self._lines).encode()
        try:
            with fail_after(self._timeout):
                answer = await anyio.to_thread.run_sync(self._post, body, abandon_on_cancel=True)
        except TimeoutError as error:
            raise NotPublished(f"{self.name} did not answer within {self._timeout:g} s") from error
        if answer not in _ACCEPTED:
            problem = f"answered {answer}" if isinstance(answer, int) else f"cannot be reached: {answer}"
            raise NotPublished(f"{self.name} {problem}")
        self._prev, self._lines = hash_of_line(self._lines[-1]), []

    def _post(self, body: bytes) -> int | str:
        from turnwise.engine.checkpoints.posting import post  # noqa: PLC0415 - takes long to import

        return post(self._address, body, self._headers, self._timeout)


def _check(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        fits = all(33 <= ord(letter) < 127 and letter != ":" for letter in name)  # noqa: PLR2004 - ASCII
        try:
            value.encode("latin-1")
        except UnicodeEncodeError:
            fits = False
        if not name or not fits or "\n" in value or "\r" in value:
            raise SettingsError("headers", "a name or value cannot be sent in a header of HTTP")
