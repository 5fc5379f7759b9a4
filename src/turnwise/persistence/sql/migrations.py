"""The steps of a store's schema: files of SQL that never change once released."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from turnwise.states.errors import StoreError

UNCHANGED: Final = (
    "UPDATE turnwise_migrations SET applied_at = applied_at WHERE name = (SELECT min(name) FROM turnwise_migrations)"
)
"""Writes a row as it is: shows whether a database takes writes."""


class Migration(NamedTuple):
    """One step of the schema: a file of SQL that never changes once released."""

    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


@functools.cache
def migrations(dialect: Literal["sqlite", "postgres"]) -> tuple[Migration, ...]:
    """Return every migration that this version knows, in order."""
    from importlib import resources  # noqa: PLC0415 - takes long to import, and many a process opens no store

    folder = resources.files(f"turnwise.persistence.{dialect}") / "schema"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return tuple(Migration(file.name.removesuffix(".sql"), file.read_text(encoding="utf-8")) for file in files)


def unapplied(applied: Mapping[str, str], shipped: tuple[Migration, ...], where: str) -> tuple[Migration, ...]:
    """Return the migrations that are missing, given the checksums of those applied.

    Raises:
        StoreError: `where` has a migration that this version does not know, or one with another checksum.
    """
    unknown = sorted(applied.keys() - {migration.name for migration in shipped})
    if unknown:
        raise StoreError(
            f"{where} was written by a newer version of turnwise (migrations not known here: {', '.join(unknown)}); "
            "install that version; nothing was written"
        )
    for migration in shipped:
        if applied.get(migration.name, migration.checksum) != migration.checksum:
            raise StoreError(
                f"{where}: migration {migration.name} was applied in another form than this version's; "
                "install the version that applied it; nothing was written"
            )
    return tuple(migration for migration in shipped if migration.name not in applied)


def check_up_to_date(missing: tuple[Migration, ...], shipped: tuple[Migration, ...], where: str) -> None:
    """Refuse a store that has to be made, or brought up to date, first.

    Raises:
        StoreError: a migration is missing.
    """
    if missing == shipped:
        raise StoreError(f"there is no store in {where}; `turnwise migrate` makes one; nothing was written")
    if missing:
        names = ", ".join(migration.name for migration in missing)
        raise StoreError(
            f"{where} is a store of an older version of turnwise (migrations that it lacks: {names}); `turnwise "
            "migrate`, or a worker of this version, brings it up to date; nothing was written"
        )
