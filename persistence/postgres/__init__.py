"""The store of many machines, in a PostgreSQL database."""

from turnwise.persistence.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
