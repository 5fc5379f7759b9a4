"""The faults of a simulation that no client causes. A fault may harm its own chat, but never another.

In each world one component of the embedding service raises what no component should raise, some code ignores its
cancellation, reads fail in the middle, and the rows of one chat are damaged.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from random import Random
from typing import Final

import anyio
import anyio.lowlevel

from turnwise.engine.observers.observer import Ended, ModelCall, Observer, ToolRun
from turnwise.engine.prompt.hooks import LoopState
from turnwise.states.decide import Decision
from turnwise.states.messages import Message


class Unspeakable(Exception):
    """An exception whose text cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("there are no words for it")

    __repr__ = __str__


Raised = Callable[[], BaseException]

RAISED: Final[dict[str, Raised]] = {
    "a cancellation of its own": lambda: asyncio.CancelledError("not yours"),
    "an exit": lambda: SystemExit(2),
    "a key stroke": KeyboardInterrupt,
    "the end of a generator": GeneratorExit,
    "a group": lambda: BaseExceptionGroup("several", [SystemExit(1), ValueError("one of them")]),
    "the unspeakable": Unspeakable,
    "no memory": MemoryError,
    "too deep": RecursionError,
    "an end of iteration": StopAsyncIteration,
    "an error of the service": lambda: ValueError("the service failed"),
}
"""What a component may raise, by name."""

COMPONENTS: Final = ("model", "summary", "tool", "reconcile", "reminder", "prepare_messages", "strategy", "observer")
"""Where the code of an embedding service runs."""

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

_NAMES: Final = {"chat_id", "id", "number", "name", "checksum"}
"""Columns that say whose a row is: another value there is another chat's row, or none."""


class Mischief:
    """The faults of one world, drawn with random numbers of their own: those of the world stay the same.

    Args:
        seed: decides everything.
        often: by how much faults are more frequent than by default.
    """

    def __init__(self, seed: int, *, often: float = 1) -> None:
        self._often = often
        self.over = False
        """Whether no further fault is to happen; code that ignores its cancellation still does."""
        self.stepped = False
        """Whether the wall clock has stepped: how old something is cannot be computed any more."""
        self.end = anyio.Event()
        """Set when the world ends: code that ignores its cancellation ends then."""
        self.random = Random(f"{seed}: mischief")  # noqa: S311 - the dice of a simulation
        self.component = self.random.choice(COMPONENTS)
        """The one that raises."""
        self.raises = self.random.choice(sorted(RAISED))
        """What it raises."""
        self._deaf = self.random.choice(["model", "tool", "summary", None])
        self.damages_at = frozenset(self.random.randrange(2, 20) for _ in range(round(3 * often)))
        """The rounds in which somebody damages a chat."""

    def _happens(self, chance: float) -> bool:
        return self.random.random() < chance * self._often

    def strike(self, component: str) -> None:
        """Raise this world's exception, sometimes, if this is its component."""
        if component == self.component and not self.over and self._happens(0.12):
            raised = RAISED[self.raises]()
            raise raised

    async def act(self, component: str) -> None:
        """Do what code of the service may do: raise, cancel an inner task of its own, or ignore its cancellation."""
        self.strike(component)
        if component == self.component and not self.over and self._happens(0.03):
            inner = asyncio.ensure_future(asyncio.sleep(0))
            inner.cancel()
            await inner
        if component == self._deaf and self._happens(0.1):
            await self._listen_to_nobody()

    async def _listen_to_nobody(self) -> None:
        with suppress(asyncio.CancelledError):
            await self.end.wait()
        with anyio.CancelScope(shield=True):  # else anyio cancels it again in every round of the loop
            while not self.end.is_set():
                with suppress(asyncio.CancelledError):
                    await self.end.wait()

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

    def step_of_the_clock(self) -> float:
        """Return by how many seconds the wall clock steps now, forward or back: mostly 0."""
        return self.random.choice([-3600.0, -40.0, 40.0, 3600.0]) if self._happens(0.06) else 0.0

    def damage(self, connection: sqlite3.Connection, chat_id: str) -> str:
        """Write something into one column of the rows of a chat; return what and where."""
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
        places: list[tuple[str, str, str]] = []
        for (table,) in tables.fetchall():
            columns = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})").fetchall()]
            key = "id" if table == "chats" else "chat_id"
            if key in columns:
                places += [(table, column, key) for column in columns if column not in _NAMES]
        table, column, key = self.random.choice(places)
        value = self.random.choice(DAMAGES)
        connection.execute(f"UPDATE OR IGNORE {table} SET {column} = ? WHERE {key} = ?", (value, chat_id))  # noqa: S608
        return f"{table}.{column} = {value!r}"

    def break_a_read(self, connection: sqlite3.Connection) -> None:
        """Let a connection fail, sometimes, at one of the next rows that it reads."""
        if not self.over and self._happens(0.05):
            rows = count()
            last = self.random.choice([0, 1, 2, 5, 15])

            def row(_cursor: sqlite3.Cursor, values: tuple[object, ...]) -> tuple[object, ...]:
                if next(rows) == last:
                    raise sqlite3.OperationalError("disk I/O error")
                return values

            connection.row_factory = row


class _Watcher(Observer):
    def __init__(self, mischief: Mischief) -> None:
        self._mischief = mischief

    def transitioned(self, decision: Decision) -> None:  # noqa: ARG002 - an observer's
        self._mischief.strike("observer")

    def running(self, chats: int) -> None:  # noqa: ARG002 - as above
        self._mischief.strike("observer")

    def model_called(self, call: ModelCall) -> Ended | None:  # noqa: ARG002 - as above
        self._mischief.strike("observer")
        return lambda: self._mischief.strike("observer")

    def tool_started(self, run: ToolRun) -> Ended | None:  # noqa: ARG002 - as above
        self._mischief.strike("observer")
        return lambda: self._mischief.strike("observer")
