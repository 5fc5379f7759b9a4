"""Torture: hundreds of chats, and workers that die, freeze, resume and are replaced, as one seed decides.

Processes run in real time, so one seed repeats the same actions at slightly different moments. The amount of work does
not depend on the machine's speed.
"""

import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

import anyio
from anyio.abc import TaskGroup

from acceptance.crew import Crew
from acceptance.problems import problems_of_all
from acceptance.worker_process import ASK, ORDER, Doom, Place, answers
from turnwise import Chat, Engine
from turnwise.providers.demo import DemoModel
from turnwise.states.errors import ConflictingReplay, IllegalTransition, QueueFull, StoreError, ToolResultMismatch

_T = TypeVar("_T")
Mischief = Callable[[], Awaitable[None]]
Deed = Callable[[Crew, Engine], Coroutine[Any, Any, None]]
_REFUSALS = (IllegalTransition, ConflictingReplay, ToolResultMismatch, QueueFull)
_PLACES = (
    "before a commit",
    "after a commit",
    "in a compaction",
    "in pay",
    "in note",
    "in book",
    "asking what became of a call",
)
_ERRANDS = (
    *("pay", "note", "book", "ask", "pay note", "pay ask", "book note ask", "note note pay", ""),
    *("delegate", "delegate note", "delegate ask", "start", "start delegate"),
)
_MANNERS = ("", "", "full", "flaky", "slow", "full flaky")
OWNER: Final = "anna"
_MOST_TOKENS: Final = 10_000
"""The tokens that a call reserves."""
_ROUNDS: Final = 4
"""The least number of rounds through the whole program."""
PATIENCE: Final = 150.0
"""After the torture, seconds without a change of any chat that still moves; a slow machine changes one now and then."""
_CALM_LEASE: Final = 10.0
"""The lease of the last workers in seconds: a busy machine renews a shorter one late, and a step begins again."""


