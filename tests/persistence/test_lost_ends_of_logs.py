"""A log whose end is lost: what the lost records explain is not held against the others, and what none explains is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from support.exploring import few
from support.rich_chat import engine_on, live
from turnwise import Engine, ToolResult
from turnwise.persistence.audit.verify import Verdict, verify_stored
from turnwise.persistence.chat_rows import ChatRows
from turnwise.persistence.sqlite.store import SQLiteStore


class Lived:
    """A chat in which every table has rows, and the length of its log then."""

    def __init__(self, engine: Engine, store: SQLiteStore, chat_id: str, kept: int) -> None:
        self.engine = engine
        self.chat_id = chat_id
        self.kept = kept
        self._store = store

    async def rows(self) -> ChatRows:
        return await self._store.rows(self.chat_id)

    async def sound(self) -> Verdict:
        return verify_stored(self.chat_id, await self.rows())

    def without_end(self, rows: ChatRows, *, lost: int = 0) -> Verdict:
        """Verify the chat as if it had lost the records since then, and so many more."""
        return verify_stored(self.chat_id, replace(rows, audit=rows.audit[: self.kept - lost]))


@pytest.fixture
async def lived(tmp_path: Path) -> AsyncIterator[Lived]:
    store = SQLiteStore(tmp_path / "chats.db")
    async with engine_on(store) as engine:
        chat_id = await live(engine)
        yield Lived(engine, store, chat_id, (await engine.get_chat(chat_id)).version)


async def _finish(engine: Engine, chat_id: str) -> None:
    await engine.submit_tool_results(chat_id, [ToolResult("call-3", "large")])
    await engine.interrupt(chat_id, reason="enough")
    await engine.wait(chat_id)


async def _queue(engine: Engine, chat_id: str) -> None:
    waiting = [queued.id for queued in await engine.queued(chat_id)]
    await engine.edit_queued(chat_id, waiting[0], "waits otherwise")
    await engine.promote_queued(chat_id, waiting[1])


async def _cut(engine: Engine, chat_id: str) -> None:
    await engine.edit_message(chat_id, "m6", "edited again")


async def _forget_queued(engine: Engine, chat_id: str) -> None:
    waiting = (await engine.queued(chat_id))[0].id
    await engine.delete_queued(chat_id, waiting)
    await engine.erase_message(chat_id, waiting)


LATER: Final[dict[str, Callable[[Engine, str], Awaitable[object]]]] = {
    "a message is sent": lambda engine, chat_id: engine.send_message(chat_id, "more", client_id="client-9"),
    "a result is given": _finish,
    "the queue is changed": _queue,
    "messages are cut, and a boundary with them": _cut,
    "the title is changed": lambda engine, chat_id: engine.rename(chat_id, "another"),
    "what waited is taken back and erased": _forget_queued,
    "everything is erased": lambda engine, chat_id: engine.erase(chat_id, what=["everything"]),
}


@pytest.mark.parametrize("name", few(LATER, 2))
async def test_lost_records_explain_later_changes(lived: Lived, name: str) -> None:
    await LATER[name](lived.engine, lived.chat_id)
    assert await lived.sound() == Verdict(ok=True)
    verdict = lived.without_end(await lived.rows())
    assert (verdict.ok, verdict.position) == (False, lived.kept + 1), verdict


@pytest.mark.parametrize(
    ("table", "changes"),
    few(
        [
            ("messages", {"digest": "0" * 64}),
            ("messages", {"role": "system"}),
            ("receipts", {"body": "{}"}),
            ("usage", {"body": "{}"}),
            ("boundaries", {"carried": "[7]"}),
            ("boundaries", {"reason": "clear"}),
            ("events", {"body": '{"turn":7}'}),
        ],
        2,
    ),
)
async def test_unexplainable_change_is_found_without_the_end(lived: Lived, table: str, changes: dict[str, Any]) -> None:
    rows = await lived.rows()
    wrong = next(row for row in rows.tables[table] if table != "events" or row["kind"] == "turn_finished")
    verdict = lived.without_end(_with(rows, table, wrong, **changes), lost=1)
    assert verdict.position is not None
    assert verdict.position < lived.kept
    assert verdict.place.startswith((f"{table}[", f"{table}."))


def _with(rows: ChatRows, table: str, wrong: Any, **changes: Any) -> ChatRows:
    """Return the rows of a chat of which one holds other values."""
    found = [{**row, **changes} if row is wrong else row for row in rows.tables[table]]
    return replace(rows, tables={**rows.tables, table: found})
