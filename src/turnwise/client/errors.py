"""The errors of the client: what a service says that is no error of the engine, and what it fails to say.

TurnwiseError
|-- NotAuthenticated        no token, or one that the service does not know
|-- NotAllowed              the token's role does not allow it
|-- RateLimited             too many requests or streams
|-- BodyTooLarge            the request is longer than the service takes
|-- InvalidRequest          the request does not fit the service's description
|-- ServiceFailed           the service could not do it, and its log says why
|-- ServiceUnreachable      no answer within `ClientSettings.retry_timeout`
`-- BadAnswer               an answer that is none of a turnwise service
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from turnwise.states.errors import TurnwiseError


class NotAuthenticated(TurnwiseError):
    """The service does not know this token. Nothing was written."""

    def __init__(self) -> None:
        super().__init__(
            "the service knows nobody with this token: give Client(url, token=...) one that it was started with, and "
            "that has not expired; nothing was written"
        )


class NotAllowed(TurnwiseError):
    """The role of the token does not allow the request: it needs `needed`. Nothing was written."""

    def __init__(self, role: str, needed: str) -> None:
        self.role = role
        self.needed = needed
        super().__init__(f"the token's role {role!r} may not do this: it needs {needed}; nothing was written")


class RateLimited(TurnwiseError):
    """More requests, or more open streams, than the service allows. Nothing was written.

    `retry_after` is in seconds.
    """

    def __init__(self, limit: str, retry_after: float) -> None:
        self.limit = limit
        self.retry_after = retry_after
        super().__init__(f"too many: at most {limit}; try again in {retry_after:.3g} s; nothing was written")


class BodyTooLarge(TurnwiseError):
    """The request is longer than the `limit` bytes that the service takes. Nothing was written."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(
            f"the request is longer than the {limit:,} bytes that the service takes; send files with put_file; "
            "nothing was written"
        )


class InvalidRequest(TurnwiseError):
    """The service does not understand the request: it is of another version, most likely. Nothing was written.

    `problems` name each field, and what is wrong with it.
    """

    def __init__(self, problems: Sequence[Mapping[str, str]]) -> None:
        self.problems = tuple(dict(problem) for problem in problems)
        text = "; ".join(f"{problem.get('field')}: {problem.get('problem')}" for problem in self.problems[:5])
        super().__init__(f"the service does not understand the request: {text}; nothing was written")


class ServiceFailed(TurnwiseError):
    """The service could not do it: `status` is HTTP's, `detail` what it says. Its log says more."""

    def __init__(self, status: int, detail: str) -> None:
        self.status = status
        self.detail = detail
        super().__init__(f"the service failed with status {status}: {detail}")


_UNSENT: Final = "nothing was written"
_SENT: Final = "it may have been done: look at the chat before you ask again"


class ServiceUnreachable(TurnwiseError):
    """No answer came. `sent` says whether the service may have done what it was asked."""

    def __init__(self, url: str, problem: str, *, sent: bool) -> None:
        self.url = url
        self.problem = problem
        self.sent = sent
        super().__init__(
            f"no answer from {url}: {problem}; is the address right, and the service running? "
            f"{_SENT if sent else _UNSENT}"
        )


class BadAnswer(TurnwiseError):
    """What answers at `url` is no turnwise service, or one of another version. What it did is unknown."""

    def __init__(self, url: str, problem: str) -> None:
        self.url = url
        self.problem = problem
        super().__init__(
            f"{url} does not answer as a turnwise service does: {problem}; is it the address of one, of this version? "
            "What it did is unknown"
        )
