"""Batches are done one after another, and all of them, whoever cancels the task that does them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import anyio
import pytest

from turnwise.persistence.batches import Batches


class Bench:
    """Batches of three that wait at a gate, and what was done."""

    def __init__(self) -> None:
        self.batches = Batches(self.perform, size=3)
        self.gate = anyio.Event()
        self.done: list[list[int]] = []

    async def perform(self, items: Sequence[int]) -> None:
        await self.gate.wait()
        self.done.append([*items])

    def cancel(self) -> None:
        """Cancel the task that does the batches, as an event loop that ends does."""
        (task,) = (task for task in asyncio.all_tasks() if task.get_name() == "turnwise commits")
        task.cancel()


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_items_during_a_batch_join_the_next_batches(bench: Bench) -> None:
    bench.batches.add(0)
    await anyio.wait_all_tasks_blocked()
    for item in range(1, 6):
        bench.batches.add(item)
    bench.gate.set()
    await bench.batches.over()
    assert bench.done == [[0], [1, 2, 3], [4, 5]]
    await bench.batches.over()


async def test_waiting_item_is_withdrawn_once(bench: Bench) -> None:
    bench.batches.add(0)
    await anyio.wait_all_tasks_blocked()
    bench.batches.add(1)
    assert [bench.batches.withdraw(item) for item in (0, 1, 1)] == [False, True, False]
    bench.gate.set()
    await bench.batches.over()
    assert bench.done == [[0]]


async def test_cancelled_task_is_replaced(bench: Bench) -> None:
    bench.gate.set()
    for item in range(5):
        bench.batches.add(item)
    bench.cancel()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await bench.batches.over()
    assert bench.done == [[0, 1, 2], [3, 4]]


async def test_task_cancelled_between_batches_is_replaced() -> None:
    done: list[list[int]] = []
    bench = Bench()

    async def perform(items: Sequence[int]) -> None:
        done.append([*items])
        if len(done) == 1:
            bench.cancel()

    bench.batches = Batches(perform, size=1)
    bench.batches.add(0)
    bench.batches.add(1)
    await bench.batches.over()
    assert done == [[0], [1]]
