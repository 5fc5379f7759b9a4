"""Finds the store that a URL names."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import PurePath
from typing import Any, Final

from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.sqlite.connection import Durability
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.persistence.store_url import without_password
from turnwise.states.errors import SettingsError
from turnwise.states.values.hints import validator_of
from turnwise.states.values.plain import Misfit, shown

_RIGHT: Final = (
    "use sqlite:///chats.db, sqlite:////absolute/path.db, sqlite:// for a database in memory,"
    " or postgresql://user:password@host/database"
)

_URL_OR_STORE: Final = validator_of(str | ChatStore)


def url_or_store(value: Any) -> Any:
    """Return the store for the engine's argument.

    Raises:
        Misfit: it is neither a string nor a store; the problem says what would have been right.
    """
    if isinstance(value, PurePath):
        raise Misfit(f"must be a store's URL or a ChatStore; it was a path: write {shown(f'sqlite:///{value}')}")
    try:
        return _URL_OR_STORE(value)
    except Misfit as misfit:
        misfit.problem += f"; {_RIGHT}" if misfit.type_only else ""
        raise


def store_from_url(
    url: str, *, durability: Durability, now: Callable[[], datetime] | None, migrates: bool = True
) -> ChatStore:
    """Return the store that a URL names, not opened yet. Without `now` it uses its own clock.

    Without `migrates` it opens only what is a store of this version already: nothing is made or brought up to date.

    Raises:
        SettingsError: there is no such store.
    """
    scheme, separator, rest = url.partition("://")
    if scheme in ("postgresql", "postgres"):
        return _postgres(url, now, migrates=migrates)
    if scheme != "sqlite" or not separator:
        raise SettingsError("store", f"{without_password(url)!r} is no store's URL; {_RIGHT}")
    if rest == "":
        return SQLiteStore(None, durability=durability, now=now, migrates=migrates)
    path = rest.removeprefix("/")
    if path == rest or path.strip("/") == "":
        raise SettingsError("store", f"{url!r} names no file; {_RIGHT}")
    named, options, _ = url.partition("?")
    if options:
        raise SettingsError("store", f"{url!r}: a SQLite store takes no options: write {named!r}")
    return SQLiteStore(path, durability=durability, now=now, migrates=migrates)


def _postgres(url: str, now: Callable[[], datetime] | None, *, migrates: bool) -> ChatStore:
    from turnwise.persistence.postgres.store import PostgresStore  # noqa: PLC0415 - asyncpg is an extra

    return PostgresStore(url, now=now, migrates=migrates)
