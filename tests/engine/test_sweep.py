"""A sweep tries each due chat, isolates failures, and expires no lease of a live worker."""

import itertools
import logging
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
import structlog

from support.runtimes import runtime_of
from support.stores import Delegate, stored_at
from turnwise import ChatNotFound, ChatUnreadable, IllegalTransition, Settings, StoreError
from turnwise.engine.transactions.chat_writer import Change, UnitOfWork
from turnwise.engine.transactions.runtime import Runtime
from turnwise.engine.worker import identity
from turnwise.engine.worker.identity import is_dead, worker_name
from turnwise.engine.worker.slots import Slots
from turnwise.engine.worker.sweep import Sweeper
from turnwise.persistence.protocol import Committed
from turnwise.persistence.reading import Overdue
from turnwise.states.facts import Profile
from turnwise.states.messages import TextPart
from turnwise.states.triggers import Archived, Claimed, Create, SendMessage
from turnwise.testing.clock import ManualClock

LEASE: Final = Settings(lease=30, renew_every=10)
DEAD: Final = f"{worker_name().rpartition(':')[0][:-1]}:x"
"""A worker of this machine without a process: its number belongs to another one."""


class SweptStore(Delegate):
    """A store whose overdue chats and dead workers the test sets."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.due = Overdue()
        self.store_time: Callable[[], datetime | None] = lambda: None
        self.dead: set[str] = set()
        self.asked_of: list[set[str]] = []
        self.ended: list[tuple[str, float]] = []

    async def overdue(self, *, limit: int) -> Overdue:
        due = self.due
        return Overdue(due.leases[:limit], due.deadlines[:limit], due.strays[:limit], self.store_time())

    async def gone(self, workers: Collection[str]) -> frozenset[str]:
        self.asked_of.append(set(workers))
        return frozenset(self.dead & set(workers))

    async def renew(self, worker: str, seconds: float) -> Any:
        self.ended.append((worker, seconds))
        return await self._store.renew(worker, seconds)


class Swept:
    """A sweeper, and the chats that it tries to change; it changes nothing."""

    def __init__(self, runtime: Runtime, store: SweptStore, clock: ManualClock) -> None:
        self.runtime, self.store, self.clock = runtime, store, clock
        self.tried: list[str] = []
        self.faults: dict[str, Exception] = {}
        self.slots = Slots(5)
        self.sweeper = self.restart()
        runtime.writer.change = self._change  # type: ignore[method-assign]

    def restart(self) -> Sweeper:
        self.sweeper = Sweeper(self.runtime, self.slots)
        return self.sweeper

    async def _change(self, chat_id: str, _change: Change, *, actor: str) -> Committed:
        assert actor == self.runtime.actor
        self.tried.append(chat_id)
        if chat_id in self.faults:
            raise self.faults[chat_id].with_traceback(None)  # or each raising would lengthen the last one's
        return await self.runtime.writer.commit(chat_id, lambda _: None, actor=actor)

    async def sweep(self) -> list[str]:
        self.tried.clear()
        await self.sweeper.sweep()
        return sorted(self.tried)

    async def held(self, chat_id: str, worker: str) -> None:
        def planned(unit: UnitOfWork) -> None:
            unit.fire(Create(profile=Profile(created_at=unit.now)))
            unit.fire(SendMessage(parts=(TextPart(text="hi"),)))
            unit.fire(Claimed(worker=worker))

        await self.runtime.writer.create(chat_id, planned, actor="client")

    async def idle(self, *chats: str) -> None:
        """Add chats that need nothing."""
        for chat_id in chats:
            await self.runtime.writer.create(
                chat_id, lambda unit: unit.fire(Create(profile=Profile(created_at=unit.now))), actor="client"
            )


@asynccontextmanager
async def sweeping(database: Path, options: Settings = LEASE) -> AsyncIterator[Swept]:
    clock = ManualClock()
    store = SweptStore(stored_at(database, clock))
    runtime = runtime_of(store, clock, settings=options, worker_id="sweeper")
    await store.open()
    try:
        yield Swept(runtime, store, clock)
    finally:
        await store.close()


FAULTS: Final[dict[str, Exception]] = {
    "the store": StoreError("out of reach"),
    "unreadable": ChatUnreadable("chats.facts", "no JSON"),
    "odd": RuntimeError("unexpected"),
    "moved": IllegalTransition("waiting", "deadline_passed", ()),
}


@pytest.mark.parametrize("at_once", [1, pytest.param(2, marks=pytest.mark.deep), 3])
async def test_sweep_ends_only_if_the_store_refuses_every_chat(
    database: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """One refusal may concern that chat alone; it is raised if no later chat succeeds."""
    monkeypatch.setattr("turnwise.engine.worker.sweep.AT_ONCE", at_once)
    async with sweeping(database) as swept:
        chats = [*"dabc"]  # in the order in which a worker of that name tries them
        await swept.idle(*chats)
        swept.store.due = Overdue(strays=tuple(sorted(chats)))
        for outcomes in itertools.product(("fine", "the store", "odd"), repeat=len(chats)):
            swept.restart()
            swept.faults = {chat: FAULTS[each] for chat, each in zip(chats, outcomes, strict=True) if each != "fine"}
            expected, in_a_row = 0, 0
            while expected < len(chats) and in_a_row < 2:
                batch = outcomes[expected : expected + at_once]
                expected += len(batch)
                in_a_row = in_a_row + len(batch) if set(batch) == {"the store"} else 0
            if in_a_row:
                with pytest.raises(StoreError):
                    await swept.sweep()
            else:
                await swept.sweep()
            assert swept.tried == chats[:expected], outcomes


async def test_sweep_returns_whether_there_is_more(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a worker continues at once with ten thousand orphans, but not with chats that it cannot change."""
    monkeypatch.setattr("turnwise.engine.worker.sweep.SWEEP_LIMIT", 3)
    async with sweeping(database) as swept:
        chats = tuple("abcdef")
        await swept.idle(*chats)
        for kind, many in itertools.product(("leases", "deadlines", "strays"), range(5)):
            due = chats[:many]
            swept.store.due = Overdue(**{kind: tuple((one, 1) for one in due) if kind == "leases" else due})
            swept.restart()
            assert await swept.sweeper.sweep() == (many >= 3), (kind, many)
            swept.faults = dict.fromkeys(chats, FAULTS["odd"])
            assert not await swept.sweeper.sweep(), "nothing was changed: the same would be found again"
            del swept.faults["b"]
            swept.restart()
            assert await swept.sweeper.sweep() == (many >= 3), "one chat was changed"
            swept.faults.clear()


