"""Makes what Python and turnwise draw for themselves the same in every run of a seed: the order of sets, and names."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Any

import anyio

from turnwise.engine import chat_ids, engine

_serials: dict[int, int] = {}
"""Serial numbers of cancel scopes, which have no room for one, by their addresses."""


def overridden() -> list[tuple[Any, str]]:
    """Return what is replaced while a world lives: of each its owner, and its name there. Ask inside an event loop."""
    return [(engine, "worker_name"), (chat_ids, "new_chat_id"), (type(anyio.CancelScope()), "__init__")]


@contextmanager
def in_order(seed: int) -> Iterator[None]:
    """Draw the names of chats and workers from a seed, and count tasks and cancel scopes.

    A cancel scope keeps its tasks, and the scopes inside it, in sets. These are iterated by hash, which is otherwise an
    address. Statements order chats by their names, and leases by the names of workers. Where a worker begins to sweep
    depends on its name, too, which is otherwise that of its process.
    """
    names, serial = Random(f"{seed}: names"), count(1)  # noqa: S311 - of a simulation

    class Ordered(asyncio.Task[Any]):
        def __init__(self, coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **options: Any) -> None:
            self._serial = next(serial)
            made: Any = coroutine  # what a task takes differs between the versions of Python
            super().__init__(made, **options)

        def __hash__(self) -> int:
            return self._serial

    namer: Any = engine  # the module; that it names workers is its own affair
    scopes: Any = type(anyio.CancelScope())  # those of asyncio
    make = scopes.__init__

    def made(scope: Any, *arguments: Any, **options: Any) -> None:
        _serials[id(scope)] = next(serial)
        make(scope, *arguments, **options)

    loop = asyncio.get_running_loop()
    factory, before = loop.get_task_factory(), [(owner, name, getattr(owner, name)) for owner, name in overridden()]
    loop.set_task_factory(lambda loop, coroutine, **options: Ordered(coroutine, loop=loop, **options))
    chat_ids.new_chat_id = lambda: f"c{names.getrandbits(100):025x}"
    namer.worker_name = lambda: f"simulation:1:0:{names.getrandbits(32):08x}"
    scopes.__init__, scopes.__hash__ = made, _hash_of  # the hash stays as it is: a scope may outlive the block
    try:
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)
        loop.set_task_factory(factory)


def _hash_of(scope: object) -> int:
    return _serials.get(id(scope)) or object.__hash__(scope)
