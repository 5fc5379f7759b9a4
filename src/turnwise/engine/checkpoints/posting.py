"""Posting: one request of HTTP, by the standard library alone. It takes long to import, and few processes need it."""

from __future__ import annotations

import http.client
import io
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.message import Message
from typing import IO, Any, Final


def post(address: str, body: bytes, headers: Mapping[str, str], timeout: float) -> int | str:
    """Return the status of the answer, or the kind of error because of which there is none. Redirects are not followed.

    Args:
        address: of HTTP or HTTPS, which the caller has checked.
        body: what to post.
        headers: sent along.
        timeout: the seconds that the request may take, besides looking up the name. A host of several addresses, or
            behind a proxy, may take a multiple of that.

    Raises:
        TimeoutError: it took longer.
    """
    request = urllib.request.Request(address, data=body, headers=dict(headers), method="POST")  # noqa: S310 - checked
    try:
        with _OPENER.open(request, timeout=timeout) as answer:
            status: int = answer.status
    except urllib.error.HTTPError as error:
        status = error.code
        error.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, TimeoutError):
            raise TimeoutError from error
        return type(reason).__name__
    return status


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        """Follow none: a header may hold a secret that belongs to this address."""


class _Remaining(io.RawIOBase):
    """Reads from a socket until a moment. Each read alone would be given all the time again, were it for one byte."""

    def __init__(self, connected: socket.socket, raw: io.RawIOBase, ends: float) -> None:
        super().__init__()
        self._socket = connected
        self._raw = raw
        self._ends = ends

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        """Read what comes next."""
        seconds_left = self._ends - time.monotonic()
        if seconds_left <= 0:
            raise TimeoutError
        self._socket.settimeout(seconds_left)
        count: int | None = self._raw.readinto(buffer)
        return count

    def close(self) -> None:
        """Close what it reads from."""
        self._raw.close()
        super().close()


class _Answer(http.client.HTTPResponse):
    """An answer that has as long as its socket is given when it begins, however slowly it comes."""

    def __init__(self, sock: socket.socket, *args: Any, **named: Any) -> None:
        super().__init__(sock, *args, **named)
        ends = time.monotonic() + (sock.gettimeout() or 0)
        self.fp = io.BufferedReader(_Remaining(sock, self.fp.detach(), ends))


class _Connection(http.client.HTTPConnection):
    response_class = _Answer
    _ends = 0.0

    def connect(self) -> None:
        """Connect; the time of the whole request begins."""
        self._ends = time.monotonic() + (self.timeout or 0)
        super().connect()

    def getresponse(self) -> http.client.HTTPResponse:
        """Return the answer, in what is left of the time."""
        self.sock.settimeout(max(self._ends - time.monotonic(), _LEAST))
        return super().getresponse()


class _SecureConnection(_Connection, http.client.HTTPSConnection):
    """The same over TLS."""


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Return the answer to a request."""
        return self.do_open(_Connection, req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Return the answer to a request."""
        return self.do_open(_SecureConnection, req)


_LEAST: Final = 0.001
"""Seconds: a socket that is given none does not wait, and says something else."""
_OPENER: Final = urllib.request.build_opener(_NoRedirects, _Http, _Https)
