"""What a worker knows of a chat that it holds: how long to wait, whether it still holds it, what it has begun."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from support.life import BLANK, NOW
from support.stores import Delegate, stored_at
from turnwise import Settings
from turnwise.engine.apply import Applier
from turnwise.engine.follow.broadcast import Broadcaster
from turnwise.engine.prompt.hooks import Hooks
from turnwise.engine.tasks import Tasks
from turnwise.engine.tools.toolbox import Toolbox
from turnwise.engine.worker.leased_chat import ChatMoved, LeasedChat, Runtime
from turnwise.persistence.protocol import Committed
from turnwise.providers.scripted import ScriptedModel
from turnwise.states.errors import StaleLease
from turnwise.states.facts import Facts, Lease
from turnwise.states.names import ChatState
from turnwise.testing import ManualClock


class Asked(Delegate):
    """A store that is told where the chat is, and counts how often it is asked."""

    def __init__(self, store: Any, facts: Facts) -> None:
        super().__init__(store)
        self.found = facts
        self.stale = False
        self.asked = 0

    async def facts(self, chat_id: str) -> Facts:
        assert chat_id == self.found.chat_id
        return self.found

    async def prompt(self, chat_id: str) -> list[Any]:
        assert chat_id == self.found.chat_id
        return []

    async def journal(self, chat_id: str, token: int, state: ChatState, events: Sequence[Any]) -> Any:
        assert (chat_id, token, state, events) == (self.found.chat_id, 1, ChatState.executing_tools, ())
        self.asked += 1
        if self.stale:
            raise StaleLease(chat_id, token, None)
        return ()


def held(database: Path, **more: Any) -> tuple[LeasedChat, ManualClock, Asked]:
    """Return a chat that is held under the token 1, of version 5."""
    clock, options = ManualClock(NOW), Settings()
    facts = replace(BLANK, **{"version": 5, "lease": Lease("w", 1), "state": ChatState.executing_tools, **more})
    store = Asked(stored_at(database, clock), facts)
    runtime = Runtime(
        applier=Applier(store, Broadcaster(), options.limits(None)),
        model=ScriptedModel([]),
        toolbox=Toolbox({}, options),
        settings=options,
        clock=clock,
        worker_id="w",
        tasks=Tasks(),
        hooks=Hooks(),
    )
    return LeasedChat(runtime, facts, 1), clock, store


def commit_of(facts: Facts) -> Committed:
    return Committed(before=facts, facts=facts, decisions=(), events=(), at=NOW)


@pytest.mark.parametrize(
    ("due", "delay", "passed", "waits"),
    [
        (10, 10, 0, 10),
        (10, 10, 3, 7),
        (4, 10, 0, 4),
        (100, 10, 0, 10),
        (100, 10, 3, 7),
        (10, 10, 10, None),
        (10, 10, 300, None),
        (-50, 10, 0, None),
        (None, 0, 0, None),
    ],
)
@pytest.mark.parametrize("step", [-3600, 0, 3600])
async def test_a_retry_is_waited_for_until_it_is_due_and_never_longer_than_its_delay(
    database: Path, step: float, due: float | None, delay: float, passed: float, waits: float | None
) -> None:
    """Whatever is done to the time meanwhile, or was before this worker took over."""
    at = None if due is None else NOW + timedelta(seconds=due)
    leased, clock, _ = held(database, step=replace(BLANK.step, retry_at=at, retry_delay=delay))
    leased.take(commit_of(leased.facts))
    clock.step(step)
    clock.advance(passed)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leased.wait_for_retry)
        await anyio.wait_all_tasks_blocked()
        assert clock.next_timer == (None if waits is None else clock.now() + timedelta(seconds=waits))
        await clock.advance(waits or 0)


async def test_what_was_committed_before_what_is_known_is_no_news(database: Path) -> None:
    leased, _, _ = held(database)
    known = leased.facts
    leased.observe(replace(known, version=4))
    assert leased.facts is known
    for version in (5, 6, 9):
        newer = replace(known, version=version)
        leased.observe(newer)
        assert leased.facts is newer


@pytest.mark.parametrize(("lease", "lost"), [(Lease("w", 1), False), (Lease("w", 2), True), (None, True)])
async def test_a_lease_is_held_only_under_its_own_token(database: Path, lease: Lease | None, *, lost: bool) -> None:
    leased, _, _ = held(database, lease=lease)
    assert leased.lost is lost


@pytest.mark.parametrize(("step", "attempt", "begun"), [(3, 2, True), (3, 1, False), (2, 2, False)])
async def test_an_attempt_that_another_began_is_not_ones_own(
    database: Path, step: int, attempt: int, *, begun: bool
) -> None:
    leased, _, _ = held(database, step=replace(BLANK.step, number=3, attempt=2))
    assert not leased.attempt_is_begun
    leased.begun_attempt = (step, attempt)
    assert leased.attempt_is_begun is begun


MOVES: dict[str, dict[str, Any]] = {
    "interrupted": {"state": ChatState.interrupted},
    "another's": {"lease": Lease("v", 2)},
    "nobody's": {"lease": None},
}


@pytest.mark.parametrize("moved", MOVES)
async def test_no_tool_starts_once_the_chat_is_known_to_have_moved(database: Path, moved: str) -> None:
    leased, clock, store = held(database)
    leased.observe(replace(leased.facts, version=6, **MOVES[moved]))
    for passed in (0, 100):
        clock.advance(passed)
        with pytest.raises(ChatMoved):
            await leased.assert_tools_may_start()
    assert store.asked == 1, "a moment after a commit nobody has to look"


@pytest.mark.parametrize("passed", [0.02, 1, 3600])
@pytest.mark.parametrize("moved", MOVES)
async def test_a_tool_that_starts_later_than_a_moment_after_the_last_look_looks_again(
    database: Path, moved: str, passed: float
) -> None:
    leased, clock, store = held(database)
    told: list[Facts] = []
    leased.runtime.applier.broadcaster.observe(told.append)
    await leased.assert_tools_may_start()
    assert store.asked == 0
    clock.advance(passed)
    await leased.assert_tools_may_start()
    assert store.asked == 1
    store.stale, store.found = True, replace(leased.facts, version=7, **MOVES[moved])
    with pytest.raises(ChatMoved):
        await leased.assert_tools_may_start()
    assert leased.facts is store.found
    assert told == [store.found], "whoever follows the chat here need not wait for a notice"


@pytest.mark.parametrize(
    ("change", "is_news"),
    [
        ({"lease": None}, True),
        ({"lease": Lease("v", 2)}, True),
        ({"lease": Lease("w", 2)}, True),
        ({"history_version": 9}, True),
        ({"state": ChatState.interrupted}, False),
    ],
)
async def test_a_history_that_was_read_is_used_only_if_the_chat_has_not_moved_meanwhile(
    database: Path, change: dict[str, Any], *, is_news: bool
) -> None:
    """Who finds that it has knows where it is now: it does not begin the same job again."""
    leased, _, store = held(database)
    store.found = replace(leased.facts, version=7, **change)
    if is_news:
        with pytest.raises(ChatMoved):
            await leased.current_view()
        assert (leased.facts, leased.view) == (store.found, None)
    else:
        view = await leased.current_view()
        assert await leased.current_view() is view
