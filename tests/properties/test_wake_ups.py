"""A scheduled message is sent once, at most a poll late; a missed series once; archived chats get none.

In any state, with any sweeper and any crash: a due message is sent or skipped in one transaction, and stays due only
while the queue is full. Seen red: `fire_schedule` that leaves what is sent once; `_next_due` that goes on from the time
that was missed; a row without `is_skipped`; `mark_archived` without `clear_schedules`; a store that does not write
`wake_at` with a commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import asdict

from support.life import SCHEDULED
from support.lives import PLACES, Process, StoredLife, Walk, lives_in
from turnwise import ChatState, ChatStore, Engine, Message, Settings
from turnwise.engine.transactions.schedules import Times, fire_due
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.states import triggers as t
from turnwise.states.draft import Draft
from turnwise.states.events import MessageEvent
from turnwise.states.facts import Facts
from turnwise.states.machine import accepts
from turnwise.states.messages import QueuedMessage, ScheduledMessage
from turnwise.states.triggers import TransitionContext, Trigger
from turnwise.testing import ManualClock, crash_everywhere

pytestmark = pytest.mark.hypothesis
S = ChatState
SITUATIONS = ("at rest", "queued", "steers", "skipped", "waits already", "queue is full", "missed series", "archived")


@pytest.mark.parametrize("place", PLACES)
def test_each_time_sends_one_message(place: str, request: pytest.FixtureRequest) -> None:
    met = lives_in(place, request).each(live, kind=Woken, table=600, sqlite=25, postgres=8)
    if place == "table":
        assert {name: met[name] for name in SITUATIONS if met[name] < 50} == {}
    assert met["fired"] >= {"table": 1000, "sqlite": 50, "postgres": 10}[place]


def live(walk: Woken) -> None:
    walk.live(40, meddling=0.4)


class OnTable:
    """The unit of work of a life on the table."""

    def __init__(self, walk: Woken) -> None:
        self.life = walk.life
        self.decisions: list[Any] = []

    @property
    def facts(self) -> Facts:
        return self.life.facts

    @property
    def now(self) -> datetime:
        return self.life.now

    def accepts(self, trigger: Trigger) -> bool:
        return accepts(Draft(self.facts, trigger, TransitionContext(now=self.now, limits=self.life.limits)))

    def fire(self, trigger: Trigger) -> None:
        self.decisions.append(self.life.fire(type(trigger), **asdict(trigger)))


class Woken(Walk):
    """Schedules, moves the clock, and sweeps with two processes at once."""

    def __init__(self, *args: Any) -> None:
        self.sent: dict[tuple[str, datetime], str] = {}
        """The message of each time."""
        super().__init__(*args)

    def meddle(self) -> None:
        facts = self.facts
        if facts.archived:
            self.life.fire(t.Unarchived)
        elif self.chance(0.35):
            self.schedule()
        elif facts.schedules and facts.state in (S.waiting, S.error) and self.chance(0.5):
            self.met["archived"] += 1
            self.life.fire(t.Archived)
            self.life.wait(400)
            self.sweep()
            assert self.facts.archived
            self.life.fire(t.Unarchived)
        elif facts.schedules and self.chance(0.7):
            self.life.wait(self.random.choice([20, 70, 400]))
            self.sweep()
        elif facts.schedules and self.chance(0.2):
            self.life.fire(t.Unschedule, schedule_id=self.random.choice(facts.schedules).id)
        else:
            super().meddle()
        assert not (self.facts.archived and self.facts.schedules)

    def schedule(self) -> None:
        every = self.random.choice([None, "* * * * *", "*/5 * * * *"])
        now, later = self.life.now, timedelta(seconds=self.random.choice([0, 30, 90]))
        due = Times(None, every, "Asia/Kathmandu").after(now) or now + later
        fields = asdict(SCHEDULED) | {
            "id": self.random.choice("abcd") if every else f"once-{self.facts.version}",
            "due": due,
            "every": every,
            "timezone": every and "Asia/Kathmandu",
            "when_busy": self.random.choice(["queue", "queue", "steer", "skip"]),
        }
        self.life.fire(t.Schedule, message=ScheduledMessage(**fields))

    def sweep(self) -> None:
        before, now, history = self.facts, self.life.now, self.life.messages
        due = [message for message in before.schedules if message.due <= now]
        assert not [
            one for one in [*history, *before.queue] if one.wakeup and one.wakeup in [late.wakeup for late in due]
        ]
        life = self.life
        if isinstance(life, StoredLife):
            life.database.at_once(*[swept(process, life.chat_id) for process in life.database.processes])
            life.read()
        elif due:
            unit: Any = OnTable(self)
            if any(unit.accepts(t.ScheduleFired(message=one)) for one in due):
                fire_due(unit)
        there = by_wakeup([*self.life.messages, *self.facts.queue])
        for message in due:
            self.look_at(message, before, there)
        for time, name in there.items():
            assert self.sent.setdefault(time, name) == name, "one time has sent two messages"

    def look_at(self, due: ScheduledMessage, before: Facts, there: Mapping[tuple[str, datetime], str]) -> None:
        after = next((one for one in self.facts.schedules if one.id == due.id), None)
        was_sent = (due.id, due.due) in there
        if after == due:
            assert len(self.facts.queue) >= self.life.limits.queue_limit
            assert not was_sent
            self.met["queue is full"] += 1
            return
        assert (after is None) == (due.every is None)
        assert after is None or after.due > self.life.now
        rested = before.settled and before.state in (S.waiting, S.interrupted, S.error)
        waits = any(queued.wakeup and queued.wakeup.schedule == due.id for queued in before.queue)
        if not was_sent:
            assert (waits and due.every) or due.when_busy == "skip"
        self.met["fired"] += was_sent
        self.met["at rest"] += rested and was_sent
        self.met["queued"] += not rested and was_sent and due.when_busy == "queue"
        self.met["steers"] += not rested and was_sent and due.when_busy == "steer"
        self.met["skipped"] += not was_sent and due.when_busy == "skip"
        self.met["waits already"] += not was_sent and due.when_busy != "skip"
        self.met["missed series"] += due.every == "* * * * *" and self.life.now - due.due > timedelta(minutes=2)


async def swept(process: Process, chat_id: str) -> None:
    if chat_id in (await process.store.overdue(limit=10)).to_wake:
        await process.writer.change(chat_id, fire_due, actor=process.actor)


def by_wakeup(messages: list[Message | QueuedMessage]) -> dict[tuple[str, datetime], str]:
    sent = [(one.wakeup, one.id) for one in messages if one.wakeup]
    assert len({wakeup for wakeup, _ in sent}) == len(sent), "one time has sent two messages"
    return {(wakeup.schedule, wakeup.due): name for wakeup, name in sent}


async def test_message_is_a_poll_late_at_most_after_a_restart(tmp_path: Path) -> None:
    """With the clock stopped one poll after its time or the restart, the message comes, or never."""
    clock, random, url = ManualClock(), Random(7), f"sqlite:///{tmp_path / 'chats.db'}"  # noqa: S311 - no secret
    settings, series_missed = Settings(poll_interval=1), 0
    for _ in range(50):
        engine = Engine(url, model=ScriptedModel(["ok"] * 9), settings=settings, clock=clock)
        async with engine:
            chat = (await engine.list_chats()).items or [await engine.create_chat()]
            at = clock.now() + timedelta(seconds=random.uniform(2, 200))
            await engine.schedule(chat[0].id, "once", at=at)
            await engine.schedule(chat[0].id, "series", every="* * * * *", id="series")
            is_down = random.random() < 0.7
            if not is_down:
                await clock.advance((at - clock.now()).total_seconds() - 0.01)
                await engine.wait(chat[0].id)
                assert at not in [one.wakeup.due for one in await engine.messages(chat[0].id) if one.wakeup]
        if is_down:
            await clock.advance(random.uniform(1, 400))
        opened = clock.now()
        async with Engine(url, model=ScriptedModel(["ok"] * 9), settings=settings, clock=clock) as engine:
            await clock.advance(max((at - clock.now()).total_seconds(), 0) + 1)
            await told_of(engine, chat[0].id, at)
            sent = [one for one in await engine.messages(chat[0].id) if one.wakeup]
            assert [one.wakeup.due for one in sent if one.text == "once"].count(at) == 1
            missed = [one for one in sent if one.text == "series" and one.wakeup.due < opened <= one.created_at]
            assert len(missed) <= 1
            series_missed += is_down and bool(missed)
            assert len({(one.wakeup.schedule, one.wakeup.due) for one in sent}) == len(sent)
            await engine.unschedule(chat[0].id, "series")
    assert series_missed >= 10


async def told_of(engine: Engine, chat_id: str, due: datetime) -> None:
    """Wait for the due message while the clock stands still."""
    async for event in engine.events(chat_id):
        if isinstance(event, MessageEvent) and event.message.wakeup and event.message.wakeup.due == due:
            return


@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.deep)])
async def test_it_fires_once_if_the_engine_dies_anywhere(store: str, request: pytest.FixtureRequest) -> None:
    url = store if store == "sqlite" else request.getfixturevalue("postgres").address
    report = await crash_everywhere(engine_of, reminded, check=check_reminded, store=url)
    assert [point for point in report.points if "schedule_fired" in point]


def engine_of(store: ChatStore, clock: ManualClock) -> Engine:
    return Engine(store, model=ScriptedModel(lambda _: Reply("ok")), settings=Settings(coalesce=0), clock=clock)


async def reminded(engine: Engine) -> None:
    chat = await engine.create_chat(client_id="c")
    if "schedule" not in [record.trigger for record in await engine.audit(chat.id)]:
        at = chat.created_at + timedelta(seconds=5)
        await engine.schedule(chat.id, "remind me", at=at, id="once")
    async for event in engine.events(chat.id):
        if event.kind == "turn_finished":
            return


async def check_reminded(engine: Engine) -> None:
    (chat,) = (await engine.list_chats()).items
    assert [one.text for one in await engine.messages(chat.id) if one.role == "user"] == ["remind me"]
    assert await engine.schedules(chat.id) == []
