"""Every column of every table, poisoned by SQL in many ways: what is asked of that chat is answered by typed errors."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from tests.persistence.poisoned_chat import COLUMNS, poison

from turnwise import ChatNotFound, Engine, Settings, TurnwiseError
from turnwise.persistence.audit.verify import Verdict
from turnwise.providers.scripted import ScriptedModel

IDLE: Final = Settings(run_worker=False)
POISONS: Final[Sequence[object]] = ("poison", b"\xff\x00", "", "7", -1, 2**62, 0.5, None)
IN_JSON: Final = ("{}", "[]", "null", '"text"', '{"a": 1}', "[[1], {}]")
"""For columns of JSON: elsewhere they are words like any other."""
JSON_COLUMNS: Final = {"body", "facts", "calls", "carried", "aside", "needs", "awaits", "sent"}

READS: Final[dict[str, Callable[[Engine], Awaitable[Any]]]] = {
    "get_chat": lambda engine: engine.get_chat("poisoned"),
    "queued": lambda engine: engine.queued("poisoned"),
    "messages": lambda engine: engine.messages("poisoned"),
    "what the model sees": lambda engine: engine.messages("poisoned", view="model"),
    "transcript": lambda engine: engine.transcript("poisoned"),
    "compactions": lambda engine: engine.compactions("poisoned"),
    "usage": lambda engine: engine.usage("poisoned"),
    "audit": lambda engine: engine.audit("poisoned"),
    "export_audit": lambda engine: engine.export_audit("poisoned"),
}
WRITES: Final[dict[str, Callable[[Engine], Awaitable[Any]]]] = {
    "fork": lambda engine: engine.fork("poisoned", at_version=3),
    "edit": lambda engine: engine.edit_message("poisoned", "m1", "something else"),
    "rename": lambda engine: engine.rename("poisoned", "a title"),
    "erase_message": lambda engine: engine.erase_message("poisoned", "m1"),
    "erase": lambda engine: engine.erase("poisoned", what=["errors", "reasons", "messages"]),
    "interrupt": lambda engine: engine.interrupt("poisoned"),
}


async def _events(engine: Engine) -> None:
    async for _ in engine.events("poisoned", follow=False):
        pass


async def _answers(engine: Engine) -> None:
    """Ask everything of a damaged chat: what is raised is typed, and three questions are always answered."""
    verdict = await engine.verify("poisoned")
    assert isinstance(verdict, Verdict)
    assert verdict.ok or (verdict.position is not None and verdict.problem)
    assert (await engine.explain("poisoned")).reason
    assert await engine.export_rows("poisoned")
    for ask in (_events, *READS.values(), *WRITES.values()):
        with suppress(TurnwiseError):
            await ask(engine)


PLAIN: Final = {("chats", "facts"), ("messages", "body"), ("events", "body"), ("audit", "body"), ("queue", "rank")}
"""Columns of `make test`; `make prove` tries all."""
PLACES: Final = [
    pytest.param(*place, id=".".join(place), marks=[] if place in PLAIN else pytest.mark.deep) for place in COLUMNS
]


@pytest.mark.parametrize(("table", "column"), PLACES)
async def test_poisoned_column_raises_only_typed_errors(lived: Path, tmp_path: Path, table: str, column: str) -> None:
    """`verify` and `explain` raise nothing at all, whatever is stored."""
    for number, value in enumerate((*POISONS, *(IN_JSON if column in JSON_COLUMNS else ()))):
        path = tmp_path / f"chats{number}.db"
        try:
            poison(lived, path, table, column, value)
        except sqlite3.IntegrityError:
            continue  # the database itself refuses that
        async with Engine(f"sqlite:///{path}", model=ScriptedModel(()), settings=IDLE) as engine:
            try:
                await _answers(engine)
            except ChatNotFound:
                assert (table, column) == ("chats", "id")


@pytest.mark.parametrize(("table", "column"), PLACES)
async def test_unreadable_chat_can_be_erased(lived: Path, tmp_path: Path, table: str, column: str) -> None:
    """What was said is in no row any more, readable or not, and in no file."""
    if (table, column) == ("chats", "id"):
        return  # nobody knows whose rows these are
    for number, value in enumerate(("poison", b"\xff\x00", "{}", -1, None)):
        path = tmp_path / f"chats{number}.db"
        try:
            poison(lived, path, table, column, value)
        except sqlite3.IntegrityError:
            continue
        async with Engine(f"sqlite:///{path}", model=ScriptedModel(()), settings=IDLE) as engine:
            erasure = await engine.erase("poisoned", what=["everything"])
            assert erasure.overwritten
            if column == "chat_id":
                continue  # rows without a chat: the doctor finds them
            rows = await engine.export_rows("poisoned")
            kept = [line for line in rows.splitlines() if json.loads(line)["table"] != "quarantine"]
            assert not [line for line in kept if "and then?" in line or "I look" in line], (value, kept)
