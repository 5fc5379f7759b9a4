"""Posting: one request of HTTP, by the standard library alone. It takes long to import, and few processes need it."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.message import Message
from typing import IO, Final


def post(address: str, body: bytes, headers: Mapping[str, str], timeout: float) -> int | str:
    """Return the status of the answer, or the kind of error because of which there is none. Redirects are not followed.

    Args:
        address: of HTTP or HTTPS, which the caller has checked.
        body: what to post.
        headers: sent along.
        timeout: the seconds that each wait for the other side may take.

    Raises:
        TimeoutError: one took longer.
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


_OPENER: Final = urllib.request.build_opener(_NoRedirects)