@pytest.mark.parametrize("fault", FAULTS)
async def test_failing_chat_is_retried_less_and_less_often(database: Path, fault: str) -> None:
    async with sweeping(database) as swept:
        await swept.idle("bad", "good")
        swept.store.due = Overdue(strays=("bad", "good"))
        swept.faults = {"bad": FAULTS[fault]}
        rounds = [await swept.sweep() for _ in range(210)]
        tried = [place for place, chats in enumerate(rounds) if "bad" in chats]
        assert [later - earlier - 1 for earlier, later in itertools.pairwise(tried)] == [0, 1, 2, 4, 8, 16, 32, 64, 64]
        assert all("good" in chats for chats in rounds), "nothing is wrong with it"
        swept.faults.clear()
        while "bad" not in await swept.sweep():
            pass
        swept.faults = {"bad": FAULTS[fault]}
        rounds = [await swept.sweep() for _ in range(4)]
        assert ["bad" in chats for chats in rounds] == [True, True, False, True], "a success resets the schedule"


async def test_repeated_failure_of_a_chat_is_logged_once(database: Path) -> None:
    async with sweeping(database) as swept:
        await swept.idle("a", "b", "c")

        async def logs_of(chat_id: str, fault: Exception | None) -> list[Any]:
            swept.faults = {} if fault is None else {chat_id: fault}
            with structlog.testing.capture_logs() as logs:
                assert await swept.sweeper.change(chat_id, lambda _: None) == (fault is None)
            return [(log["event"], log["chat_id"], log["log_level"]) for log in logs]

        for chat_id in ("a", "b"):
            assert await logs_of(chat_id, FAULTS["odd"]) == [("sweep_failed", chat_id, "error")]
            assert await logs_of(chat_id, FAULTS["odd"]) == []
        assert await logs_of("a", FAULTS["unreadable"]) == [("chat_unreadable", "a", "warning")]
        assert await logs_of("a", FAULTS["unreadable"]) == []
        assert await logs_of("b", None) == []
        assert await logs_of("b", FAULTS["odd"]) == [("sweep_failed", "b", "error")]
        assert await logs_of("c", FAULTS["moved"]) == [("swept_by_another", "c", "debug")]
        assert await logs_of("gone", FAULTS["moved"]) == [("chat_is_gone", "gone", "debug")]


