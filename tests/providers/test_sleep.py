"""Sleep: a model for tests waits by the clock of the engine that asks it."""

from __future__ import annotations

import anyio
import anyio.lowlevel

from turnwise import CompactionPolicy, Engine, Settings
from turnwise.providers.scripted import Reply, ScriptedModel
from turnwise.testing import ManualClock


async def test_scripted_delays_use_the_clock_of_the_engine() -> None:
    """So no test waits for a slow thinker; and a model may be lent to engines with clocks of their own."""
    slow = Reply("at last", first_delay=300)
    model = ScriptedModel(slow, summary=slow)
    one_clock, other_clock = ManualClock(), ManualClock()
    settings = Settings.for_reasoning(compaction=CompactionPolicy(timeout=600), shutdown_grace=0)
    async with (
        Engine("sqlite://", model=model, clock=one_clock, settings=settings) as one,
        Engine("sqlite://", model=model, clock=other_clock, settings=settings) as other,
    ):
        mine, others = await one.create_chat(), await other.create_chat()
        await one.send_message(mine.id, "hi")
        await other.send_message(others.id, "hi")
        await _asked(model, 2)
        await one_clock.advance(300)
        assert (await one.wait(mine.id)).state == "waiting"
        await one.request_compaction(mine.id)
        await _asked(model, 3)
        await one_clock.advance(299)
        assert (await one.get_chat(mine.id)).state == "compacting"
        await one_clock.advance(1)
        assert (await one.wait(mine.id)).state == "waiting"
        assert (await other.get_chat(others.id)).state == "streaming"
        await other_clock.advance(300)
        assert (await other.wait(others.id)).state == "waiting"


async def _asked(model: ScriptedModel, times: int) -> None:
    with anyio.fail_after(120):
        while len(model.requests) < times:
            await anyio.lowlevel.checkpoint()
