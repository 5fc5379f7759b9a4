"""The faults of a simulation that no client causes. A fault may harm its own chat, but never another.

In each world the rows of one chat are damaged, and two of its components raise what no component should raise: one that
every turn calls, and one that few do. Some code ignores its cancellation, statements fail half-way, replies hold what
cannot be stored, and the wall clock steps: in a world of twenty rounds at least once each way, else by chance.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Final, TypeVar

import anyio
import anyio.lowlevel

from turnwise.engine.observers.observer import Ended, ModelCall, Observer, ToolRun
from turnwise.engine.prompt.hooks import LoopState
from turnwise.providers.protocol import ModelPart
from turnwise.states.decide import Decision
from turnwise.states.messages import Message

_T = TypeVar("_T")


class Unspeakable(Exception):
    """An exception whose text cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("there are no words for it")

    __repr__ = __str__


class Abort(BaseException):
    """An exception that no `except Exception` catches, as a library may raise to end a program."""


RAISED: Final[dict[str, Callable[[str], BaseException]]] = {
    "a cancellation of its own": asyncio.CancelledError,
    "an exit": SystemExit,
    "an abort": Abort,
    "the end of a generator": GeneratorExit,
    "a group": lambda text: BaseExceptionGroup(text, [SystemExit(1), ValueError("one of them")]),
    "the unspeakable": Unspeakable,
    "no memory": MemoryError,
    "too deep": RecursionError,
    "an end of iteration": StopAsyncIteration,
    "an error of the service": ValueError,
}
"""What a component may raise, by name."""

INNER: Final = "an inner task that is cancelled"
"""What a component may do besides."""

EVERY_TURN: Final = ("model", "reminder", "prepare_messages", "observer", "store")
SOME_TURNS: Final = ("tool", "reconcile", "summary", "strategy")
"""Where the code of an embedding service runs."""

CONTAINED: Final = ("tool", "reconcile", "observer")
"""Components whose failure fails no turn: the model sees a tool's, and the others stay hidden."""

DAMAGES: Final[tuple[object, ...]] = (
    "not JSON",
    "{}",
    "[]",
    "null",
    b"\x00\xff",
    -1,
    2**62,
    "",
    '{"type": "text"}',
    None,
)
"""The values that damage may write into a column."""

UNSTORABLE: Final = (
    ModelPart("tool_call", id="odd", name="look", arguments={"what": float("nan")}),
    ModelPart("tool_call", id="odd", name="look", arguments={}, metadata={"score": float("inf")}),
    ModelPart("tool_call", id=7, name="look", arguments={}),  # type: ignore[arg-type]
    ModelPart("text_delta", text=7),  # type: ignore[arg-type]
)
"""Parts of a reply that no store takes, or no message."""

STEPS: Final[dict[str, tuple[float, ...]]] = {"forward": (40.0, 3600.0), "back": (-40.0, -3600.0)}
"""By how many seconds the wall clock steps: longer than a lease, and longer than anything waits."""
ENOUGH: Final = 20
"""Rounds of a world in which the wall clock steps both ways."""

_NAMES: Final = {"chat", "chat_id", "id", "number", "name", "checksum"}
"""Columns that say whose a row is: another value there is another chat's row, or none."""


def blame(component: str) -> str:
    """Return the text of what a component raises."""
    return f"raised by the {component}"


