"""Errands: tasks that a callback of the event loop wants started. anyio itself starts none outside a task."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
from anyio.abc import TaskGroup


class Errands:
    """Starts tasks for callbacks."""

    def __init__(self) -> None:
        self._wanted: deque[Callable[[], Coroutine[Any, Any, None]]] = deque()
        self._bell = anyio.Event()

    def start_soon(self, errand: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have `errand` started in a task of its own. Call it from the event loop."""
        self._wanted.append(errand)
        self._bell.set()

    async def run(self, tasks: TaskGroup) -> None:
        """Start in `tasks` what is wanted, for ever."""
        while True:
            await self._bell.wait()
            self._bell = anyio.Event()
            while self._wanted:
                tasks.start_soon(self._wanted.popleft())
