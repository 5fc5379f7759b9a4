"""An event loop that ends cancels every task, also those that have not begun, whatever an engine is doing just then."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from turnwise import Engine, ModelRequest, Settings, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel

BRIEF: Final = Settings(lease=0.5, renew_every=0.2, poll_interval=0.1, coalesce=0)
PARTS: Final = 16
"""Into how many parts a life is divided: the loop ends after each of its tasks, and after each of its rounds."""


@tool
async def add(number: int) -> int:
    """Add one."""
    await asyncio.sleep(0)
    return number + 1


def reply(request: ModelRequest) -> Reply:
    """Call the tool, and then say what it gave."""
    if request.messages[-1].role == "tool":
        return Reply("It is 2.", chunks=["It ", "is ", "2."])
    return Reply(calls=[Call("add", {"number": 1})])


class EndingLoop:
    """An event loop that ends at a moment: all of its tasks are cancelled, once each, as `asyncio.run` does.

    Args:
        task: ends when the task with this number is created, before its first step.
        turn: ends in this round.
    """

    def __init__(self, *, task: int | None = None, turn: int | None = None) -> None:
        self._task, self._turn = task, turn
        self.tasks = 0
        self.turns = 0
        self.is_over = False

    def run(self, life: Coroutine[Any, Any, None]) -> None:
        """Run a life until its end, or the loop's."""
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            loop.set_task_factory(self._create)
            loop.call_soon(self._turned, loop)
            with contextlib.suppress(asyncio.CancelledError):
                runner.run(life)
            self.is_over = True

    def _create(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        created = asyncio.Task(coroutine, loop=loop, **options)
        self.tasks += 1
        if self.tasks == self._task:
            self._end(loop)
        return created

    def _turned(self, loop: asyncio.AbstractEventLoop) -> None:
        self.turns += 1
        if self.turns == self._turn:
            self._end(loop)
        if not self.is_over:
            loop.call_soon(self._turned, loop)

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self.is_over:
            self.is_over = True
            for task in asyncio.all_tasks(loop):
                task.cancel()


async def live(url: str, told: list[str]) -> None:
    """Live through a turn, and note what was acknowledged."""
    async with Engine(url, model=ScriptedModel(reply), tools=[add], settings=BRIEF) as engine:
        chat = await engine.create_chat()
        told.append(chat.id)
        await engine.send_message(chat.id, "Add one to one.")
        told.append("sent")
        await engine.wait(chat.id)
        told.append("answered")


async def go_on(url: str, told: list[str]) -> None:
    """Find everything that was acknowledged, and bring what was begun to its end."""
    async with Engine(url, model=ScriptedModel(reply), tools=[add], settings=BRIEF) as engine:
        for chat_id, *further in [told] if told else []:
            chat = await engine.wait(chat_id)
            said = [message.text for message in await engine.messages(chat_id) if message.role != "tool"]
            assert chat.state == "waiting"
            assert said == ["Add one to one.", "", "It is 2."] or (said == [] and not further)
            assert (await engine.verify(chat_id)).ok


@pytest.fixture(params=["sqlite", "postgres"])
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Return what gives the URL of one new store after another."""
    if request.param == "sqlite":
        numbers = count()
        return lambda: f"sqlite:///{tmp_path / f'{next(numbers)}.db'}"
    return partial(request.getfixturevalue("postgres").new_url, "ended")


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Let what tasks leave behind that never began be freed while it is still this test's, whose warnings it fits."""
    yield
    gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.usefixtures("uncollected")
def test_engine_ends_with_its_loop_at_any_moment(new_url: Callable[[], str], caplog: Any) -> None:
    """Nothing waits for a task that was cancelled before it began, and nothing that was acknowledged is lost."""
    whole, told = EndingLoop(), list[str]()
    whole.run(live(new_url(), told))
    assert len(told) == 3
    seen = set()
    for part in range(1, PARTS + 1):
        for moment in ({"task": whole.tasks * part // PARTS}, {"turn": whole.turns * part // PARTS}):
            url, told = new_url(), []
            EndingLoop(**moment).run(live(url, told))
            seen.add(len(told))
            asyncio.run(go_on(url, told))
    assert seen > {0, 3}
    assert "task_failed" not in caplog.text
