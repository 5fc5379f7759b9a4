"""Every column of every table is poisoned by SQL in turn: the damage is found, named, and limited to one chat."""

import json
import shutil
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from tests.persistence.poisoned_chat import COLUMNS, NESTED, look, poison

from turnwise import ChatNotFound, Engine, Settings, TurnwiseError
from turnwise.engine.admin.diagnose import Diagnosis
from turnwise.persistence.audit.verify import Verdict
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.states.names import ChatState

CHATS: Final = 3
SENSIBLE: Final = {
    ("chats", "worker", "poison"),  # any word may be a worker's name: the lease runs out
    ("chat_files", "chat_id", "poison"),  # it may be a chat's that is about to arrive: it is let go after a while
    ("chat_files", "chat_id", b"\xff\x00"),
}
"""Values that look like turnwise's own."""

POISONS: Final = {"words": "poison", "bytes": b"\xff\x00", "depth": "[" * 5000, "nested": NESTED}
JSON: Final = {"body", "aside", "calls", "facts", "needs", "format"}
OBJECTS: Final = {"body", "facts"}
PLAIN: Final = {
    ("chats", "facts", "nested"),
    ("chats", "version", "bytes"),
    ("messages", "body", "words"),
    ("calls", "body", "depth"),
    ("chats", "token", "words"),
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
    """The doctor names it, every other chat works, and the chat can be repaired."""
    path = tmp_path / "chats.db"
    poison(lived, path, table, column, value)
    async with Engine(f"sqlite:///{path}", model=ScriptedModel(()), settings=Settings(run_worker=False)) as engine:
        diagnosed = await _diagnosed(engine)
        named = {issue.column for found in diagnosed for issue in found.issues}
        if (table, column, value) not in SENSIBLE:
            assert {f"{table}.{column}"} & named or _tells_of_identity(table, column, named), named
        for found in filter(_is_unreadable, diagnosed):
            explained = await engine.explain(str(found.chat_id))
            assert {issue.column for issue in found.issues} == {issue.column for issue in explained.unreadable}
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
            assert all(issue.column.startswith("audit.") for left in rest for issue in left.issues), rest
            assert (await engine.get_chat(found.chat_id)).unreadable is None
            await engine.send_message(found.chat_id, "go on", when_busy="interrupt")
            await engine.wait(found.chat_id, timeout=60)


async def _diagnosed(engine: Engine) -> list[Diagnosis]:
    return [diagnosis async for diagnosis in engine.diagnose()]


def _is_unreadable(found: Diagnosis) -> bool:
    return found.chat_id is not None and not all(issue.column.startswith("audit.") for issue in found.issues)


def _tells_of_identity(table: str, column: str, named: Collection[str]) -> bool:
    """Return whether rows without a chat are found as such, or a record without digests as missing."""
    if (table, column) == ("audit", "digests"):
        return "audit.body" in named
    return (table, column) == ("chats", "id") or (column == "chat" and f"{table}.chat" in named)


async def test_all_issues_of_a_chat_are_listed(lived: Path, tmp_path: Path) -> None:
    """Damaged calls, queue and lease are all listed."""
    path = tmp_path / "chats.db"
    shutil.copy(lived, path)
    with closing(sqlite3.connect(path)) as on, on:
        for damage in ("calls SET body = 'no'", "queue SET body = 'no'", "chats SET token = 'no'"):
            on.execute(f"UPDATE {damage} WHERE 1 IN ({'number' if 'chats' in damage else 'chat'})")
        on.execute("DELETE FROM calls WHERE chat = 1 AND call_id = 'b'")
    async with Engine(f"sqlite:///{path}", model=ScriptedModel(()), settings=Settings(run_worker=False)) as engine:
        named = {issue.column for found in await _diagnosed(engine) for issue in found.issues}
        assert {"calls.body", "calls.call_id", "queue.body", "chats.token"} <= named


async def test_repair_keeps_the_audit_log(lived: Path, tmp_path: Path) -> None:
    """The log is evidence: an unreadable record is neither quarantined nor changed."""
    path = tmp_path / "chats.db"
    poison(lived, path, "audit", "body", "poison")
    with closing(sqlite3.connect(path)) as on, on:
        on.execute("UPDATE messages SET body = 'no' WHERE chat = 1 AND position = 1")
        before = on.execute("SELECT version, body, hash FROM audit WHERE chat = 1").fetchall()
    async with Engine(f"sqlite:///{path}", model=ScriptedModel(()), settings=Settings(run_worker=False)) as engine:
        assert (await engine.repair("poisoned")).state is ChatState.error
    with closing(sqlite3.connect(path)) as on:
        after = on.execute("SELECT version, body, hash FROM audit WHERE chat = 1").fetchall()
        assert after[: len(before)] == before
        aside = on.execute("SELECT DISTINCT origin FROM quarantine WHERE chat = 1").fetchall()
        assert aside == [("messages",)]


# Poisoned answers


IDLE: Final = Settings(run_worker=False)
WRONG_ANSWERS: Final[Sequence[object]] = ("poison", b"\xff\x00", "", "7", -1, 2**62, 0.5, None)
IN_JSON: Final = ("{}", "[]", "null", '"text"', '{"a": 1}', "[[1], {}]")
"""For columns of JSON; elsewhere they are ordinary words."""
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
    """Read a damaged chat in every way: errors are typed, and three reads always succeed."""
    verdict = await engine.verify("poisoned")
    assert isinstance(verdict, Verdict)
    assert verdict.ok or (verdict.position is not None and verdict.problem)
    assert (await engine.explain("poisoned")).reason
    assert await engine.export_rows("poisoned")
    for ask in (_events, *READS.values(), *WRITES.values()):
        with suppress(TurnwiseError):
            await ask(engine)


PLAIN_ANSWERS: Final = {
    ("chats", "facts"),
    ("messages", "body"),
    ("events", "body"),
    ("audit", "body"),
    ("queue", "rank"),
}
"""Columns of `make test`; `make prove` tries all."""
PLACES: Final = [
    pytest.param(*place, id=".".join(place), marks=[] if place in PLAIN_ANSWERS else pytest.mark.deep)
    for place in COLUMNS
]


@pytest.mark.parametrize(("table", "column"), PLACES)
async def test_poisoned_column_raises_only_typed_errors(lived: Path, tmp_path: Path, table: str, column: str) -> None:
    """`verify` and `explain` never raise, for any stored value."""
    for number, value in enumerate((*WRONG_ANSWERS, *(IN_JSON if column in JSON_COLUMNS else ()))):
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
    """No row, readable or not, and no file holds the content any more."""
    if (table, column) == ("chats", "id"):
        return  # the owner of these rows is unknown
    for number, value in enumerate(("poison", b"\xff\x00", "{}", -1, None)):
        path = tmp_path / f"chats{number}.db"
        try:
            poison(lived, path, table, column, value)
        except sqlite3.IntegrityError:
            continue
        async with Engine(f"sqlite:///{path}", model=ScriptedModel(()), settings=IDLE) as engine:
            erasure = await engine.erase("poisoned", what=["everything"])
            assert erasure.overwritten
            if column in ("chat", "chat_id"):
                continue  # rows without a chat: the doctor finds them
            rows = await engine.export_rows("poisoned")
            lines = [line for line in rows.splitlines() if json.loads(line)["table"] != "quarantine"]
            assert not [line for line in lines if "and then?" in line or "I look" in line], (value, lines)
