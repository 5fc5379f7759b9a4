"""Drawn lives of chats: triggers are drawn, on the table alone or in a store with two processes on it."""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import pytest

from support.exploring import seeds
from support.life import NOW, OVERFLOW, Life, client, delegated, local, text_parts
from support.runtimes import only_agent
from turnwise import Chat, ChatState, Settings
from turnwise.engine.blobs.files import Files
from turnwise.engine.commands.handlers import Handlers
from turnwise.engine.config.results import chat_of
from turnwise.engine.isolation.tasks import Lifetime
from turnwise.engine.subscriptions.broadcast import Broadcaster
from turnwise.engine.transactions.chat_writer import ChatWriter, UnitOfWork
from turnwise.engine.transactions.runtime import Runtime
from turnwise.persistence.from_url import store_from_url
from turnwise.persistence.protocol import Committed
from turnwise.states import triggers as t
from turnwise.states.calls import ToolCall, ToolResult
from turnwise.states.decide import Decision
from turnwise.states.errors import StoreError, TurnwiseError
from turnwise.states.facts import Facts
from turnwise.states.messages import Message
from turnwise.states.names import WORKER, CallStatus
from turnwise.states.table import BUSY
from turnwise.states.triggers import EditMessage, Held, Trigger
from turnwise.states.turn_limits import may_make_room
from turnwise.states.usage import Usage
from turnwise.testing.clock import ManualClock

S = ChatState
Got = TypeVar("Got")
RUNS: Final = {"default": ("search", "ask")}
"""The agents and tools of every process."""
SETTINGS: Final = Settings(lease=30, queue_limit=3)
TOOLS: Final = ("local", "once", "stop", "client", "deadline", "approval", "subagent")
PLACES: Final = ("table", "sqlite", "postgres")
STORES: Final = PLACES[1:]
SLOW_STORES: Final = ("sqlite", pytest.param("postgres", marks=pytest.mark.deep))
"""For lives of whole engines, which take seconds."""
USAGE: Final = Usage(input_tokens=7, output_tokens=2)
WINDOW: Final = 10_000
"""Tokens: no estimate of a prompt comes near it."""


class Process:
    """One process: a store of its own, and the commands of an engine."""

    def __init__(self, name: str, url: str, clock: ManualClock) -> None:
        self.name = name
        self.actor = f"{WORKER}{name}"
        self.store: Any = store_from_url(url, durability="normal", now=clock.now)
        self.limits = SETTINGS.limits(WINDOW)
        self.writer = ChatWriter(self.store, Broadcaster(), lambda _: self.limits)
        no_tasks: Any = None  # commands start none
        runtime = Runtime(
            writer=self.writer,
            agents=only_agent(settings=SETTINGS),
            deps=None,
            settings=SETTINGS,
            clock=clock,
            worker_id=name,
            tasks=no_tasks,
            files=Files(self.store, self.store.file_store(), SETTINGS),
        )
        self.runtime = runtime
        self.commands = Handlers(runtime, None, self.writer.broadcaster, Lifetime())

    async def change(self, chat_id: str, trigger: Trigger) -> Chat:
        """Fire a trigger."""
        return chat_of((await self.writer.change(chat_id, trigger, actor="client")).facts)


