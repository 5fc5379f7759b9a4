"""An event loop that ends cancels every task, also those that have not begun, whatever an engine is doing just then."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from turnwise import Engine, ModelRequest, Settings, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel

BRIEF: Final = Settings(lease=0.5, renew_every=0.2, poll_interval=0.1, coalesce=0)
PARTS: Final = 16
"""Into how many parts a life is divided: the loop ends after each of its tasks."""


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
    """An event loop that ends as a task is created: all of its tasks are cancelled, once each, as `asyncio.run` does.

    Args:
        task: the number of that task; 0 for none.
    """

    def __init__(self, task: int = 0) -> None:
        self._task = task
        self.tasks = 0

    def run(self, life: Coroutine[Any, Any, None]) -> None:
        """Run a life until its end, or the loop's."""
        with asyncio.Runner() as runner:
            runner.get_loop().set_task_factory(self._create)
            with contextlib.suppress(asyncio.CancelledError):
                runner.run(life)
            self._task = 0

    def _create(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        created = asyncio.Task(coroutine, loop=loop, **options)
        self.tasks += 1
        if self.tasks == self._task:
            for task in asyncio.all_tasks(loop):
                task.cancel()
        return created


async def live(url: str, log: list[str]) -> None:
    """Live through a turn, and note what was acknowledged."""
    async with Engine(url, model=ScriptedModel(reply), tools=[add], settings=BRIEF) as engine:
        chat = await engine.create_chat()
        log.append(chat.id)
        await engine.send_message(chat.id, "Add one to one.")
        log.append("sent")
        await engine.wait(chat.id)
        log.append("answered")


async def go_on(url: str, log: list[str]) -> None:
    """Find everything that was acknowledged, and finish what was started."""
    async with Engine(url, model=ScriptedModel(reply), tools=[add], settings=BRIEF) as engine:
        for chat_id, *further in [log] if log else []:
            chat = await engine.wait(chat_id)
            said = [message.text for message in await engine.messages(chat_id) if message.role != "tool"]
            assert chat.state == "waiting"
            assert said == ["Add one to one.", "", "It is 2."] or (said == [] and not further)
            assert (await engine.verify(chat_id)).ok


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Let what tasks leave behind that never began be freed while it is still this test's, whose warnings it fits."""
    yield
    gc.collect()


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.usefixtures("uncollected")
def test_engine_ends_with_its_loop_at_any_moment(tmp_path: Path, caplog: Any) -> None:
    """Nothing waits for a task that was cancelled before it began, and nothing that was acknowledged is lost."""
    whole, log = EndingLoop(), list[str]()
    whole.run(live(f"sqlite:///{tmp_path}/whole.db", log))
    assert len(log) == 3
    seen = set()
    for part in range(1, PARTS + 1):
        url, log = f"sqlite:///{tmp_path}/{part}.db", []
        EndingLoop(whole.tasks * part // PARTS).run(live(url, log))
        seen.add(len(log))
        asyncio.run(go_on(url, log))
    assert seen >= {0, 2}
    assert "task_failed" not in caplog.text
