"""What asyncpg raises, in words for the people who run turnwise; and which of it may pass."""

from __future__ import annotations

import socket
from typing import Final

import asyncpg

from turnwise.states.errors import StoreError

GONE: Final = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # what asyncpg says of a connection that ends while a statement is being sent
    asyncpg.OperatorInterventionError,
    asyncpg.TooManyConnectionsError,
)
BROKEN: Final = (*GONE, asyncpg.PostgresError, ValueError)
"""All that asyncpg raises when a server cannot be reached or refuses."""
OF_THE_ADDRESS: Final = (socket.gaierror, PermissionError)
"""What connecting raises if the address is wrong: an unknown name, a socket of others."""
PASSING: Final = (
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
    asyncpg.InvalidCachedStatementError,
)
_MEANING: Final[dict[type[Exception], str]] = {
    asyncpg.QueryCanceledError: "a statement took longer than `statement_timeout` allows",
    asyncpg.InvalidAuthorizationSpecificationError: "the server refuses this user or password",
    asyncpg.InvalidCatalogNameError: "the server has no such database; create it first",
    asyncpg.InsufficientPrivilegeError: "this user may not do that; grant it the schema",
    asyncpg.ReadOnlySQLTransactionError: "this server is read-only; name the primary",
    asyncpg.TargetServerAttributeNotMatched: "no server of the URL is what `target_session_attrs` asks for",
    asyncpg.LockNotAvailableError: "another session holds a lock for longer than 5 s, and does not let it go",
    asyncpg.DiskFullError: "the server's disk is full; make room and try again",
    asyncpg.TooManyConnectionsError: "the server accepts no more connections; lower `pool_size` or use fewer workers",
}
_OF_THE_SERVER: Final = (
    *GONE,
    *PASSING,
    *_MEANING,
    asyncpg.InsufficientResourcesError,
    asyncpg.PostgresSystemError,
)
"""What lies with the server, its machine or its administrator, and not with what it was given."""


class Refused(StoreError):
    """The server refused, or the pool is closed. `problem` says only that.

    `lost` says whether a call before this one ended with its connection: what it wrote may have been committed.
    """

    def __init__(self, problem: str, *, lost: bool = False, passing: bool = False) -> None:
        super().__init__(f"{problem}; nothing was written", passing=passing)
        self.problem = problem
        self.lost = lost

    def with_unknown_outcome(self) -> StoreError:
        problem = f"{self.problem}; it is not known whether anything was written"
        return StoreError(problem, written="unknown", passing=self.passing)


class Unreachable(Refused):
    """The server could not be reached, or went away again and again."""


def refusal(store: str, error: Exception, *, lost: bool = False) -> Refused:
    passing = isinstance(error, _OF_THE_SERVER) and not isinstance(error, ValueError)
    return Refused(problem_of(store, error), lost=lost, passing=passing)


def problem_of(store: str, error: Exception) -> str:
    meanings = (meaning for kind, meaning in _MEANING.items() if isinstance(error, kind))
    fallback = "the server cannot be reached" if isinstance(error, GONE) and may_pass(error) else "the database refused"
    return f"the store {store}: {next(meanings, fallback)} (PostgreSQL: {words_of(error)})"


def words_of(error: Exception) -> object:
    """Return the text of an error; a time-out has none of its own."""
    return "no answer in time" if isinstance(error, TimeoutError) else error


def may_pass(error: Exception) -> bool:
    """Whether to try again: not after a server's timeout, nor after a value that no column can hold."""
    return not isinstance(error, asyncpg.QueryCanceledError | ValueError)