class Database:
    """A database with two processes on it, which many lives share, one after another."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = ManualClock(NOW)
        self._loop = asyncio.Runner()
        self.processes = [self.start(name) for name in "AB"]
        self._dead: list[Process] = []

    def do(self, work: Coroutine[Any, Any, Got]) -> Got:
        return self._loop.run(work)

    def at_once(self, *works: Awaitable[Any]) -> list[Any]:
        """Run all concurrently; return each outcome, refusals too."""
        return self.do(_all(works))

    def start(self, name: str) -> Process:
        process = Process(name, self.url, self.clock)
        self.do(process.store.open())
        return process

    def crash(self, place: int) -> None:
        """Replace a process by a new one; nothing is closed."""
        self._dead.append(self.processes[place])
        self.processes[place] = self.start(self.processes[place].name + "'")

    def close(self) -> None:
        for process in [*self.processes, *self._dead]:
            self.do(process.store.close())
        self._loop.close()


async def _all(works: Sequence[Awaitable[Any]]) -> list[Any]:
    outcomes = await asyncio.gather(*works, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, TurnwiseError):
            raise outcome
    return outcomes


class NotClaimed(StoreError):
    """A claim has skipped the chat."""


class StoredLife(Life):
    """A life in a database. Its process `by` acts, and the lease's holder where one is required."""

    def __init__(self, database: Database, chat_id: str, **limits: Any) -> None:
        self.database = database
        super().__init__(Facts(chat_id=chat_id, profile=Life().facts.profile), **limits)
        self.chat_id = chat_id
        self.by = 0

    @property
    def process(self) -> Process:
        return self.database.processes[self.by]

    @property
    def holder(self) -> Process:
        """The process that holds the lease, or else the one that acts."""
        lease = self.facts.lease
        named = [process for process in self.database.processes if lease and process.name == lease.worker]
        return named[0] if named else self.process

    @property
    def store(self) -> Any:
        return self.process.store

    @property
    def now(self) -> datetime:
        return self.database.clock.now()

    @now.setter
    def now(self, _: datetime) -> None:
        """Leave the time as it is: `Life` sets its own."""

    @property
    def messages(self) -> list[Message]:
        return list(self.do(self.store.history(self.chat_id)))

    @messages.setter
    def messages(self, _: list[Message]) -> None:
        """Leave the messages where they are."""

    @property
    def prompt(self) -> list[Message]:
        return list(self.do(self.store.prompt(self.chat_id)))

    def do(self, work: Coroutine[Any, Any, Got]) -> Got:
        return self.database.do(work)

    def wait(self, seconds: float) -> None:
        self.database.clock.advance(seconds)

    def fire(self, trigger: type[Trigger], **arguments: Any) -> Decision:
        process = self.process
        known = {one.name for one in dataclasses.fields(trigger)}
        fired = trigger(**{name: value for name, value in arguments.items() if name in known})
        if isinstance(fired, Held):
            process = self.holder
        process.limits = self.limits
        writer, actor = process.writer, "client"
        if isinstance(fired, Held):
            actor = process.actor if self.facts.lease is None else f"{WORKER}{self.facts.lease.worker}"
        if trigger is t.Create:
            return self._keep(self.do(writer.create(self.chat_id, fired, actor=actor)))
        if trigger is t.Claimed:
            claimed = self.do(writer.claim(fired, actor=process.actor, runs=RUNS, limit=5))
            if not claimed:
                raise NotClaimed(self.chat_id)
            (committed,) = claimed
        else:
            reason = arguments.get("reason")
            change = partial(UnitOfWork.fire, trigger=fired, reason=reason)
            committed = self.do(writer.change(self.chat_id, change, actor=actor))
        return self._keep(committed)

    def _keep(self, committed: Committed) -> Decision:
        self.facts = committed.facts
        self.decisions += committed.decisions
        self.events += committed.events
        return committed.decisions[-1]

    def claim(self) -> Decision:
        return self.fire(t.Claimed, worker=self.process.name)

    def edit(self, message_id: str, text: str = "rather", *, usage: Usage | None = None) -> Decision:
        _, cut = self.do(self.store.cut_at(self.chat_id, message_id))
        edit = EditMessage(parts=text_parts(text), cut=cut, usage=usage)
        return self._keep(self.do(self.process.writer.change(self.chat_id, edit, actor="client")))

    def read(self) -> None:
        """Read the effects of commands."""
        self.facts = self.do(self.store.facts(self.chat_id))

    def rows(self) -> Any:
        return self.do(self.store.raw_rows(self.chat_id))

    def unchanged(self, work: Awaitable[Any]) -> Any:
        """Assert that the call changes nothing; return its outcome, a refusal too."""
        before = self.do(self.store.facts(self.chat_id)), self.do(self.store.head(self.chat_id))
        (outcome,) = self.database.at_once(work)
        assert (self.do(self.store.facts(self.chat_id)), self.do(self.store.head(self.chat_id))) == before
        return outcome

    def delete(self) -> None:
        """Leave no work of this chat for later lives."""
        self.do(self.process.writer.delete(self.chat_id, lambda *_: None, actor="administrator"))