@dataclass
class Torture:
    """One run: its faults, its chats, and the outcome."""

    place: Place
    seed: int
    seconds: float
    """The least duration; a run lasts longer while work is left."""
    chats: int
    workers: int = 4
    faults: Sequence[Mischief] = ()
    """The faults of the database itself."""
    store_may_fail: bool = False
    """Whether clients must expect a `StoreError` while the database fails."""
    deeds: Counter[str] = field(default_factory=Counter)
    """How often each action ran."""
    problems: list[str] = field(default_factory=list)
    scheduled: dict[str, str] = field(default_factory=dict)
    """The chat of each accepted scheduled message, by id."""
    _accepted: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)  # noqa: S311 - the dice of the torturer
        self._deck: list[Deed] = []
        self._dealt = 0
        self._harming = anyio.Lock()

    async def run(self) -> list[str]:
        """Run the torture, wait until the chats rest, and return every broken promise."""
        settings = self.place.settings(run_worker=False)
        async with Engine(self.place.url, model=DemoModel(), settings=settings) as client:
            await client.set_budget(owner=OWNER, tokens=10**9)
            with Crew.on(self.place) as crew:
                await self._torment(crew, client)
                await self._calm_down(crew, client)
            await self._check_what_is_shared(client)
        return [*self.problems, *await problems_of_all(self.place, self._accepted)]

    async def _torment(self, crew: Crew, client: Engine) -> None:
        async with anyio.create_task_group() as tasks:
            start, count = anyio.current_time(), 0
            while (done := self._done(anyio.current_time() - start)) < 1:
                self.deeds["died of their doom"] += crew.bury()
                while len(crew.workers) < self.workers:
                    crew.hire(self._doom())
                while count < self.chats * min(done, 1):
                    count += 1
                    tasks.start_soon(self._begin, client)
                await anyio.sleep(self._random.uniform(0.01, 0.15))
                self._strike(crew, client, tasks)
        if not self.deeds["died of their doom"]:
            await self._see_doom(crew, client)

    async def _see_doom(self, crew: Crew, client: Engine) -> None:
        """Wait until a worker reaches its doom; on a busy machine all others may have been killed before theirs."""
        for worker in [*crew.workers]:
            crew.kill(worker)
        for _ in range(self.workers):
            crew.hire(Doom("before a commit"))
        await self._begin(client)
        while not self.deeds["died of their doom"]:
            await anyio.sleep(0.05)
            self.deeds["died of their doom"] += crew.bury()

    def _done(self, seconds: float) -> float:
        """Return the completed share of the torture after some seconds."""
        dealt = self._dealt / (_ROUNDS * sum(times for _, times in self._program()))
        return min(dealt, seconds / self.seconds) if self.seconds else dealt

    def _strike(self, crew: Crew, client: Engine, tasks: TaskGroup) -> None:
        if not self._deck:
            self._deck = [deed for deed, times in self._program() for _ in range(times)]
            self._random.shuffle(self._deck)
        deed = self._deck.pop()
        self._dealt += 1
        self.deeds[deed.__name__.strip("_")] += 1
        tasks.start_soon(deed, crew, client)

    def _program(self) -> Sequence[tuple[Deed, int]]:
        """Return each action with its weight until every action has run once."""
        return (
            (self._kill, 4),
            (self._freeze, 2),
            (self._replace, 1),
            (self._submit, 4),
            (self._die_submitting, 1),
            (self._interrupt, 1),
            (self._say, 5),
            (self._schedule, 2),
            (self._raise_budget, 1),
            *([(self._harm, 1)] if self.faults else []),
        )

    # What is done to workers

    async def _kill(self, crew: Crew, _client: Engine) -> None:
        crew.kill(self._random.choice(crew.workers))

    async def _freeze(self, crew: Crew, _client: Engine) -> None:
        """Freeze a worker until others have taken its chats, then resume it: it still believes in its leases."""
        worker = self._random.choice(crew.workers)
        crew.freeze(worker)
        with anyio.CancelScope(shield=True):
            await anyio.sleep(self.place.lease * self._random.uniform(0.1, 2))
            crew.thaw(worker)

    async def _replace(self, crew: Crew, _client: Engine) -> None:
        worker = self._random.choice(crew.workers)
        crew.hire(self._doom())
        crew.thaw(worker)
        await crew.dismiss(worker)

    async def _harm(self, _crew: Crew, _client: Engine) -> None:
        async with self._harming:  # faults of the server must not overlap its start
            await self._random.choice(self.faults)()

    def _doom(self) -> Doom:
        place = self._random.choice(("nowhere", *_PLACES))
        return Doom(place, self._random.randint(1, 40) if place.endswith("commit") else 1)

    # What clients do

    async def _begin(self, client: Engine) -> None:
        chat = await self._persist(lambda: client.create_chat(client_tools=[ASK], owner=OWNER))
        self._accepted[chat.id] = []
        await self._send(client, chat.id)

    async def _say(self, _crew: Crew, client: Engine) -> None:
        for chat_id in self._random.sample([*self._accepted], min(5, len(self._accepted))):
            await self._send(client, chat_id)

    async def _schedule(self, _crew: Crew, client: Engine) -> None:
        """Schedule messages for now or for soon."""
        for chat_id in self._random.sample([*self._accepted], min(2, len(self._accepted))):
            at = datetime.now(UTC) + timedelta(seconds=self._random.choice((0, 0.5, 2)))
            text, when_busy = f"{ORDER} {self._random.choice(_ERRANDS)}", self._random.choice(("queue", "steer"))
            name = f"s{self._random.getrandbits(64)}"
            try:
                await self._persist(partial(client.schedule, chat_id, text, at=at, when_busy=when_busy, id=name))
            except _REFUSALS:
                continue
            self.scheduled[name] = chat_id

    async def _raise_budget(self, _crew: Crew, client: Engine) -> None:
        """Change the shared budget to another limit that no chat reaches."""
        tokens = 10**9 + self._random.randrange(10**6)
        await self._persist(lambda: client.set_budget(owner=OWNER, tokens=tokens))

    async def _send(self, client: Engine, chat_id: str) -> None:
        text = f"{ORDER} {self._random.choice(_ERRANDS)} {self._random.choice(_MANNERS)}"
        client_id = f"m{self._random.getrandbits(64)}"
        when_busy = self._random.choice(("queue", "steer"))
        try:
            receipt = await self._persist(
                partial(client.send_message, chat_id, text, when_busy=when_busy, client_id=client_id)
            )
        except _REFUSALS:
            return
        self._accepted[chat_id].append(receipt.message_id)

    async def _submit(self, _crew: Crew, client: Engine) -> None:
        for chat in await self._asking(client):
            await self._answer(client, chat)

    async def _die_submitting(self, crew: Crew, client: Engine) -> None:
        for chat in (await self._asking(client))[:1]:
            crew.submit(chat.id, Doom(self._random.choice(_PLACES[:2]), self._random.randint(1, 2)))

    async def _interrupt(self, _crew: Crew, client: Engine) -> None:
        if self._accepted:
            chat_id = self._random.choice([*self._accepted])
            try:
                await self._persist(lambda: client.interrupt(chat_id))
            except _REFUSALS:
                self.deeds["interrupts refused"] += 1

    async def _asking(self, client: Engine) -> Sequence[Chat]:
        return (await self._persist(lambda: client.list_chats(awaiting="client", limit=5))).items

    async def _answer(self, client: Engine, chat: Chat) -> None:
        """Submit the answers twice; the second time changes nothing and returns the same receipt."""
        results = answers(chat.open_calls)
        if not results:
            return  # it waits for subagents
        try:
            first = await self._persist(lambda: client.submit_tool_results(chat.id, results))
            again = await self._persist(lambda: client.submit_tool_results(chat.id, results))
        except _REFUSALS:
            self.deeds["submissions refused"] += 1
            return
        if (again.receipt_id, again.replayed) != (first.receipt_id, True):
            self.problems.append(f"{chat.id}: the same results got {first}, then {again}")

    async def _persist(self, deed: Callable[[], Awaitable[_T]]) -> _T:
        """Call, and retry while the database may be out of reach."""
        while True:
            try:
                return await deed()
            except StoreError:
                if not self.store_may_fail:
                    raise
                self.deeds["store errors"] += 1
                await anyio.sleep(0.1)

    # How it ends

    async def _calm_down(self, crew: Crew, client: Engine) -> None:
        """Wait until every chat rests, with live workers and clients that answer, or until no chat changes."""
        for worker in [*crew.workers]:
            crew.thaw(worker)
            crew.kill(worker)
        crew.place = replace(crew.place, lease=_CALM_LEASE)
        for _ in range(self.workers):
            crew.hire()
        moving: list[Chat] = []
        with anyio.move_on_after(PATIENCE) as limit:
            while True:
                before = {chat.id: chat.version for chat in moving}
                moving = [chat async for chat in self._everyone(client) if not await self._is_over(client, chat)]
                if not moving:
                    break
                if {chat.id: chat.version for chat in moving} != before:
                    limit.deadline = anyio.current_time() + PATIENCE
                await self._help_all(client, moving)
                await anyio.sleep(0.1)
        for chat in moving:
            self.problems.append(f"{chat.id} does not come to rest: {(await client.explain(chat.id)).reason}")
        for worker in [*crew.workers]:
            code = await crew.dismiss(worker)
            if code not in (0, -signal.SIGTERM):  # SIGTERM, if it had hardly started
                self.problems.append(f"a worker that was asked to stop ended with {code}")

    async def _check_what_is_shared(self, client: Engine) -> None:
        """Check that each scheduled message was sent once, and that the budget equals the sum of all calls."""
        self.deeds["messages of the clock"] = len(self.scheduled)
        for name, chat_id in self.scheduled.items():
            sent = [one for one in await client.messages(chat_id) if one.wakeup and one.wakeup.schedule == name]
            if len(sent) != 1:
                self.problems.append(f"{chat_id}: the scheduled message {name} was sent {len(sent)} times")
        (budget,) = await client.budgets(owner=OWNER)
        calls = [entry.usage async for chat in self._everyone(client) for entry in await client.usage(chat.id)]
        known = sum((one.input_tokens or 0) + (one.output_tokens or 0) for one in calls)
        lost = sum(one.partial for one in calls)
        self.deeds["calls that the budget paid"] = len(calls)
        if budget.reserved.tokens or not known <= budget.spent.tokens <= known + lost * _MOST_TOKENS:
            self.problems.append(f"{budget} after calls of {known} tokens, {lost} of them lost")

    async def _everyone(self, client: Engine) -> AsyncIterator[Chat]:
        """Yield every chat; subagents start and end while the others come to rest."""
        after: str | None = None
        self.deeds["help"] = 0
        while True:
            page = await self._persist(lambda: client.list_chats(limit=200, after=after))  # noqa: B023
            for chat in page.items:
                self.deeds["help"] += chat.parent_call is not None
                yield chat
            if page.next is None:
                return
            after = page.next

    async def _is_over(self, client: Engine, chat: Chat) -> bool:
        return _rests(chat) and (
            chat.parent_call is not None or not await self._persist(partial(client.schedules, chat.id))
        )

    async def _help_all(self, client: Engine, chats: Sequence[Chat]) -> None:
        for chat in chats:
            if chat.parent_call is None:
                await self._help(client, chat)

    async def _help(self, client: Engine, chat: Chat) -> None:
        if chat.state == "requires_action":
            await self._answer(client, chat)
        elif chat.state == "error" and "lost with the workers" in str(chat.last_error):
            self.deeds["steps given up"] += 1  # as it must be, after so many workers that died of it or on the way
        elif chat.state == "error":
            self.problems.append(f"{chat.id} is in error: {chat.last_error}")
        if chat.state == "error" or (chat.state == "interrupted" and chat.settled):
            try:
                await client.resume(chat.id)
            except _REFUSALS:
                await self._send(client, chat.id)


def _rests(chat: Chat) -> bool:
    """Return whether a chat waits for its next message, or is a stopped or failed subagent."""
    if chat.parent_call is None:
        return chat.state == "waiting"
    return chat.settled and chat.state in ("waiting", "interrupted", "error")
