"""Processes that share a store: tests start, freeze, wake, stop and kill them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import anyio

from acceptance import worker_process
from acceptance.worker_process import Doom, Place

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    ["__main__", "turnwise.cli.worker", "turnwise.persistence.postgres.store", "turnwise.testing.strict"]
)


class Crew:
    """Workers, and clients that die, on one store; all processes end with the crew."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.workers: list[BaseProcess] = []
        self._all: list[BaseProcess] = []

    @classmethod
    @contextlib.contextmanager
    def on(cls, place: Place) -> Iterator[Crew]:
        crew = cls(place)
        place.words.touch()
        try:
            yield crew
        finally:
            for process in crew._all:
                process.kill()
                process.join()

    def hire(self, doom: Doom | None = None) -> BaseProcess:
        worker = self._start(worker_process.work, doom)
        self.workers.append(worker)
        return worker

    async def at_work(self) -> None:
        """Wait until every worker runs and handles SIGTERM."""
        for worker in self.workers:
            while f"worker {worker.pid} runs" not in self.place.words.read_text():  # noqa: ASYNC110 - no event comes from there
                await anyio.sleep(0.01)

    def submit(self, chat_id: str, doom: Doom) -> BaseProcess:
        return self._start(worker_process.submit, doom, chat_id)

    def bury(self) -> int:
        """Forget the dead workers; return how many there were."""
        before = len(self.workers)
        self.workers = [worker for worker in self.workers if worker.is_alive()]
        return before - len(self.workers)

    def kill(self, worker: BaseProcess) -> None:
        self.workers.remove(worker)
        worker.kill()
        worker.join()

    def freeze(self, worker: BaseProcess) -> None:
        """Suspend a worker without notice."""
        _send(worker, signal.SIGSTOP)

    def thaw(self, worker: BaseProcess) -> None:
        _send(worker, signal.SIGCONT)

    async def dismiss(self, worker: BaseProcess) -> int | None:
        """Ask a worker to stop, wait for its end, and return its exit code. A worker that froze is resumed."""
        self.workers.remove(worker)
        _send(worker, signal.SIGTERM)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_awake, worker)
            await self.ended(worker)
            tasks.cancel_scope.cancel()
        return worker.exitcode

    async def _keep_awake(self, worker: BaseProcess) -> None:
        """Resume a worker again and again, since a slow one may reach its freezing point late."""
        while True:
            self.thaw(worker)
            await anyio.sleep(0.05)

    async def ended(self, process: BaseProcess) -> None:
        await anyio.wait_readable(process.sentinel)
        process.join()

    def _start(self, target: Callable[..., None], doom: Doom | None, *args: Any) -> BaseProcess:
        process: Any = _PROCESSES.Process(target=target, args=(self.place, doom or Doom(), *args), daemon=True)
        process.start()
        self._all.append(process)
        return process  # type: ignore[no-any-return]


def _send(process: BaseProcess, sent: signal.Signals) -> None:
    """Send a signal; ignore processes that have ended meanwhile."""
    if process.pid is not None and process.is_alive():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, sent)