@pytest.mark.parametrize(
    ("step", "doubted"), [(0, False), (10, False), (10.5, True), (3600, True), (-10.5, False), (-3600, False)]
)
async def test_clock_set_forward_expires_no_live_lease(
    database: Path, step: float, caplog: pytest.LogCaptureFixture, *, doubted: bool
) -> None:
    """The worker waits until a lease has passed since; elapsed time of any length is no such step."""
    async with sweeping(database) as swept:
        await swept.held("c", "elsewhere")
        await swept.held("d", "is-gone")
        clock, due = swept.clock, Overdue(leases=(("c", 1), ("d", 1)))
        assert await swept.sweep() == []
        clock.advance(1000)
        swept.store.due = due
        assert await swept.sweep() == ["c", "d"]
        clock.step(step)
        clock.advance(3)
        with caplog.at_level(logging.WARNING):
            assert await swept.sweep() == ([] if doubted else ["c", "d"])
        assert ["clock_stepped" in record.getMessage() for record in caplog.records] == [True] * doubted
        swept.store.dead = {"is-gone"}
        assert await swept.sweep() == (["d"] if doubted else ["c", "d"])
        clock.advance(29.5)
        assert await swept.sweep() == (["d"] if doubted else ["c", "d"])
        clock.advance(0.5)
        assert await swept.sweep() == ["c", "d"], "every live worker has renewed by now"


async def test_outage_gives_live_workers_time_to_renew(database: Path) -> None:
    """The outage may have kept other workers from renewing, too."""
    async with sweeping(database) as swept:
        await swept.held("c", "elsewhere")
        await swept.held("d", "is-gone")
        swept.store.due = Overdue(leases=(("c", 1), ("d", 1)))
        swept.sweeper.trust.doubt_outage()
        assert await swept.sweep() == []
        swept.store.dead = {"is-gone"}
        assert await swept.sweep() == ["d"]
        swept.clock.advance(LEASE.renew_every)
        assert await swept.sweep() == ["c", "d"]


async def test_slow_store_delays_takeover_by_a_lease(database: Path) -> None:
    """Otherwise the chats of a store that is always slow would never be taken over."""
    async with sweeping(database) as swept:
        await swept.held("c", "elsewhere")
        swept.store.due, delayed = Overdue(leases=(("c", 1),)), 0
        for _ in range(100):
            swept.sweeper.trust.doubt_outage()
            if await swept.sweep():
                break
            swept.clock.advance(1)
            delayed += 1
        assert delayed == LEASE.lease + LEASE.renew_every


async def test_worker_expires_no_lease_of_its_own_runner(database: Path) -> None:
    async with sweeping(database) as swept:
        swept.slots.runners["c"] = cast("Any", SimpleNamespace(leased=SimpleNamespace(token=2)))
        await swept.idle("c", "d")
        swept.store.due = Overdue(leases=(("c", 2), ("d", 2)))
        assert await swept.sweep() == ["d"]
        swept.store.due = Overdue(leases=(("c", 1),))
        assert await swept.sweep() == ["c"], "an older lease of the same chat"


