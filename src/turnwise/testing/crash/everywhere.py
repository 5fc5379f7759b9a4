"""Kills an engine everywhere, and checks that its scenario ends as it would have without."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated, Any, Final, cast

import msgspec
from pydantic import Field

from turnwise.engine.engine import Engine
from turnwise.engine.isolation.clock import sleep
from turnwise.persistence.protocol import ChatStore
from turnwise.states.errors import InvalidArgument
from turnwise.states.facts import Facts
from turnwise.states.names import RESTING
from turnwise.states.values.checked import checked
from turnwise.testing.clock import ManualClock
from turnwise.testing.crash.databases import CrashDatabase, databases
from turnwise.testing.crash.life import EngineRun, task_factory
from turnwise.testing.crash.pilot import Stalled, pilot
from turnwise.testing.crash.points import Points
from turnwise.testing.crash.promises import Ending, broken, chat_ids_of, differences, endings_of
from turnwise.testing.crash.store import MortalStore
from turnwise.testing.failures import UNCUT, CrashFailure, CrashReport, CrashTestFailed, NotTested

MakeEngine = Callable[[ChatStore, ManualClock], Engine]
"""Makes an engine of the product on a store and a clock, as its process does when it starts."""
Act = Callable[[Engine], Awaitable[object]]
"""Does something with an open engine."""

_SUBAGENTS: Final = ("subagents", "both")


@checked
async def crash_everywhere(  # noqa: PLR0913 - all but two are options
    make_engine: MakeEngine,
    scenario: Act,
    *,
    check: Act | None = None,
    reset: Callable[[], object] | None = None,
    store: str = "sqlite",
    only: str | None = None,
    timeout: Annotated[float, Field(ge=0.1, le=3600)] = 30,  # noqa: ASYNC109 - of each run, by the machine's clock
) -> CrashReport:
    """Kill an engine before and after every commit and at every await of user code; each time, start it again.

    A first run without a crash finds the points. Then the scenario runs once for each point: the engine is killed
    there, another one opens the same database after the lease, and the scenario runs again from its beginning. So the
    scenario must be idempotent: create chats and send messages with a `client_id`, and submit results of open calls. A
    kill runs no cleanup: all tasks stop, and the store accepts nothing more.

    Once all chats rest these must hold: all chats verify and keep the promises of turnwise, every call has one result,
    no call of an at-most-once tool began twice, no acknowledged commit is lost, there are the same chats and user
    messages as without a crash, and none ended in an error that did not so without one. Then comes `check`.

    Args:
        make_engine: creates an engine with a store and a clock. It is called for every start.
        scenario: the requests of clients. It need not wait for the end of a turn. An exception is a failure.
        check: asserts the product's own promises after the scenario.
        reset: called before each run, to undo what the last run did outside of the database.
        store: `sqlite`, or the URL of a PostgreSQL database, which gets a schema for each run, and loses it.
        only: run only the points whose names contain this text.
        timeout: real seconds for each run. The clock moves by itself.

    Raises:
        CrashTestFailed: a scenario did not end as promised; it names every such point.
        NotTested: no point was met.
    """
    async with databases(store) as available:
        with task_factory():
            trial = _Trial(make_engine, scenario, check, timeout)
            uncut = _Run(trial, available.fresh(), Points())
            await _tried(UNCUT, uncut.live, reset)
            named = [point for point in uncut.points.passed if only is None or only in point]
            points: list[str] = []
            failures: list[CrashFailure] = []
            cause: Exception | None = None
            for point in dict.fromkeys(named):
                run = _Run(trial, available.fresh(), Points(point), wanted=uncut.endings)
                try:
                    with _without_a_log():
                        await _tried(point, run.live, reset)
                except CrashTestFailed as failed:
                    failures += failed.failures
                    cause = cause or cast("Exception | None", failed.__cause__)
                if run.was_killed:
                    points.append(point)
    if failures:
        raise CrashTestFailed(failures, tried=len(points)) from cause
    if not points:
        found = f"none of {len(uncut.points.passed)} points has {only!r} in its name" if only else "no point was met"
        raise NotTested([found], "the scenario has to make the engine commit something")
    return CrashReport(tuple(points), tuple(point for point in dict.fromkeys(named) if point not in points))


async def _tried(point: str, live: Callable[[], Awaitable[None]], reset: Callable[[], object] | None) -> None:
    if reset is not None:
        reset()
    try:
        await live()
    except Exception as error:
        if point == UNCUT and isinstance(error, InvalidArgument):
            raise
        problem = str(error) or type(error).__name__
        if not isinstance(error, AssertionError | _Broken):
            problem = f"{type(error).__name__}: {problem}"
        raise CrashTestFailed([CrashFailure(point, problem)], tried=1) from error


@contextmanager
def _without_a_log() -> Iterator[None]:
    """Keep what engines log about every crash out of the report of a test."""
    log = logging.getLogger("turnwise")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(before)


class _Broken(Exception):
    """A promise of turnwise is broken."""


class _Trial(msgspec.Struct, frozen=True):
    make_engine: MakeEngine
    scenario: Act
    check: Act | None
    timeout: float


class _Run:
    """The scenario on one database, lived until it ends."""

    def __init__(
        self, trial: _Trial, database: CrashDatabase, points: Points, *, wanted: Sequence[Ending] | None = None
    ) -> None:
        self.points = points
        self.endings: list[Ending] = []
        """How the chats ended."""
        self.was_killed = False
        self._trial = trial
        self._database = database
        self._wanted = wanted
        self._lives: list[tuple[EngineRun, MortalStore]] = []
        self._lease_s = 0.0

    async def live(self) -> None:
        """Live it up to the point, and if that kills it, again to its end."""
        clock = ManualClock()
        try:
            self.was_killed = await self._live_once(self.points, clock)
            if self.was_killed:
                restarted_at = clock.now() + timedelta(seconds=self._lease_s + 1)
                await self._live_once(Points(), ManualClock(restarted_at))
        finally:
            for life, _ in self._lives:
                await life.end()

    async def _live_once(self, points: Points, clock: ManualClock) -> bool:
        """Live the scenario in a process of its own; return whether it was killed."""
        real, life = self._database.store(clock.now), EngineRun(points)
        await real.open()
        store = MortalStore(real, life)
        self._lives.append((life, store))
        try:
            task = life.run(self._main(store, clock, points))
            task.add_done_callback(_retrieve)
            await pilot(life, clock, task, limit=self._trial.timeout)
            if not life.killed.is_set():
                await task
        except Stalled as stalled:
            chats = await real.chats(owner=None, state=None, limit=10, after=None)
            states = [str(chat.state) for chat in chats if isinstance(chat, Facts)]
            raise Stalled(f"{stalled}; its chats are in {', '.join(states) or 'no state: there are none'}") from None
        finally:
            if not life.killed.is_set():
                await life.end()
            await real.close()
        return life.is_frozen

    async def _main(self, store: MortalStore, clock: ManualClock, points: Points) -> None:
        trial = self._trial
        engine = trial.make_engine(cast("ChatStore", store), clock)
        if not isinstance(engine, Engine):
            raise InvalidArgument("make_engine", f"must return an Engine; it returned {type(engine).__name__}")
        self._lease_s = engine.settings.lease
        async with engine:
            if not store.was_opened:
                raise InvalidArgument("make_engine", "must give the engine the store that it is called with")
            await trial.scenario(engine)
            await _rest(engine, clock, store)
            points.closed = True
            await self._look_at(engine, store)
            if trial.check is not None:
                await trial.check(engine)

    async def _look_at(self, engine: Engine, store: MortalStore) -> None:
        self.endings = await endings_of(engine)
        problems = [problem async for problem in broken(engine, store, self._lives)]
        if self._wanted is not None:
            last = [(await engine.explain(chat_id)).last_error for chat_id in await chat_ids_of(engine)]
            errors = ["" if error is None else error.detail or error.message for error in last]
            problems += differences(self.endings, self._wanted, errors)
        if problems:
            raise _Broken("; ".join(problems))


async def _rest(engine: Engine, clock: ManualClock, store: MortalStore) -> None:
    """Wait until every chat rests and every commit is confirmed; what waits for subagents does not rest."""
    while True:
        chats = [await engine.get_chat(chat_id) for chat_id in await chat_ids_of(engine)]
        moving = [chat for chat in chats if not chat.archived and not (chat.settled and chat.state in RESTING)]
        for chat in moving:
            await engine.wait(chat.id)
        waits = any(chat.awaits in _SUBAGENTS and not chat.archived for chat in chats)
        if not (moving or waits or store.commits):
            return
        await sleep(clock, 0 if moving or store.commits else 1)


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Keep asyncio from logging what a killed life has raised on its way out."""
    if not task.cancelled():
        task.exception()
