"""Services run on plain asyncio: every timer works there too, whatever libraries have been imported beside."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

import pytest
import sniffio  # noqa: F401 - its presence changes how anyio finds the event loop

from turnwise import Engine, RetryPolicy, Settings
from turnwise.providers.scripted import Reply, ScriptedModel

SOON = 0.05


def lived(model: ScriptedModel, life: Callable[[Engine, str], Awaitable[None]], **settings: object) -> None:
    async def main() -> None:
        known = Settings(**settings)  # type: ignore[arg-type]
        async with Engine("sqlite://", model=model, settings=known) as engine:
            chat = await engine.create_chat()
            await life(engine, chat.id)
            assert (await engine.verify(chat.id)).ok

    asyncio.run(main())


def test_long_stream_is_shown_while_it_runs() -> None:
    async def life(engine: Engine, chat_id: str) -> None:
        result = await engine.ask(chat_id, "hi")
        parts = [event.part.delta async for event in engine.events(chat_id, follow=False) if event.kind == "part"]
        assert (result.text, "".join(parts)) == ("abc", "abc")
        assert len(parts) > 1

    lived(ScriptedModel([Reply("abc", chunks=1, delay=SOON)]), life, coalesce=SOON / 5)


def test_model_times_out() -> None:
    async def life(engine: Engine, chat_id: str) -> None:
        assert (await engine.ask(chat_id, "hi")).text == "at last"
        kinds = [event.error.kind async for event in engine.events(chat_id, follow=False) if event.kind == "retry"]
        assert kinds == ["startup_timeout", "network"]

    patience = 10 * SOON  # what is not late on purpose must not be late on a busy machine either
    slow, silent = Reply("never", stall_after=0), Reply("never", chunks=["ne", "ver"], stall_after=1)
    model = ScriptedModel([slow, silent, "at last"])
    lived(model, life, startup_timeout=patience, idle_timeout=patience, retry=RetryPolicy(first_delay=SOON))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python has eager tasks from 3.12 on")
def test_eager_tasks_work() -> None:
    async def life(engine: Engine, chat_id: str) -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined, unused-ignore]
        assert (await engine.ask(chat_id, "hi")).text == "abc"

    lived(ScriptedModel(Reply("abc", chunks=3)), life)
