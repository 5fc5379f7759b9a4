"""A chat in the hands of a worker, for tests of what its jobs make of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
from tests.engine.shelf import Shelf, stands

from support.runtimes import only_agent, runtime_of
from turnwise import Message, Settings
from turnwise.engine.leased_chat import LeasedChat
from turnwise.engine.prompt.hooks import Hooks
from turnwise.engine.runtime import Runtime
from turnwise.engine.tasks import Tasks
from turnwise.states.facts import Facts, Lease, StepFacts
from turnwise.states.names import ChatState, Stage
from turnwise.testing import ManualClock


def streams(**more: Any) -> Facts:
    """Return the facts of a chat whose third step is asked for the second time, by the worker `w`."""
    known: dict[str, Any] = {
        "lease": Lease("w", 1),
        "step": StepFacts(number=3, attempt=2, stage=Stage.asking, attempt_open=True),
    }
    return stands(ChatState.streaming, **known | more)


def held_by_nobody_else(runtime: Runtime, facts: Facts, **more: Any) -> LeasedChat:
    """Return a chat under the token 1, of whose turns and helpers nobody in the process learns."""

    async def stop_helper(helper: str) -> None:
        raise AssertionError(f"there is no helper {helper}")

    return LeasedChat(runtime, facts, 1, turn_ended=lambda _decision: None, stop_helper=stop_helper, **more)


def leased_chat(
    messages: Sequence[Message] = (),
    *,
    facts: Facts | None = None,
    settings: Settings | None = None,
    hooks: Hooks | None = None,
    model: Any = None,
    tools: Sequence[Any] = (),
) -> tuple[LeasedChat, Shelf]:
    """Return a chat under the token 1, and the store that it is read from."""
    settings = settings or Settings()
    shelf = Shelf(facts=facts or streams())
    shelf.messages = list(messages)
    runtime = runtime_of(
        shelf.store,
        ManualClock(),
        agents=only_agent(model, tools=tools, settings=settings, hooks=hooks),
        settings=settings,
        broadcaster=shelf.broadcaster,
        tasks=Tasks(patience=0.01),
    )
    return held_by_nobody_else(runtime, shelf.stand), shelf


class Stubborn:
    """Code of a service that does not end when it is cancelled, until the test lets it."""

    def __init__(self) -> None:
        self.entered, self.go_on = anyio.Event(), anyio.Event()

    async def __call__(self, *_given: Any) -> None:
        """Hold on."""
        self.entered.set()
        with anyio.CancelScope(shield=True):
            await self.go_on.wait()

    async def left_behind(self, leased: LeasedChat, work: Callable[[], Awaitable[object]]) -> None:
        """Have the engine end while `work` runs this code: then it is named in the log, and left behind."""
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                await work()

            tasks.start_soon(run)
            await self.entered.wait()
            tasks.cancel_scope.cancel()
        await leased.runtime.tasks.user_calls.close()
        self.go_on.set()
        await anyio.wait_all_tasks_blocked()
