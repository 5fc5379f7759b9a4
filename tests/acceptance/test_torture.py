"""Workers and databases fail in every way, and every promise must hold.

`TORTURE_SECONDS` and `TORTURE_CHATS` set the least duration and number for each store, `TORTURE_SEED` the course.
"""

import os
import secrets
from pathlib import Path

import pytest

from acceptance.torture import PATIENCE, Torture
from acceptance.worker_process import Place
from support.processes.postgres_server import Server

SECONDS = float(os.environ.get("TORTURE_SECONDS", "0"))
CHATS = int(os.environ.get("TORTURE_CHATS", "40"))
SEED = int(os.environ.get("TORTURE_SEED") or secrets.randbelow(1_000_000))

KEEP = 0.2 if SEED % 2 else None
"""Retention of parts in seconds: with every other seed the workers prune."""

# A guard for a course that never ends; chats that no longer change end it after `PATIENCE`.
pytestmark = [pytest.mark.deep, pytest.mark.timeout(SECONDS + 10 * (PATIENCE + CHATS))]


async def assert_unbroken(torture: Torture) -> None:
    problems = await torture.run()
    assert not problems, "\n".join([f"make torture TORTURE_SEED={SEED} after {dict(torture.deeds)}", *problems])
    deeds = (
        ["kill", "freeze", "replace", "submit", "say", "help"]
        + ["died of their doom"]
        + ["harm"] * bool(torture.faults)
    )
    assert [deed for deed in deeds if torture.deeds[deed] == 0] == [], "the torture was too mild to tell anything"


async def test_promises_hold_on_sqlite(tmp_path: Path) -> None:
    place = Place(f"sqlite:///{tmp_path}/chats.db", tmp_path, keep_parts=KEEP)
    await assert_unbroken(Torture(place, SEED, SECONDS, CHATS))


async def test_promises_hold_on_a_postgresql_that_restarts(tmp_path: Path) -> None:
    with Server.running() as server:
        place = Place(server.url("torture"), tmp_path, keep_parts=KEEP)
        faults = (server.cut, server.cut, server.restart)
        await assert_unbroken(Torture(place, SEED, SECONDS, CHATS, faults=faults, store_may_fail=True))
