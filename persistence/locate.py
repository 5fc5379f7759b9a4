"""From a store's URL to the store."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from turnwise.persistence.connection import Durability
from turnwise.persistence.protocol import ChatStore
from turnwise.persistence.sqlite import SQLiteStore
from turnwise.states.errors import SettingsError

_RIGHT: Final = "use sqlite:///chats.db, sqlite:////absolute/path.db, or sqlite:// for a database in memory"


def store_from_url(url: str, *, durability: Durability, now: Callable[[], datetime]) -> ChatStore:
    """Return the store that a URL names, not opened yet.

    Raises:
        SettingsError: there is no such store.
    """
    scheme, found, rest = url.partition("://")
    if scheme in ("postgresql", "postgres"):
        raise SettingsError("store", f"this version has no PostgreSQL store yet; {_RIGHT}")
    if scheme != "sqlite" or not found:
        raise SettingsError("store", f"{url!r} is no store's URL; {_RIGHT}")
    if rest == "":
        return SQLiteStore(None, durability=durability, now=now)
    path = rest.removeprefix("/")
    if path == rest or path.strip("/") == "":
        raise SettingsError("store", f"{url!r} names no file; {_RIGHT}")
    return SQLiteStore(path, durability=durability, now=now)
