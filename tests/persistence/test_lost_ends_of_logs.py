"""A log whose end is lost: what the lost records explain is not held against the others, and what none explains is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from support.rich_chat import engine_on, live
from turnwise import Engine, ToolResult
from turnwise.persistence.audit.verify import Verdict, verify_stored
from turnwise.persistence.chat_rows import ChatRows
from turnwise.persistence.sqlite.store import SQLiteStore

pytestmark = pytest.mark.anyio


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


@pytest.mark.parametrize("name", LATER)
async def test_what_is_done_later_is_not_held_against_what_was_done_before(lived: Lived, name: str) -> None:
    await LATER[name](lived.engine, lived.chat_id)
    assert await lived.sound() == Verdict(ok=True)
    verdict = lived.without_end(await lived.rows())
    assert (verdict.ok, verdict.position) == (False, lived.kept + 1), verdict


async def test_no_message_that_is_erased_later_is_held_against_the_beginning(lived: Lived) -> None:
    """And each that was not erased is, whichever others were."""
    for message_id in ("m14", "m12", "m11", "m10", "m8", "m4", "m1"):
        await lived.engine.erase_message(lived.chat_id, message_id)
        assert await lived.sound() == Verdict(ok=True)
        rows = await lived.rows()
        verdict = lived.without_end(rows)
        assert (verdict.ok, verdict.position) == (False, lived.kept + 1), (message_id, verdict)
        *_, row = (row for row in rows.tables["messages"] if not row["erased"])
        verdict = lived.without_end(_with(rows, "messages", row, body=row["body"] + " "))
        assert (verdict.position, verdict.place) == (row["added"], f"messages[{row['id']}].body|salt")


@pytest.mark.parametrize(
    ("table", "changes"),
    [
        ("messages", {"digest": "0" * 64}),
        ("messages", {"role": "system"}),
        ("receipts", {"body": "{}"}),
        ("usage", {"body": "{}"}),
        ("boundaries", {"carried": "[7]"}),
        ("boundaries", {"reason": "clear"}),
        ("events", {"body": '{"turn":7}'}),
    ],
)
async def test_what_no_later_record_explains_is_held_against_the_beginning(
    lived: Lived, table: str, changes: dict[str, Any]
) -> None:
    rows = await lived.rows()
    wrong = next(row for row in rows.tables[table] if table != "events" or row["kind"] == "turn_finished")
    verdict = lived.without_end(_with(rows, table, wrong, **changes), lost=1)
    assert verdict.position is not None
    assert verdict.position < lived.kept
    assert verdict.place is not None
    assert verdict.place.startswith((f"{table}[", f"{table}."))


@pytest.mark.parametrize("aside", ["{", '{"events":"","reason":"mine","salt":""}'])
async def test_what_stands_beside_a_record_is_held_against_the_beginning(lived: Lived, aside: str) -> None:
    rows = await lived.rows()
    audit = [entry._replace(aside=aside) if entry.version == 1 else entry for entry in rows.audit]
    verdict = lived.without_end(replace(rows, audit=audit), lost=1)
    assert (verdict.position, verdict.place) == (1, "audit[1].aside")


async def test_no_reason_that_is_erased_later_is_held_against_the_beginning(lived: Lived) -> None:
    await _finish(lived.engine, lived.chat_id)
    lived.kept = (await lived.engine.get_chat(lived.chat_id)).version
    await lived.engine.erase(lived.chat_id, what=["reasons"])
    assert await lived.sound() == Verdict(ok=True)
    verdict = lived.without_end(await lived.rows())
    assert (verdict.ok, verdict.position) == (False, lived.kept + 1), verdict


@pytest.mark.parametrize("table", ["messages", "receipts", "usage", "boundaries", "events"])
async def test_a_row_of_no_record_may_be_of_a_lost_one(lived: Lived, table: str) -> None:
    rows = await lived.rows()
    another = {
        "messages": {"id": "m99", "position": 99},
        "receipts": {"client_id": "another"},
        "usage": {"version": 99},
        "boundaries": {"position": 99, "carried": "[1]"},
        "events": {"seq": 999},
    }[table]
    found = [*rows.tables[table], {**rows.tables[table][-1], **another}]
    verdict = lived.without_end(replace(rows, tables={**rows.tables, table: found}), lost=1)
    assert (verdict.position, verdict.place) == (lived.kept, "chats.version")


def _with(rows: ChatRows, table: str, wrong: Any, **changes: Any) -> ChatRows:
    """Return the rows of a chat of which one holds other values."""
    found = [{**row, **changes} if row is wrong else row for row in rows.tables[table]]
    return replace(rows, tables={**rows.tables, table: found})
