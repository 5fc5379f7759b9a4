"""Writes a chat as the lines of a file."""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from turnwise.persistence.archive.format import (
    COLUMNS,
    FORMAT,
    FORMAT_VERSION,
    WholeChat,
    chain_hash,
    signature_of,
    spelled,
)
from turnwise.persistence.audit.record import GENESIS, log_of, object_of, to_json
from turnwise.persistence.chat_rows import Row
from turnwise.persistence.stored_chat import ids_of


def lines_of(chat: WholeChat, *, key: bytes | None = None) -> Iterator[str]:
    """Yield a chat without its files as lines, each with its line feed; with a `key` the checkpoint is signed.

    Raises:
        ValueError: the log cannot be read. A chat that verifies raises nothing.
    """
    writer = ArchiveWriter(chat)
    yield from writer.rows()
    yield writer.checkpoint(key)


class ArchiveWriter:
    """Writes a chat as lines: its rows, then its files piece by piece, then the checkpoint."""

    def __init__(self, chat: WholeChat) -> None:
        self._chat = chat
        self._prev = GENESIS
        self._counts = Counter[str]()

    def rows(self) -> Iterator[str]:
        """Yield the header and the rows."""
        header = {"format": FORMAT, "format_version": FORMAT_VERSION, "chat_id": self._chat.chat_id}
        for fields in (header, *_rows_in(self._chat)):
            self._counts.update([str(fields["table"])] if "table" in fields else ())
            yield self._next(fields)

    def piece(self, digest: str, number: int, data: bytes) -> str:
        """Return the line of a piece of a file."""
        return self._next({"blob": digest, "number": number, "data": b64encode(data).decode()})

    def checkpoint(self, key: bytes | None) -> str:
        """Return the last line."""
        checkpoint: dict[str, Any] = {"rows": dict(self._counts), "head": self._chat.rows.chat["head"]}
        if self._chat.blobs:
            checkpoint["blobs"] = len(self._chat.blobs)
        checkpoint["hash"] = chain_hash(self._prev, checkpoint)
        if key is not None:
            checkpoint["signature"] = signature_of(checkpoint, key)
        return spelled(checkpoint)

    def _next(self, fields: dict[str, Any]) -> str:
        self._prev = chain_hash(self._prev, fields)
        return spelled(fields | {"hash": self._prev})


def _rows_in(chat: WholeChat) -> Iterator[dict[str, Any]]:
    rows = chat.rows
    log = log_of(chat.chat_id, [entry._replace(aside=None) for entry in rows.audit])
    entries = zip(log, rows.audit, strict=True)
    tables: dict[str, Iterable[Row]] = {
        **rows.tables,
        "chats": [rows.chat],
        "leases": [] if rows.lease is None else [rows.lease],
        "audit": (
            {"version": entry.version, "record": object_of(to_json(record)), "aside": entry.aside}
            for record, entry in entries
        ),
        "quarantine": chat.quarantine,
    }
    for table in COLUMNS:
        for row in tables[table]:
            yield {"table": table, "row": {name: _portable(name, row[name]) for name in COLUMNS[table]}}


def _portable(column: str, value: Any) -> Any:
    """Return a value as every store spells it in a file."""
    match column:
        case "settled" | "archived" | "erased":
            return bool(value)
        case "calls":
            return ids_of(value)
        case "carried":
            return list(value) if not isinstance(value, str) else object_of(f'{{"it":{value}}}')["it"]
    return value
