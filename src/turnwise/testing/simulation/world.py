"""The world of a simulation: engines on one database, a clock, and clients, all decided by one seed."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from random import Random
from typing import Annotated, Any

import anyio
from anyio.abc import TaskGroup
from pydantic import Field, SkipValidation

from turnwise.engine.agents.agent import Agent
from turnwise.engine.config.settings import Settings
from turnwise.engine.engine import Engine
from turnwise.engine.tools.declare import Tool, ToolFunction
from turnwise.providers.protocol import Model
from turnwise.states.errors import BrokenInvariant, EngineClosed, StoreError, TurnwiseError
from turnwise.states.names import ChatState
from turnwise.states.values.checked import checked
from turnwise.testing.clock import ManualClock
from turnwise.testing.simulation import actors
from turnwise.testing.simulation.budgets import OWNER
from turnwise.testing.simulation.cast import Agentmaker, ServiceParts, Toolmaker, WorldParts, cast_of, drawn_settings
from turnwise.testing.simulation.clients import REFUSALS, Clients, Deed
from turnwise.testing.simulation.consumer import Consumer
from turnwise.testing.simulation.disk import Disk, SimulatedStore
from turnwise.testing.simulation.faults import Faults
from turnwise.testing.simulation.inspection import Inspection
from turnwise.testing.simulation.order import in_order
from turnwise.testing.simulation.processes import SimulatedProcess
from turnwise.testing.simulation.readers import Subscriber
from turnwise.testing.simulation.witness import Witness

LEASE = 30.0
ROUNDS_TO_REST = 150
"""Rounds in which every chat must come to rest: some 2,600 s, less than the wall clock may have been set back by."""


class World:
    """One run. The same seed makes the same world: its model, tools, clients, interleaving, crashes and clock.

    Args:
        seed: decides everything.
        chats: how many chats live in it.
        rounds: how many actions there are before the faults end and every chat has to come to rest.
        tools: the tools of the agent `default`, or a function of the world's random numbers, clock, outside and
            faults that makes them; by default, and without `agents`, turnwise's own simulated ones.
        agents: the agents, or such a function; by default a simulated one beside `default`. Each that has no model of
            its own is answered for by the simulated one.
        deps: what tools find in `ToolContext.deps`, as an engine is given it.
        model: the model, in the place of the simulated one. It may await only what the world owns.
        settings: the engines' settings.
        faults: what goes wrong without a client.

    Raises:
        InvalidArgument: an argument is not what it may be.
        SettingsError: a tool or an agent is invalid.
    """

    @checked
    def __init__(  # noqa: PLR0913 - all but one are options
        self,
        seed: int,
        *,
        chats: Annotated[int, Field(ge=1, le=1000)] = 2,
        rounds: Annotated[int, Field(ge=1, le=1_000_000)] = 25,
        tools: Annotated[Toolmaker | Sequence[Tool | ToolFunction] | None, SkipValidation] = None,
        agents: Annotated[Agentmaker | Sequence[Agent] | None, SkipValidation] = None,
        deps: Annotated[object, SkipValidation] = None,
        model: Model | None = None,
        settings: Settings | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.seed = seed
        self.random = Random(seed)  # noqa: S311 - of a simulation
        self.clock = ManualClock()
        self._began = self.clock.now()
        self.outside = actors.Outside()
        self.faults = Faults(seed) if faults is None else faults
        self.problems: list[str] = []
        self.trace: list[str] = []
        """What happened, in order: the same for the same seed."""
        self.done: set[str] = set()
        """What a client has done that was neither refused nor lost."""
        self._rounds = rounds
        self._chat_count = chats
        self._parts = WorldParts(self.random, self.clock, self.outside, self.faults)
        self.cast = cast_of(ServiceParts(tools, agents, deps, model), self._parts)
        """Who acts."""
        self.witness = Witness()
        """What the world has met."""
        self._settings = settings or drawn_settings(self._parts, Random(f"{seed}: titles"), LEASE)  # noqa: S311 - as above
        self.faults.draw_for(rounds, self.cast.components(self._settings))
        self._disk: Disk
        self._nodes: list[SimulatedProcess] = []
        self._clients = Clients(self.random, self.outside, agents=self.cast.names, clock=self.clock)
        self._victims = Clients(self.faults.random, actors.Outside(), agents=self.cast.names, clock=self.clock)
        """The clients of the chat whose rows are damaged: their answers are not checked."""
        self._subscribers: list[Subscriber] = []
        self._consumer = Consumer(self.random, self.clock, self.outside)
        self._checked: Counter[str] = Counter()
        self._boots = 0
        self._calm = False

    async def run(self) -> list[str]:
        """Run the world to its end and return the problems found: none, if turnwise keeps its promises."""
        self._disk = Disk()
        try:
            with in_order(self.seed):
                async with anyio.create_task_group() as tasks:
                    await self._boot(tasks)
                    if self._clients.budgets.is_wanted():
                        await self._lasting(self._clients.budgets.limit)
                    for _ in range(self._chat_count):
                        await self._create_chat(tasks)
                    await self._create_victim(tasks)
                    for number in range(self._rounds):
                        await self._turn(tasks)
                        await self._harm(tasks, number)
                    await self._come_to_rest(tasks)
                    await self._let_consumer_see()
                    await self._inspect()
                    self.faults.end.set()
                    tasks.cancel_scope.cancel()
        finally:
            self.faults.end.set()
            self._disk.close()
        return self.problems

    # What happens

    async def _turn(self, tasks: TaskGroup) -> None:
        chance = self.random.random()
        if chance < 0.05:
            await self._end_one(killed=True)
        elif chance < 0.08:
            await self._end_one(killed=False)
        elif chance < 0.15 and len(self._nodes) < 3:
            await self._boot(tasks)
        elif chance < 0.30:
            seconds = self.random.choice([0.1, 1, 1, 5, LEASE / 2, LEASE + 1, 120])
            self._note(f"{seconds:g} s pass")
            self.clock.advance(seconds)
            await self._settle(self.random.randrange(6))
        elif chance < 0.40:
            node = self.random.choice(self._nodes)
            node.store.hint.set()
            tasks.start_soon(self._meet_subagents, node.engine)
        else:
            tasks.start_soon(self._act, self.random.choice(self._clients.chats))
        if not self._nodes:
            await self._boot(tasks)
        await self._settle(self.random.randrange(12))
        self._check_cap()

    def _check_cap(self) -> None:
        cap, at_work = self._settings.max_running_per_owner, self._disk.at_work(OWNER)
        if cap is not None and at_work > cap:
            self.problems.append(f"{at_work} chats of one owner are at work, where {cap} may be")
        self._checked["a cap that is reached"] += at_work == cap

    @property
    def checked(self) -> Counter[str]:
        """How often each check of schedules, budgets, the consumer and caps had something to look at."""
        return self._checked + self._clients.schedules.met + self._clients.budgets.met + self._consumer.met

    async def _harm(self, tasks: TaskGroup, number: int) -> None:
        """Let clients act on the chat whose rows are damaged, damage them, and let the wall clock step."""
        step = self.faults.step_of_the_clock(number)
        if step:
            self._note(f"the clock steps by {step:g} s")
            self.clock.step(step)
        victim = self._victims.chats[0]
        if number in self.faults.damages_at:
            self._note(f"an administrator writes {self.faults.damage(self._disk.writer, victim)}")
        elif self._nodes and self.faults.random.random() < 0.3:
            tasks.start_soon(self._act_on_victim, victim, self._victims.deed())

    async def _act_on_victim(self, victim: str, deed: Deed) -> None:
        if not self._nodes:
            return
        engine = self.faults.random.choice(self._nodes).engine
        with contextlib.suppress(TurnwiseError):
            await deed(engine, victim)

    async def _act(self, chat_id: str) -> None:
        if not self._nodes:
            return
        engine = self.random.choice(self._nodes).engine
        deed = self._clients.deed()
        try:
            await deed(engine, chat_id)
            self.done.add(deed.__name__)
            self._note(f"{deed.__name__} of {self._clients.chats.index(chat_id)}")
        except REFUSALS as refusal:
            self._note(f"{deed.__name__} of {self._clients.chats.index(chat_id)} refused: {type(refusal).__name__}")
        except BrokenInvariant as broken:
            self.problems.append(str(broken))
        except (StoreError, EngineClosed):
            self._note(f"{deed.__name__} of {self._clients.chats.index(chat_id)} lost")

    # Processes and time

    async def _boot(self, tasks: TaskGroup) -> None:
        self._boots += 1
        name = f"n{self._boots}"
        store = SimulatedStore(self._disk, now=self.clock.now, pause=self._pause, faults=self.faults)
        node = SimulatedProcess(
            name,
            store,
            self.cast,
            self._parts,
            settings=self._settings,
            witness=self.witness,
            consumer=self._consumer,
        )
        tasks.start_soon(node.live)
        await node.up.wait()
        self._nodes.append(node)
        self._note(f"{name} is up")

    async def _end_one(self, *, killed: bool) -> None:
        """End a process: let it stop, or kill it."""
        node = self._nodes.pop(self.random.randrange(len(self._nodes)))
        self._note(f"{node.name} is {'killed' if killed else 'stopped'}")
        await node.end(killed=killed)

    async def _meet_subagents(self, engine: Engine) -> None:
        """Let clients act on the subagents, too, that there are by now."""
        with contextlib.suppress(StoreError, EngineClosed):
            for chat in reversed((await engine.list_chats(limit=1000)).items):
                if chat.parent_call is not None and chat.id not in self._clients.chats:
                    self._clients.chats.append(chat.id)

    async def _settle(self, rounds: int) -> None:
        for _ in range(rounds):
            await asyncio.sleep(0)  # as anyio does, which asks what loop it is in: five hundred times a world

    async def _pause(self, _moment: str) -> None:
        if not self._calm:
            await self._settle(self.random.randrange(3))

    def _note(self, what: str) -> None:
        self.trace.append(what)

    # How it ends

    async def _come_to_rest(self, tasks: TaskGroup) -> None:
        """End the faults: with a live worker every chat must come to rest in a bounded number of rounds."""
        self._calm = self.outside.calm = self.faults.over = True
        if not self._nodes:
            await self._boot(tasks)
        engine = self._nodes[0].engine
        await self._lasting(self._clients.budgets.lift)
        for _ in range(ROUNDS_TO_REST):
            await self._settle(60)
            await self._meet_subagents(engine)
            moving = [chat_id for chat_id in self._clients.chats if not await self._rests(engine, chat_id)]
            if not moving:
                await self._let_readers_see()
                return
            self.clock.advance(self.random.choice([1.0, 20.0, LEASE + 1]))
        for chat_id in moving:
            self.problems.append(f"{chat_id} never came to rest: {(await engine.explain(chat_id)).reason}")

    async def _let_readers_see(self) -> None:
        """Let every process read what the others have committed, until no reader waits."""
        for _ in range(ROUNDS_TO_REST):
            if all(reading.over for reading in self._clients.readings):
                return
            for node in self._nodes:
                node.store.hint.set()
            await self._settle(60)

    async def _let_consumer_see(self) -> None:
        """Let the consumer get all events, however far the wall clock was set back while a process delivered."""
        node = self._nodes[0]
        for _ in range(ROUNDS_TO_REST):
            node.store.hint.set()
            await self._settle(60)
            if await self._consumer.has_all(node.engine, node.store, self._clients.chats):
                return
            self.clock.advance(self.random.choice([1.0, 1.0, 20.0, LEASE + 1]))
        self.problems.append("the consumer never caught up")

    async def _rests(self, engine: Engine, chat_id: str) -> bool:
        chat = await engine.get_chat(chat_id)
        if chat.archived:
            await engine.unarchive(chat_id)
        if chat.state is ChatState.requires_action:
            try:
                await self._clients.submit(engine, chat_id)
            except REFUSALS:
                self._note("the last submission came too late")
            return False
        if await self._clients.schedules.run_out(engine, chat_id) and chat.queued < self._settings.queue_limit:
            return False
        return chat.settled and chat.state in (ChatState.waiting, ChatState.interrupted, ChatState.error)

    async def _inspect(self) -> None:
        keep = self._settings.keep_parts
        elapsed = timedelta(days=1) if self.faults.steps else self.clock.now() - self._began
        inspection = Inspection(
            disk=self._disk,
            store=self._nodes[0].store,
            engine=self._nodes[0].engine,
            clients=self._clients,
            subscribers=self._subscribers,
            consumer=self._consumer,
            outside=self.outside,
            victim=self._victims.chats[0],
            pruned=keep is not None and elapsed >= timedelta(seconds=keep),
        )
        self.problems += await inspection.problems()
        self.problems += [problem for chat, problem in self.witness.started_twice() if chat != self._victims.chats[0]]
        self.problems += self.witness.hopeless() if self.cast.is_own else ()

    async def _create_victim(self, tasks: TaskGroup) -> None:
        victim = await self._created(self.faults.random)
        self._victims.chats.append(victim)
        tasks.start_soon(self._act_on_victim, victim, self._victims.send)  # so that there is something to damage

    async def _create_chat(self, tasks: TaskGroup) -> None:
        chat_id = await self._created(self.random, OWNER)
        if self._clients.budgets.is_wanted():
            await self._lasting(partial(self._clients.budgets.limit, chat_id=chat_id))
        self._clients.chats.append(chat_id)
        subscriber = Subscriber(chat_id, self.random)
        self._subscribers.append(subscriber)
        tasks.start_soon(self._follow_everywhere, subscriber)

    async def _created(self, random: Random, owner: str | None = None) -> str:
        """Create a chat on any process, and try again if that fails; return the chat's id."""
        options: dict[str, Any] = {
            "client_tools": self.cast.client_tools,
            "agent": self.cast.agent_of_new_chat(random),
            "owner": owner,
        }
        chat = await self._lasting(lambda engine: engine.create_chat(**options), random)
        return str(chat.id)

    async def _lasting(self, work: Callable[[Engine], Awaitable[Any]], random: Random | None = None) -> Any:
        """Do something on any process, and again until the store takes it."""
        while True:
            with contextlib.suppress(TurnwiseError):
                return await work((random or self.random).choice(self._nodes).engine)

    async def _follow_everywhere(self, subscriber: Subscriber) -> None:
        """Follow a chat on one process after the other; the end of a process ends the visit."""
        while True:
            if self._nodes:
                node = self.random.choice(self._nodes)
                if not await node.show(subscriber):
                    self._note(f"a subscriber loses {node.name}")
            await self._settle(5)