async def test_leases_of_a_dead_worker_are_ended_once(database: Path) -> None:
    async with sweeping(database) as swept:
        holders = ("sweeper", "elsewhere", "is-gone", DEAD)
        for place, worker in enumerate(holders):
            await swept.held(f"c{place}", worker)
        swept.store.dead = {"is-gone", "sweeper"}
        with structlog.testing.capture_logs() as logs:
            for _ in range(3):
                await swept.sweep()
        assert sorted((log["event"], log["worker"]) for log in logs) == [
            ("worker_is_dead", holder) for holder in sorted(("is-gone", DEAD))
        ]
        assert sorted(swept.store.ended) == sorted([("is-gone", 0), (DEAD, 0)])
        assert all(asked == {"elsewhere", "is-gone"} for asked in swept.store.asked_of), "of the others all is known"
        swept.store.dead = set()
        await swept.sweep()
        swept.store.dead = {"is-gone"}
        await swept.sweep()
        assert [worker for worker, _ in swept.store.ended].count("is-gone") == 2, "it had come back meanwhile"


async def test_stray_chat_is_repaired_to_an_error(database: Path) -> None:
    async with sweeping(database) as swept:
        await swept.held("stray", "w")
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("UPDATE chats SET state = 'dreaming'")
        swept.store.due = Overdue(strays=("stray",))
        swept.runtime.writer.change = swept.runtime.writer.commit  # type: ignore[method-assign]
        await swept.sweeper.sweep()
        facts = await swept.store.facts("stray")
        assert (facts.state, facts.last_error.kind) == ("error", "repaired")
        assert re.fullmatch("found in state dreaming with .+ broken", facts.last_error.message)


async def test_deletion_is_followed_by_one_cleanup(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It deletes bytes of files, and words that the database's own files still hold."""
    started: list[Any] = []
    cleaned: list[str] = []

    async def unreferenced_files(*, limit: int) -> list[tuple[int, str]]:
        cleaned.append("files")
        return [][:limit]

    async def scrub() -> None:
        cleaned.append("rows")

    async with sweeping(database, Settings(delete_after=60)) as swept:
        monkeypatch.setattr(swept.runtime.tasks, "start_soon", started.append)
        monkeypatch.setattr(swept.store, "unreferenced_files", unreferenced_files, raising=False)
        monkeypatch.setattr(swept.store, "scrub", scrub, raising=False)
        await swept.idle("a", "b")
        await swept.runtime.writer.commit("a", lambda unit: unit.fire(Archived()), actor="client")
        await swept.sweep()
        assert started == []
        await swept.clock.advance(60)
        await swept.sweep()
        with pytest.raises(ChatNotFound):
            await swept.store.facts("a")
        (clean,) = started
        await clean()
        assert cleaned == ["files", "rows"]
        await swept.sweep()
        assert started == [clean]


# The name shows others that a worker's process is gone


NAME_ITSELF = """
import sys
from turnwise.engine.worker.identity import worker_name
print(worker_name(), flush=True)
sys.stdin.read()
"""


@contextmanager
def named(*before: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a process, started by `before`, that prints its worker's name."""
    command = [*before, sys.executable, "-c", NAME_ITSELF]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().strip(), process


def test_live_worker_is_not_dead() -> None:
    assert not is_dead(worker_name())


@pytest.mark.deep
def test_killed_worker_is_dead() -> None:
    with named() as (name, process):
        assert not is_dead(name)
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_dead(name), "nobody has taken note of its end yet"
        process.wait()
        assert is_dead(name)


def test_hidden_process_of_another_user_is_not_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A permission error shows that the process exists."""
    machine = worker_name().partition(":")[0]

    def refuse(_pid: int, _signal: int) -> None:
        raise PermissionError

    (tmp_path / "self").symlink_to(f"{os.getpid()}")
    monkeypatch.setattr(identity, "_host_id", lambda: machine)
    monkeypatch.setattr(identity, "_PROC", tmp_path)
    monkeypatch.setattr(os, "kill", refuse)
    assert not is_dead(f"{machine}:4711:1:word")


def test_worker_of_another_machine_is_not_dead() -> None:
    machine, pid, started, word = worker_name().split(":")
    assert not is_dead(f"other-machine:{pid}:1:{word}")
    assert is_dead(f"{machine}:{pid}:{int(started) + 1}:{word}")
    for name in ("", "worker", f"{machine}:x:1:{word}", f"{machine}:1:0:{word}", f"{machine}:{10**30}:1:{word}"):
        assert not is_dead(name)
