"""How much is tried at random, and on which chats."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from hypothesis import HealthCheck, Phase, settings

from support.exploring import examples
from support.public_surface import OBJECT
from turnwise import ChatState, ClientTool, Engine, Settings, tool
from turnwise.providers.scripted import Call, Reply, ScriptedModel

CASES: Final = examples(3200)
LONG: Final = pytest.mark.timeout(120 + CASES // 5)
LIMITS: Final = Settings(run_worker=False, message_limit_bytes=100_000)


def runs(share: float) -> Any:
    """Return the decorators of a test that takes this share of all cases."""

    def decorate(test: Any) -> Any:
        bound = settings(
            max_examples=max(round(CASES * share), 2),
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink),
        )
        return LONG(bound(test))

    return decorate


def filled(path: Path) -> None:
    """Make a database with a chat in each state that a client can meet."""
    anyio.run(_filled, path)


async def _filled(path: Path) -> None:
    @tool
    async def fail() -> str:
        """Fail."""
        raise ValueError

    script = [Reply("hello"), Reply(calls=[Call("sign", {"x": 1}, id="call_1")]), Reply("bye")]
    async with Engine(f"sqlite:///{path}", model=ScriptedModel(script), tools=[fail]) as engine:
        rested = await engine.create_chat(owner="o", title="t", metadata={"k": 1}, system="s")
        await engine.ask(rested.id, "hi")
        asking = await engine.create_chat(client_tools=[ClientTool("sign", "Sign.", OBJECT)])
        await engine.ask(asking.id, "hi")
        archived = await engine.create_chat()
        await engine.ask(archived.id, "hi")
        await engine.archive(archived.id)
        failed = await engine.create_chat()
        await engine.ask(failed.id, "one too many")
    async with Engine(f"sqlite:///{path}", model=ScriptedModel("ok"), settings=LIMITS) as engine:
        waiting = await engine.create_chat()
        for text in ("a", "b", "c"):
            await engine.send_message(waiting.id, text, client_id=text)
        stopped = await engine.create_chat()
        await engine.send_message(stopped.id, "hi")
        await engine.interrupt(stopped.id)
        states = {chat.state for chat in (await engine.list_chats()).items}
    assert states == {ChatState(word) for word in ("waiting", "requires_action", "error", "pending", "interrupted")}
