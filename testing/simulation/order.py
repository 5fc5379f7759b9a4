"""Makes the order in which tasks are cancelled the same in every run of a seed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any


@contextmanager
def in_order() -> Iterator[None]:
    """Give every task that is started inside a serial number as its hash.

    A cancel scope keeps its tasks in a set, which is iterated by hash, and a task's hash is otherwise its address.
    """
    serial = count()

    class Ordered(asyncio.Task[Any]):
        def __init__(self, coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **options: Any) -> None:
            self._serial = next(serial)
            super().__init__(coroutine, **options)

        def __hash__(self) -> int:
            return self._serial

    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    loop.set_task_factory(lambda loop, coroutine, **options: Ordered(coroutine, loop=loop, **options))
    try:
        yield
    finally:
        loop.set_task_factory(before)
