"""The store of many machines, in a PostgreSQL database."""

from turnwise.extras import needing

with needing("postgres", __name__):
    from turnwise.persistence.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
