"""Diagnoses: which flaws a repair mends, what is advised, and what is told of many flaws."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.sql_by_hand import by_hand
from turnwise import Engine, Settings
from turnwise.engine.diagnose import advice_on, is_repairable, summary_of
from turnwise.persistence.stored_chat import Flaw

CHAT = Flaw("chats.turn", "is no JSON")
LOG = Flaw("audit.hash", "is not that of its record")


@pytest.mark.parametrize(
    ("flaws", "repairs", "words"),
    [([CHAT], True, (True, False)), ([LOG], False, (False, True)), ([CHAT, LOG], True, (True, True))],
)
def test_advice_repairs_everything_but_the_log(flaws: list[Flaw], repairs: bool, words: tuple[bool, bool]) -> None:
    assert is_repairable(flaws) == repairs
    advice = advice_on(flaws)
    assert ("--repair" in advice, "evidence" in advice) == words


def test_summary_of_flaws_is_bounded() -> None:
    assert summary_of([CHAT, LOG]) == "chats.turn: is no JSON; audit.hash: is not that of its record"
    assert summary_of([]) == ""
    many = summary_of([CHAT] * 500)
    assert len(many) == 2000
    assert many.startswith("chats.turn: is no JSON; chats.turn")


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
    async with Engine(f"sqlite:///{database}", model="demo", settings=Settings(run_worker=False)) as engine:
        found = [diagnosis async for diagnosis in engine.diagnose()]
    assert [each.chat_id for each in found] == [*chats[:3], chats[4]]
    assert all(each.flaws[0].column == "profiles.body" for each in found)
    assert all("--repair" in each.advice for each in found)


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
