"""Chats with rows in every table, of which a test poisons one by SQL."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from turnwise import tool
from turnwise.persistence.blobs.protocol import Blob
from turnwise.persistence.sqlite.store import SQLiteStore
from turnwise.states.names import ChatState
from turnwise.states.triggers import ClearContext
from turnwise.testing.conformance import plans
from turnwise.testing.conformance.plans import part

LIFE: Final = (
    *plans.turn("one", "1"),
    plans.move(ClearContext()),
    plans.send("two", client_id="c1"),
    plans.claim(),
    plans.reply("I look.", client=["c"]),
    plans.submit("c"),
    plans.claim("nobody", lease=0),
    plans.reply("I look again.", local=["a", "b"]),
    plans.send("and then?", client_id="c2"),
    plans.finish("a"),
)
"""Leaves a row in every table but that of files: a lease, open calls, a queue, a boundary, receipts."""
_OF_NO_CHAT: Final = (
    "quarantine",
    "sqlite_sequence",
    "tombstones",
    "unreferenced_files",
    "blobs",
    "blob_pieces",
    "blob_remains",
    "file_store",
    "rates",
    "worker_reports",
    "budgets",
    "changes",
    "consumers",
    "undelivered",
)
"""Tables whose rows belong to no living chat, or only to repaired ones."""


@tool
def look(at: str) -> str:
    """The tool that the life's calls name: only a worker that has it continues them."""
    return at


async def live(path: Path) -> None:
    """Leave chats in a file: `poisoned`, `sound`, and one that waits for a worker."""
    store = SQLiteStore(path)
    await store.open()
    for chat_id in ("poisoned", "sound"):
        await plans.created(store, chat_id, *LIFE[:2], owner="ann")
        await store.append_events(chat_id, 1, ChatState.streaming, [part("1")])
        for move in LIFE[2:]:
            await store.change(chat_id, plans.plan(move))
        await store.note_file(chat_id, Blob("f" * 64, 1), kept_in="database")
    await plans.created(store, "waiting for a worker", plans.send("hello"))
    await store.close()


_INTEGERS: Final = {("chats", "number"), ("profiles", "chat")}
"""Columns in which SQLite itself accepts only integers."""


def _columns() -> list[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:")) as on:
        SQLiteStore(None).prepare(on)
        tables = [name for (name,) in on.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return [
            (table, name)
            for table in tables
            for _, name, *_ in on.execute(f"PRAGMA table_info({table})")
            if table not in _OF_NO_CHAT and not table.startswith("turnwise") and (table, name) not in _INTEGERS
        ]


COLUMNS: Final = _columns()
NESTED: Final = "[" * 600 + "]" * 600
"""JSON that parses, but is too deep for recursive functions."""


def nested(column: str) -> str:
    """Return SQL that nests deep JSON in the JSON object of a column."""
    others = f"CASE {column} WHEN '{{}}' THEN '{{' ELSE substr({column}, 1, length({column}) - 1) || ',' END"
    return f"""{others} || '"metadata":{{"k":{NESTED}}}}}'"""


def poison(lived: Path, copy: Path, table: str, column: str, value: object) -> None:
    """Copy a file and change a column of one chat."""
    shutil.copy(lived, copy)
    named = {"chats": "id = 'poisoned'", "chat_files": "chat_id = 'poisoned'"}.get(table, "chat = 1")
    new = nested(column) if value == NESTED else "?"
    sql = f"UPDATE {table} SET {column} = {new} WHERE {named}"  # noqa: S608 - ours
    if column in ("seq", "position", "version", "call_id", "id", "client_id") and table != "chats":
        sql += f" AND {column} = (SELECT max({column}) FROM {table} WHERE {named})"  # noqa: S608 - ours
    if column == "format":
        value = 99
    with closing(sqlite3.connect(copy)) as on, on:
        assert on.execute(sql, () if value == NESTED else (value,)).rowcount > 0, "the life leaves no such row"
