"""Crash points: a process that is killed anywhere in a life loses nothing; whoever goes on ends where it would have."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from acceptance import killed_life
from support.events import assert_told_right, events_of
from turnwise import Engine, verify_export
from turnwise.states.events import CompactionEvent

WHOLE = [
    ("user", "Pay, please."),
    ("assistant", "On it."),
    ("tool", "paid"),
    ("tool", "noted"),
    ("system", "compaction"),
    ("tool", "agreed"),
    ("assistant", "All done."),
]
"""The history of a life that nobody cuts short."""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bool]]:
    """Return a folder of databases that dead processes left, and which points they died at."""
    folder = tmp_path_factory.mktemp("dead")
    told = subprocess.run(
        [sys.executable, killed_life.__file__, str(folder)], check=True, capture_output=True, text=True
    )
    lines = map(json.loads, told.stdout.splitlines())
    return folder, {line["point"]: line["killed"] for line in lines}


async def recovered(database: Path) -> tuple[list[tuple[str, Any]], Counter[str]]:
    """Go on with the life in this process; return its history and the effects in the world, after many checks."""
    world, model = database.with_suffix(".world"), killed_life.model()
    acting = killed_life.tools(world, strike=lambda: None)
    url = f"sqlite:///{database}"
    async with Engine(url, model=model, tools=acting, settings=killed_life.QUICK) as engine:
        chat = await killed_life.live(engine)
        assert (chat.state, chat.stop_reason, chat.last_error) == ("waiting", "end_turn", None)
        assert [known.id for known in (await engine.list_chats()).items] == [chat.id]
        await assert_told_right(engine, chat.id)
        exported = await engine.export_audit(chat.id)
        verdict = verify_export(exported)
        assert verdict.ok, verdict
        assert json.loads(exported.splitlines()[-1])["count"] == chat.version
        phases = [event.phase for event in await events_of(engine, chat.id) if isinstance(event, CompactionEvent)]
        assert Counter(phases)["stored"] == 1
        assert model.faults == []
        history = [(message.role, _told(message)) for message in await engine.messages(chat.id)]
    return history, Counter(world.read_text().splitlines() if world.exists() else [])


def _told(message: Any) -> Any:
    part = message.parts[0]
    return message.result.output if message.result else message.text or part.reason


def assert_as_if_uncut(point: str, history: list[tuple[str, Any]], world: Counter[str]) -> None:
    """Check the history and the world: only the outcome of the at-most-once call may be unknown."""
    paid = history[2][1]
    assert [*history[:2], ("tool", "paid"), *history[3:]] == WHOLE, point
    assert paid == "paid" or paid.startswith("Outcome unknown"), point
    lines = {line.split()[0]: (line, count) for line, count in world.items()}
    assert len(lines) == len(world), f"{point}: one idempotency key for each call"
    payments = lines["pay"][1] if "pay" in lines else 0
    assert payments == 1 if paid == "paid" else payments <= 1, point
    assert lines["note"][1] >= 1, point


async def test_after_a_kill_around_any_commit_the_life_ends_as_if_uncut(killed: tuple[Path, dict[str, bool]]) -> None:
    folder, points = killed
    around = {point: dead for point, dead in points.items() if point[0].isdigit()}
    assert sum(around.values()) >= 16
    for point, dead in around.items():
        history, world = await recovered(folder / f"{point}.db")
        assert_as_if_uncut(point, history, world)
        if not dead:
            assert (history, sorted(world.values())) == (WHOLE, [1, 1]), point


async def test_a_payment_that_killed_its_worker_is_made_once_and_answered_as_unknown(
    killed: tuple[Path, dict[str, bool]],
) -> None:
    folder, points = killed
    assert points["in-pay"]
    history, world = await recovered(folder / "in-pay.db")
    assert history[2][1].startswith("Outcome unknown")
    assert_as_if_uncut("in-pay", history, world)
    assert [count for line, count in world.items() if line.startswith("pay ")] == [1]


async def test_a_repeatable_tool_that_killed_its_worker_runs_again_under_the_same_key(
    killed: tuple[Path, dict[str, bool]],
) -> None:
    folder, points = killed
    assert points["in-note"]
    history, world = await recovered(folder / "in-note.db")
    assert history == WHOLE
    assert sorted(world.values()) == [1, 2]
    assert [line.split()[0] for line in world if world[line] == 2] == ["note"]


async def test_a_life_that_is_killed_again_and_again_still_comes_to_its_end(
    killed: tuple[Path, dict[str, bool]],
) -> None:
    folder, points = killed
    lives = [dead for point, dead in points.items() if point.startswith("worn-")]
    assert lives[:2] == [True, True]
    assert lives[-1] is False
    history, world = await recovered(folder / "worn.db")
    assert_as_if_uncut("worn", history, world)
