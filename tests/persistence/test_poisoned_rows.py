"""Every column of every table, poisoned one by one by SQL: one chat's trouble, found, named, and no other's."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Collection
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from tests.persistence.poisoned_chat import COLUMNS, NESTED, look, poison

from turnwise import Engine, Settings
from turnwise.engine.diagnose import Diagnosis
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.states.names import ChatState

CHATS: Final = 3
SENSIBLE: Final = {
    ("leases", "worker", "poison"),  # any word may be a worker's name: the lease runs out
    ("chat_files", "chat_id", "poison"),  # it may be a chat's that is about to arrive: it is let go after a while
    ("chat_files", "chat_id", b"\xff\x00"),
}
"""What no one can tell from what turnwise writes."""


POISONS: Final = {"words": "poison", "bytes": b"\xff\x00", "depth": "[" * 5000, "nested": NESTED}
JSON: Final = {"body", "aside", "calls", "facts", "needs", "format"}
OBJECTS: Final = {"body", "facts"}
"""Columns of JSON objects."""
PLAIN: Final = {
    ("chats", "facts", "nested"),
    ("chats", "version", "bytes"),
    ("messages", "body", "words"),
    ("calls", "body", "depth"),
    ("leases", "token", "words"),
    ("audit", "body", "words"),
}
"""Columns and poisons of `make test`; `make prove` tries all."""
POISONED: Final = [
    pytest.param(
        *place, value, id=f"{'.'.join(place)}-{name}", marks=[] if (*place, name) in PLAIN else pytest.mark.deep
    )
    for place in COLUMNS
    for name, value in POISONS.items()
    if place[1] in {"depth": JSON, "nested": OBJECTS}.get(name, {place[1]})
]


@pytest.mark.parametrize(("table", "column", "value"), POISONED)
async def test_poisoned_column_affects_one_chat(
    lived: Path, tmp_path: Path, table: str, column: str, value: str | bytes
) -> None:
    """The doctor names it, every other chat lives, and the chat can be repaired."""
    path = tmp_path / "chats.db"
    poison(lived, path, table, column, value)
    async with Engine(f"sqlite:///{path}", model=ScriptedModel(()), settings=Settings(run_worker=False)) as engine:
        diagnosed = await _diagnosed(engine)
        named = {flaw.column for found in diagnosed for flaw in found.flaws}
        if (table, column, value) not in SENSIBLE:
            assert {f"{table}.{column}"} & named or _tells_of_identity(table, column, named), named
        for found in filter(_is_unreadable, diagnosed):
            explained = await engine.explain(str(found.chat_id))
            assert {flaw.column for flaw in found.flaws} == {flaw.column for flaw in explained.unreadable}
            assert "--repair" in explained.reason
    async with Engine(f"sqlite:///{path}", model=ScriptedModel([Reply("hi")] * 9), tools=[look]) as engine:
        assert len((await engine.list_chats()).items) == CHATS
        for chat_id in ("waiting for a worker", "sound"):
            chat = await engine.wait(chat_id, timeout=60)
            assert chat.state in {"waiting", "requires_action"}
            assert (await engine.verify(chat_id)).ok
            assert (await engine.explain(chat_id)).unreadable == ()
        for found in await _diagnosed(engine):
            assert found.chat_id in {"poisoned", str(value), None}
            if found.chat_id is None or not _is_unreadable(found):
                continue
            repaired = await engine.repair(found.chat_id)
            assert repaired.state is ChatState.error
            assert repaired == await engine.get_chat(found.chat_id)
            rest = [left for left in await _diagnosed(engine) if left.chat_id == found.chat_id]
            assert all(flaw.column.startswith("audit.") for left in rest for flaw in left.flaws), rest
            assert (await engine.get_chat(found.chat_id)).unreadable is None
            await engine.send_message(found.chat_id, "go on", when_busy="interrupt")
            await engine.wait(found.chat_id, timeout=60)


async def _diagnosed(engine: Engine) -> list[Diagnosis]:
    return [diagnosis async for diagnosis in engine.diagnose()]


def _is_unreadable(found: Diagnosis) -> bool:
    return found.chat_id is not None and not all(flaw.column.startswith("audit.") for flaw in found.flaws)


def _tells_of_identity(table: str, column: str, named: Collection[str]) -> bool:
    """Whether rows that lost their chat are found as rows of no chat."""
    return (table, column) == ("chats", "id") or (column == "chat_id" and f"{table}.chat_id" in named)


async def test_all_flaws_of_a_chat_are_listed(lived: Path, tmp_path: Path) -> None:
    """Calls, the queue and the lease at once: none hides another."""
    path = tmp_path / "chats.db"
    shutil.copy(lived, path)
    with closing(sqlite3.connect(path)) as on, on:
        for damage in ("calls SET body = 'no'", "queue SET body = 'no'", "leases SET token = 'no'"):
            on.execute(f"UPDATE {damage} WHERE chat_id = 'poisoned'")
        on.execute("DELETE FROM calls WHERE chat_id = 'poisoned' AND call_id = 'b'")
    async with Engine(f"sqlite:///{path}", model=ScriptedModel(()), settings=Settings(run_worker=False)) as engine:
        named = {flaw.column for found in await _diagnosed(engine) for flaw in found.flaws}
        assert {"calls.body", "calls.call_id", "queue.body", "leases.token"} <= named


async def test_repair_keeps_the_audit_log(lived: Path, tmp_path: Path) -> None:
    """It is evidence: a record that cannot be read is neither put aside nor changed."""
    path = tmp_path / "chats.db"
    poison(lived, path, "audit", "body", "poison")
    with closing(sqlite3.connect(path)) as on, on:
        on.execute("UPDATE messages SET body = 'no' WHERE chat_id = 'poisoned' AND position = 1")
        before = on.execute("SELECT version, body, hash FROM audit WHERE chat_id = 'poisoned'").fetchall()
    async with Engine(f"sqlite:///{path}", model=ScriptedModel(()), settings=Settings(run_worker=False)) as engine:
        assert (await engine.repair("poisoned")).state is ChatState.error
    with closing(sqlite3.connect(path)) as on:
        after = on.execute("SELECT version, body, hash FROM audit WHERE chat_id = 'poisoned'").fetchall()
        assert after[: len(before)] == before
        aside = on.execute("SELECT DISTINCT origin FROM quarantine WHERE chat_id = 'poisoned'").fetchall()
        assert aside == [("messages",)]