class Walk:
    """Draws the triggers of a life. `met` counts the situations that a test asks for."""

    def __init__(self, life: Life, random: Random, met: Counter[str], tools: Sequence[str] = TOOLS) -> None:
        self.life = life
        self.random = random
        self.met = met
        self.tools = tools
        self.chance_of_calls = 0.8
        self.chance_of_overflow = 0.1
        self.window = WINDOW
        self.texts = ("", "words")
        """The model's texts. A reply without text and calls is no message."""
        self._calls = 0
        life.create()

    @property
    def facts(self) -> Facts:
        return self.life.facts

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def live(self, steps: int, *, meddling: float = 0.25, check: Callable[[], object] = lambda: None) -> None:
        """Fire that many triggers, and check the life after each."""
        for _ in range(steps):
            self.meddle() if self.chance(meddling * (1 + bool(self.facts.open_calls))) else self.go_on()
            check()

    def reach(self, *states: ChatState) -> bool:
        """Continue until the chat is in one of the states; return whether it got there."""
        for _ in range(40):
            if self.facts.state in states:
                return True
            self.go_on()
        return False

    # What comes next

    def go_on(self) -> None:
        """Fire the next trigger of the chat's state."""
        facts, life = self.facts, self.life
        match facts.state:
            case S.pending:
                life.claim()
            case S.streaming:
                self.ask()
            case S.executing_tools:
                self.run_next_call()
            case S.compacting:
                self.compact()
            case S.requires_action:
                self.answer()
            case S.interrupted if not facts.settled:
                self.settle()
            case _:
                self.say("queue")

    def ask(self) -> None:
        """Run an attempt: the model answers, fails, or refuses the prompt."""
        if not self.facts.step.attempt_open:
            self.life.attempt()
        elif self.chance(self.chance_of_overflow):
            self.refuse_prompt()
        elif self.chance(0.1):
            self.life.discard(USAGE)
        else:
            tokens = self.random.choice([None, 10, 10, 10, self.window * 9 // 10])
            calls, text = self.planned(), self.random.choice(self.texts)
            self.life.reply(*calls, tokens=tokens, usage=USAGE, text=text, window=self.window)

    def refuse_prompt(self) -> None:
        """Refuse the prompt; a step that cannot compact fails, as in the engine."""
        if may_make_room(self.facts, self.life.limits):
            self.life.overflow()
        else:
            self.life.held(t.Failed, error=OVERFLOW)

    def run_next_call(self) -> None:
        open_calls = [call for call in self.facts.open_calls if call.is_local]
        if not open_calls:
            self.life.held(t.ToolsFinished)
            return
        call = self.random.choice(open_calls)
        if call.status is CallStatus.planned or (call.crash == "at_least_once" and self.chance(0.2)):
            self.life.start(call.call_id)
        else:
            self.life.finish(call.call_id, fails=self.chance(0.2))

    def compact(self) -> None:
        if not self.facts.step.attempt_open:
            self.life.attempt()
        elif self.chance(0.2):
            self.life.fail_to_compact()
        else:
            self.life.compact(*self.carried())

    def carried(self) -> list[int]:
        """Return the messages that a compaction carries: unanswered ones, and a step with open calls."""
        prompt, facts = self.life.prompt, self.facts
        answered = max((message.position for message in prompt if message.role == "assistant"), default=0)
        open_ones = [message for message in prompt if message.role == "user" and message.position > answered]
        open_ones += [message for message in prompt if message.step == facts.step.number and facts.open_calls]
        return sorted({message.position for message in open_ones})

    def answer(self) -> None:
        helped = [call for call in self.facts.open_calls if call.is_delegated]
        if any(call.is_due(self.life.now) for call in self.facts.open_calls):
            self.life.fire(t.DeadlinePassed)
        elif helped:
            self.life.help(self.random.choice(helped).call_id)
        else:
            self.life.submit(*self.results())

    def results(self) -> tuple[ToolResult, ...]:
        """Return results for the client's open calls."""
        asked = [call for call in self.facts.open_calls if call.is_client]
        return tuple(self.result(call) for call in asked)

    def result(self, call: ToolCall) -> ToolResult:
        if call.approval == "asked":
            return ToolResult(call.call_id, self.random.choice([True, False]))
        output: Any = self.random.choice(["done", {"a": [1, None]}, 0, ""])
        return ToolResult(call.call_id, output, is_error=self.chance(0.3))

    def settle(self) -> None:
        if self.facts.lease is None:
            self.life.claim()
        else:
            step = self.facts.step
            shows = step.attempt_open and step.purpose == "step"
            self.life.settle(self.life.partial(*self.planned(), usage=USAGE) if shows else None)

    def planned(self) -> tuple[ToolCall, ...]:
        """Return calls of drawn kinds."""
        count = self.random.randint(1, 3) if self.tools and self.chance(self.chance_of_calls) else 0
        return tuple(self.call(self.random.choice(self.tools), index) for index in range(count))

    def call(self, kind: str, index: int = 0) -> ToolCall:
        self._calls += 1
        name = f"c{self._calls}"
        match kind:
            case "client" | "deadline":
                return client(name, index, within=3.0 if kind == "deadline" else None)
            case "approval":
                return client(name, index, approval="asked", within=self.random.choice([None, 3.0]))
            case "subagent":
                return delegated(name, index)
        crash = "at_most_once" if kind == "once" else "at_least_once"
        return local(name, index, crash=crash, stop_after=kind == "stop")

    # What comes between

    def meddle(self) -> None:
        """Fire a trigger from outside that is possible now: a client, the clock or a crash."""
        facts = self.facts
        stopped = facts.settled and facts.state in (S.interrupted, S.error)
        rests = facts.settled and facts.state in (S.waiting, S.interrupted, S.error) and not facts.queue
        started = any(call.status is CallStatus.started for call in facts.open_calls)
        timed = facts.state is S.requires_action and any(call.deadline for call in facts.open_calls)
        weights: dict[Callable[[], object], int] = {
            self.send: self.may_send(),
            self.interrupt: facts.state in BUSY,
            self.resume: stopped and (bool(facts.queue) or facts.history.unfinished),
            self.edit: facts.turn.number > 0 and self.chance(0.2),
            self.restart_context: rests and facts.history.foldable > 0,
            self.lose_worker: (facts.lease is not None) * (1 + 2 * started),
            self.fail: facts.lease is not None and self.chance(0.5),
            self.pass_deadlines: 10 * timed,
        }
        (act,) = self.random.choices([*weights, self.go_on], [*weights.values(), 0.01])
        act()

    def may_send(self) -> bool:
        """Return whether the queue has room for a message."""
        return len(self.facts.queue) < self.life.limits.queue_limit

    def send(self) -> None:
        self.say(self.random.choice(["queue", "steer", "interrupt"]))

    def say(self, when_busy: str) -> None:
        self.life.send(f"text {self.facts.serial}", when_busy=when_busy)

    def interrupt(self) -> None:
        self.met["interrupted with open calls"] += bool(self.facts.open_calls)
        self.life.interrupt()

    def resume(self) -> None:
        self.life.fire(t.Resume)

    def edit(self) -> None:
        spoken = [message.id for message in self.life.messages if message.role == "user" and not message.synthetic]
        self.met["edited with open calls"] += bool(self.facts.open_calls)
        self.life.edit(self.random.choice(spoken))

    def restart_context(self) -> None:
        self.life.fire(t.ClearContext if self.chance(0.3) else t.RequestCompaction)

    def lose_worker(self) -> None:
        self.met["lost with started calls"] += any(call.status is CallStatus.started for call in self.facts.calls)
        ends: list[type[Trigger]] = [t.Released, t.LeaseExpired]
        self.life.held(self.random.choice(ends))

    def pass_deadlines(self) -> None:
        self.life.wait(self.random.choice([1, 5]))
        if any(call.is_due(self.life.now) for call in self.facts.calls):
            self.met["timed out"] += 1
            self.life.fire(t.DeadlinePassed)

    def fail(self) -> None:
        self.met["failed with open calls"] += bool(self.facts.open_calls)
        self.life.fail()


@contextmanager
def database_in(url: str) -> Iterator[Database]:
    database = Database(url)
    try:
        yield database
    finally:
        database.close()


class Lives:
    """Many lives in one place: on the table, or in a store of that kind."""

    def __init__(self, place: str, url: str) -> None:
        self.place = place
        self.url = url
        self.met: Counter[str] = Counter()

    def each(
        self,
        live: Callable[[Any], object],
        *,
        kind: type[Walk] = Walk,
        table: int = 0,
        sqlite: int = 0,
        postgres: int = 0,
        tools: Sequence[str] = TOOLS,
        **limits: Any,
    ) -> Counter[str]:
        """Run that many lives; return the situations that occurred. A failure names the seed of its life."""
        lives = seeds({"table": table, "sqlite": sqlite, "postgres": postgres}[self.place])
        if self.place == "table":
            for seed in lives:
                random = Random(seed)  # noqa: S311 - no secret
                with named(seed):
                    live(kind(Life(**drawn_limits(random, limits)), random, self.met, tools))
            return self.met
        with database_in(self.url) as database:
            for seed in lives:
                random = Random(seed)  # noqa: S311 - no secret
                life = StoredLife(database, f"c{seed}", **drawn_limits(random, limits))
                with named(seed):
                    live(kind(life, random, self.met, tools))
                life.delete()
        return self.met


def drawn_limits(random: Random, fixed: dict[str, Any]) -> dict[str, Any]:
    drawn = {
        "max_steps": random.choice([None, None, 3]),
        "promote_after_interrupt": random.choice([False, True]),
        "after_final_step": random.choice(["continue", "rest"]),
        "action_deadline": random.choice([None, 4.0]),
        "queue_limit": 3,
        "max_reentries": 2,
    }
    return drawn | fixed


@contextmanager
def named(seed: int) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the life drawn from the seed {seed}")
        raise


def lives_in(place: str, request: Any) -> Lives:
    """Return lives in a place, with their own database."""
    if place == "postgres":
        return Lives(place, request.getfixturevalue("postgres").new_url("lives"))
    folder: Path = request.getfixturevalue("tmp_path")
    return Lives(place, f"sqlite:///{folder / 'chats.db'}")
