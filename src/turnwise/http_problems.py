"""Errors of requests, and their names in problems (RFC 9457), for a service and its clients."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from turnwise.states.errors import TurnwiseError

MEDIA_TYPE: Final = "application/problem+json"
TYPE: Final = "urn:turnwise:problem:"
"""The prefix of the types; the rest names the error, as in `urn:turnwise:problem:queue-full`."""
PROBLEM_AFTER: Final = "X-Problem-After"
"""The header with the mark that precedes the problem in a body that breaks off."""
ON_BEHALF_OF: Final = "On-Behalf-Of"
"""Header in which an operator names the client it acts for. The audit log names both."""
_WORDS: Final = re.compile(r"(?<!^)(?=[A-Z])")


def words_of(error: type) -> list[str]:
    """Return the words of an error's class, as in `["Queue", "Full"]`."""
    return _WORDS.split(error.__name__)


def name_of(error: type) -> str:
    """Return the name of an error in a problem's type, as in `queue-full`."""
    return "-".join(words_of(error)).lower()


class NotAuthenticated(TurnwiseError):
    """The request has no token or session, or one that is unknown or expired. Nothing was written.

    An application whose own `auth` reads cookies alone, and no token, is not `by_token`: its answers ask for none.
    """

    _by_token = True

    def __init__(self, *, by_token: bool = True) -> None:
        if not by_token:
            self._by_token = False
        super().__init__(
            "the request needs a token that the service knows and that has not expired, as in 'Authorization: Bearer "
            "...' or Client(url, token=...); nothing was written"
            if by_token
            else "the service does not know who sends the request, or the session has ended: sign in, and send it "
            "again; nothing was written"
        )

    @property
    def by_token(self) -> bool:
        """Whether a token would have named the sender."""
        return self._by_token


class NotAllowed(TurnwiseError):
    """The role of the token does not allow the request: it needs `needed`. Nothing was written."""

    def __init__(self, role: str, needed: str) -> None:
        self.role = role
        self.needed = needed
        super().__init__(f"the role {role!r} may not do this: it needs {needed}; nothing was written")


class RateLimited(TurnwiseError):
    """The principal sends more requests, or has more streams open, than it may. Nothing was written.

    `retry_after` is in seconds.
    """

    def __init__(self, limit: str, retry_after: float) -> None:
        self.limit = limit
        self.retry_after = retry_after
        super().__init__(f"too many: at most {limit}; try again in {retry_after:.3g} s; nothing was written")


class BodyTooLarge(TurnwiseError):
    """The body of the request is longer than the `limit` bytes that the service takes. Nothing was written."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(
            f"the body may have at most {limit:,} bytes; files of messages are sent with put_file; nothing was written"
        )


class EncodedBody(TurnwiseError):
    """The body of the request is compressed. Nothing was written."""

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding
        super().__init__(f"the body must be sent as it is, not as {encoding[:40]!r}; nothing was written")


class InvalidRequest(TurnwiseError):
    """The request does not fit the service's description: the client may be of another version. Nothing was written.

    `problems` name each field, and what is wrong with it.
    """

    def __init__(self, problems: Sequence[Mapping[str, str]]) -> None:
        self.problems = tuple(dict(problem) for problem in problems)
        text = "; ".join(f"{problem.get('field')}: {problem.get('problem')}" for problem in self.problems[:5])
        super().__init__(f"{text}; nothing was written")
