"""Diagnoses: which flaws a repair mends, what is advised, and what is told of many flaws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.sql_by_hand import by_hand
from support.stores import Delegate, stored_at
from turnwise import ChatNotFound, Engine, Settings
from turnwise.engine.diagnose import advice_on, diagnose, is_repairable, summary_of
from turnwise.engine.files.files import Files
from turnwise.persistence.stored_chat import Flaw

CHAT = Flaw("chats.turn", "is no JSON")
LOG = Flaw("audit.hash", "is not that of its record")


@pytest.mark.parametrize(
    ("flaws", "repairs", "words"),
    [
        ([CHAT], True, (True, False)),
        ([LOG], False, (False, True)),
        ([CHAT, LOG], True, (True, True)),
    ],
)
def test_advice_repairs_everything_but_the_log(
    flaws: list[Flaw],
    repairs: bool,  # noqa: FBT001
    words: tuple[bool, bool],
) -> None:
    assert is_repairable(flaws) == repairs
    advice = advice_on(flaws)
    assert ("--repair" in advice, "evidence" in advice) == words


def test_summary_of_flaws_is_bounded() -> None:
    assert summary_of([CHAT, LOG]) == "chats.turn: is no JSON; audit.hash: is not that of its record"
    assert summary_of([]) == ""
    many = summary_of([CHAT] * 500)
    assert len(many) == 2000
    assert many.startswith("chats.turn: is no JSON; chats.turn")


class Forgetful(Delegate):
    """A store from which a chat is deleted between the list of all chats and the look at its rows."""

    deleted = ""

    async def raw_rows(self, chat_id: str) -> Any:
        if chat_id == self.deleted:
            raise ChatNotFound(chat_id)
        return await self._store.raw_rows(chat_id)


async def _broken(database: Path, *, of: int, sound: int) -> list[str]:
    """Make chats, all of which have a flaw but one; return their ids."""
    url = f"sqlite:///{database}"
    async with Engine(url, model="demo", settings=Settings(run_worker=False)) as engine:
        chats = [(await engine.create_chat(title="a title")).id for _ in range(of)]
    await by_hand(url, f"UPDATE profiles SET body = '[' WHERE chat_id <> '{chats[sound]}'")  # noqa: S608
    return chats


@pytest.mark.parametrize("at_once", [1, 2, 6])
async def test_each_flawed_chat_is_diagnosed_once(
    database: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr("turnwise.engine.diagnose.CHATS_PER_READ", at_once)
    chats = await _broken(database, of=5, sound=3)
    store: Any = Forgetful(stored_at(database))
    await store.open()
    files = Files(store, store.file_store(), Settings())
    try:
        for deleted in ("", chats[0], chats[4]):
            store.deleted = deleted
            found = [diagnosis async for diagnosis in diagnose(files, read=False)]
            assert [each.chat_id for each in found] == [chat for chat in chats if chat not in (chats[3], deleted)]
            assert all(each.flaws[0].column == "profiles.body" for each in found)
            assert all("--repair" in each.advice for each in found)
    finally:
        await store.close()


async def test_orphaned_rows_are_reported_last(database: Path) -> None:
    chats = await _broken(database, of=2, sound=1)
    await by_hand(f"sqlite:///{database}", f"UPDATE events SET chat_id = 'nobody' WHERE chat_id = '{chats[1]}'")  # noqa: S608
    async with Engine(f"sqlite:///{database}", model="demo", settings=Settings(run_worker=False)) as engine:
        *_, last = [diagnosis async for diagnosis in engine.diagnose()]
    assert (last.chat_id, last.advice.startswith("no chat reads these rows")) == (None, True)
    assert chats[0] not in str(last)


async def test_repair_records_what_it_quarantined(database: Path) -> None:
    broken, sound = await _broken(database, of=2, sound=1)
    async with Engine(f"sqlite:///{database}", model="demo", settings=Settings(run_worker=False)) as engine:
        (flaws,) = [diagnosis.flaws async for diagnosis in engine.diagnose()]
        error = (await engine.repair(broken)).last_error
        assert error is not None
        assert error.kind == "repaired"
        assert error.message == f"repaired, and put aside what could not be read: {summary_of(flaws)}"
        assert (await engine.audit(broken))[-1].reason == summary_of(flaws)
        assert [diagnosis async for diagnosis in engine.diagnose()] == []
        assert (await engine.get_chat(sound)).title == "a title"
