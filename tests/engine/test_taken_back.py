"""A store that loses commits, as after a failover or a restored backup: nothing runs twice, and chats continue."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from support.engines import OpenEngine
from turnwise import Chat, Engine, Event, Observer, ToolContext, fold, tool
from turnwise.providers.protocol import ModelRequest
from turnwise.providers.scripted import Call, Reply, ScriptedModel
from turnwise.states.decide import Decision


def copied(source: Path, target: Path) -> None:
    """Copy a database over another one, which may be open."""
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target, timeout=10)) as other:
        one.backup(other)


class Backup(Observer):
    """Copies the database after the first commit of a trigger."""

    def __init__(self, database: Path, trigger: str) -> None:
        self._database = database
        self._trigger = trigger
        self.file = database.with_suffix(".backup")

    def transitioned(self, decision: Decision) -> None:
        if decision.trigger.name == self._trigger and not self.file.exists():
            copied(self._database, self.file)


@pytest.mark.parametrize("same_id", [False, True])
@pytest.mark.parametrize("stored", ["create", "send_message", "claimed", "step_finished"])
async def test_no_call_begins_twice_after_a_restore(
    open_engine: OpenEngine, database: Path, caplog: pytest.LogCaptureFixture, stored: str, *, same_id: bool
) -> None:
    """The backup knows the running call's message, its attempt, or its plan.

    Subscribers start again, and see the stored events.
    """
    seen = list[Event]()

    async def follow(engine: Engine, chat_id: str) -> None:
        async for event in engine.events(chat_id):
            seen.append(event)

    runs, paying, may_end, backup = Counter[str](), anyio.Event(), anyio.Event(), Backup(database, stored)

    @tool
    async def pay(context: ToolContext[None]) -> str:
        """Pay, at most once."""
        runs[context.call_id] += 1
        paying.set()
        await may_end.wait()
        return "paid"

    def answer(request: ModelRequest) -> Reply:
        if request.messages[-1].role != "user":
            return Reply("done")
        return Reply("I pay", calls=[Call("pay", {}, id="A" if same_id else f"A{len(runs)}")])

    @asynccontextmanager
    async def deps(_chat: Chat) -> AsyncIterator[None]:
        """Delay the start of the call beyond the commit that plans it."""
        yield

    model, options = ScriptedModel(answer), {"tools": [pay], "deps": deps, "observers": [backup]}
    with anyio.fail_after(120):
        async with open_engine(model, **options) as engine:
            chat = await engine.create_chat()
            await engine.send_message(chat.id, "pay")
            await paying.wait()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow, engine, chat.id)
                await anyio.wait_all_tasks_blocked()
                copied(backup.file, database)
                may_end.set()
                await engine.wait(chat.id, until={"waiting"}, timeout=120)
                while fold(seen) != await engine.transcript(chat.id):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            late = [event async for event in engine.events(chat.id, after=10_000, follow=False)]
            assert (late[0].kind, fold(late)) == ("history_reset", fold(seen))
            results = [message.result.outcome for message in await engine.messages(chat.id) if message.result]
    again = [] if stored == "create" else ["unknown"] if same_id or stored == "step_finished" else ["succeeded"]
    assert (max(runs.values()), results) == (1, again)
    assert "store_went_back" in caplog.text
