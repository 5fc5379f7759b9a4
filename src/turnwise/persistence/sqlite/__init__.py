"""The store of one machine, in a SQLite database."""

from turnwise.persistence.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