class Faults:
    """The faults of one world, drawn with random numbers of their own: those of the world stay the same.

    Args:
        seed: decides everything.
        often: by how much faults are more frequent than by default; with 0 there are none.
        components: those that raise; the seed chooses two by default.
    """

    def __init__(self, seed: int, *, often: float = 1, components: Sequence[str] | None = None) -> None:
        self._often = often
        self._components = components
        self.over = False
        """Whether no further fault is to happen. Code that ignores its cancellation still does, and a component that
        was not called before raises once."""
        self.end = anyio.Event()
        """Set when the world ends: code that ignores its cancellation ends then."""
        self.random = Random(f"{seed}: mischief")  # noqa: S311 - of a simulation
        self.raises = self.random.choice(sorted(RAISED))
        """What components raise in this world."""
        self.damages_at: frozenset[int] = frozenset()
        """The rounds in which a chat is damaged."""
        self.raised: set[tuple[str, str]] = set()
        """Which component has raised what, by their names."""
        self.damaged: list[str] = []
        """What was written into which column of the damaged chat."""
        self.steps: list[float] = []
        """By how many seconds the wall clock has stepped."""
        self.last_read_error: Exception | None = None
        """What a read has raised, with its traceback: error reporters may keep exceptions as long as they like."""
        self._calls: Counter[str] = Counter()
        self._raises_at: dict[str, int] = {}
        """The components that raise, and at which of its calls each does so for sure, even when faults are over."""
        self._steps_at: dict[int, float] = {}
        self._deaf = self.random.choice(["model", "tool", "summary", None])

    def draw_for(self, rounds: int, components: Sequence[str]) -> None:
        """Draw what goes wrong in a world of some rounds that has these components."""
        if not self._often:
            return
        random = self.random
        drawn = [random.choice([name for name in each if name in components]) for each in (EVERY_TURN, SOME_TURNS)]
        chosen = drawn if self._components is None else self._components
        self._raises_at = {name: random.randint(1, 5) if name in EVERY_TURN else 1 for name in chosen}
        self.damages_at = frozenset(random.randrange(max(1, rounds - 1)) for _ in range(round(3 * self._often)))
        ways = sorted(STEPS)
        self._steps_at = {at: random.choice(STEPS[random.choice(ways)]) for at in range(rounds) if self._happens(0.06)}
        if rounds >= ENOUGH:
            moments = random.sample(range(rounds), len(ways))
            self._steps_at |= {at: random.choice(STEPS[way]) for at, way in zip(moments, ways, strict=True)}

    def _happens(self, chance: float) -> bool:
        return self._often > 0 and self.random.random() < chance * self._often

    def _is_bad(self, component: str) -> bool:
        return component in self._raises_at

    def strike(self, component: str) -> None:
        """Raise this world's exception if this component does so: in one of its first calls, and sometimes later."""
        if not self._is_bad(component):
            return
        self._calls[component] += 1
        if self._calls[component] == self._raises_at[component] or (not self.over and self._happens(0.12)):
            self.raised.add((component, self.raises))
            raised = RAISED[self.raises](blame(component))
            raise raised

    async def act(self, component: str) -> None:
        """Do what code of the service may do: raise, cancel an inner task of its own, or ignore its cancellation."""
        self.strike(component)
        if self._is_bad(component) and not self.over and self._happens(0.03):
            self.raised.add((component, INNER))
            inner = asyncio.ensure_future(asyncio.sleep(0))
            inner.cancel()
            await inner
        if component == self._deaf and self._happens(0.1):
            await self._ignore_cancellation()

    async def _ignore_cancellation(self) -> None:
        with suppress(asyncio.CancelledError):
            await self.end.wait()
        with anyio.CancelScope(shield=True):  # else anyio cancels it again in every round of the loop
            while not self.end.is_set():
                with suppress(asyncio.CancelledError):
                    await self.end.wait()

    def spoil(self, parts: list[ModelPart]) -> list[ModelPart]:
        """Return the parts of a reply, sometimes with one before the last that cannot be stored."""
        if self.over or not self._happens(0.03):
            return parts
        return [*parts[:-1], self.random.choice(UNSTORABLE), parts[-1]]

    # The hooks of an engine

    def remind(self, _state: LoopState) -> Sequence[str]:
        """Return no reminder, or raise."""
        self.strike("reminder")
        return ()

    async def prepare_messages(self, messages: list[Message]) -> list[Message]:
        """Return the messages as they are, or raise."""
        await self.act("prepare_messages")
        return messages

    @property
    def observer(self) -> Observer:
        """An observer that raises sometimes."""
        return _Watcher(self)

    # The machine

    def step_of_the_clock(self, number: int) -> float:
        """Return by how many seconds the wall clock steps in a round, forward or back: mostly 0."""
        step = self._steps_at.get(number, 0.0)
        self.steps += [step] if step else []
        return step

    def damage(self, connection: sqlite3.Connection, chat_id: str) -> str:
        """Write something into one column of the rows of a chat, where it changes one; return what and where."""
        places = [
            (table, column, of_chat)
            for table, of_chat, columns in rows_of_chats(connection)
            for column in columns
            if column not in _NAMES
        ]
        changed = 0
        while not changed:
            table, column, of_chat = self.random.choice(places)
            value = self.random.choice(DAMAGES)
            sql = f"UPDATE OR IGNORE {table} SET {column} = ? WHERE {of_chat} AND {column} IS NOT ?"  # noqa: S608 - names of our own
            changed = connection.execute(sql, (value, chat_id, value)).rowcount
        self.damaged.append(f"{table}.{column} = {value!r}")
        return self.damaged[-1]

    def failing(self, work: Callable[[sqlite3.Connection], _T], chance: float) -> Callable[[sqlite3.Connection], _T]:
        """Return the work, during which SQLite sometimes gives up in the middle of a statement."""
        if self.over or not self._happens(chance):
            return work
        gives_up, after = iter([True]), self.random.choice([1, 10, 50, 200, 1000])

        def done_in_part(connection: sqlite3.Connection) -> _T:
            connection.set_progress_handler(lambda: next(gives_up, False), after)
            try:
                return work(connection)
            finally:
                connection.set_progress_handler(None, 1)

        return done_in_part


def rows_of_chats(connection: sqlite3.Connection) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each table with rows of chats, the condition for those of the chat with an id, and the columns."""
    tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall()
    for (table,) in tables:
        columns = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})").fetchall()]
        if table == "chats":
            yield table, "id = ?", columns
        elif "chat" in columns:
            yield table, "chat = (SELECT number FROM chats WHERE id = ?)", columns
        elif "chat_id" in columns:
            yield table, "chat_id = ?", columns


class _Watcher(Observer):
    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def transitioned(self, decision: Decision) -> None:  # noqa: ARG002 - an observer's
        self._faults.strike("observer")

    def running(self, chats: int) -> None:  # noqa: ARG002 - as above
        self._faults.strike("observer")

    def model_called(self, call: ModelCall) -> Ended | None:  # noqa: ARG002 - as above
        self._faults.strike("observer")
        return lambda: self._faults.strike("observer")

    def tool_started(self, run: ToolRun) -> Ended | None:  # noqa: ARG002 - as above
        self._faults.strike("observer")
        return lambda: self._faults.strike("observer")
